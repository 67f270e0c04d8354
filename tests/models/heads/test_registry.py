import pytest
import torch

from protail.models.heads import HEADS, LinearHead, PrototypeHead, make_head


def test_options_reach_the_head():
    head = make_head("prototype", 3, 2, distance="cosine", temperature="dense", normalize=2.0)
    assert isinstance(head, PrototypeHead)
    assert (head.distance, head.temperature_scheme, head.normalize) == ("cosine", "dense", 2.0)
    assert make_head("linear", 3, 2, bias=False).bias is None


def test_options_of_another_head_are_refused():
    with pytest.raises(ValueError, match=r"head 'linear' takes no option 'distance'.*'bias'"):
        make_head("linear", 3, 2, distance="cosine")
    with pytest.raises(ValueError, match="Did you mean 'prototype'"):
        make_head("protoype", 3, 2)


def test_options_are_named():
    assert list(HEADS.options("prototype")) == [
        "distance",
        "temperature",
        "temperature_form",
        "initial_temperature",
        "normalize",
    ]


def test_the_linear_head_is_a_product():
    head = LinearHead(3, 5).double().requires_grad_(False)
    features = torch.randn(7, 5, dtype=torch.float64)
    expected = [
        [
            sum(float(x * w) for x, w in zip(row, weight, strict=True)) + float(bias)
            for weight, bias in zip(head.weight, head.bias, strict=True)
        ]
        for row in features
    ]
    torch.testing.assert_close(head(features), torch.tensor(expected, dtype=torch.float64))
    assert (head.n_classes, head.n_features) == (3, 5)


def test_the_linear_head_takes_half_precision_features():
    assert LinearHead(3, 5)(torch.ones(2, 5, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_the_linear_head_needs_classes_and_features(sizes):
    with pytest.raises(ValueError, match="expected a whole number >= 1"):
        LinearHead(*sizes)

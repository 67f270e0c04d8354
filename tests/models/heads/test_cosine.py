import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.models.heads import CosineHead


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 7), st.floats(0.1, 64.0))
def test_logits_are_cosines(n_rows, n_classes, n_features, scale):
    head = CosineHead(n_classes, n_features, scale=scale).double().requires_grad_(False)
    x = torch.randn(n_rows, n_features, dtype=torch.float64)
    expected = [
        [
            scale
            * sum(float(a * b) for a, b in zip(row, weight, strict=True))
            / math.sqrt(sum(float(a) ** 2 for a in row) * sum(float(b) ** 2 for b in weight))
            for weight in head.weight
        ]
        for row in x
    ]
    torch.testing.assert_close(head(x), torch.tensor(expected, dtype=torch.float64))


def test_lengths_do_not_count():
    head = CosineHead(4, 8)
    x = torch.randn(5, 8)
    before = head(x)
    head.weight.data *= torch.tensor([[1e-3], [1.0], [1e3], [7.0]])
    torch.testing.assert_close(head(100 * x), before, rtol=1e-5, atol=1e-5)


def test_a_zero_vector_has_no_preference_and_finite_gradients():
    head = CosineHead(3, 4)
    x = torch.zeros(2, 4, requires_grad=True)
    logits = head(x)
    assert (logits == 0).all()
    logits.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(head.weight.grad).all()


def test_half_precision_features_give_single_precision_logits():
    assert CosineHead(3, 5)(torch.ones(2, 5, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_classes": 0}, "n_classes=0"),
        ({"n_features": 0}, "n_features=0"),
        ({"scale": 0.0}, "scale=0.0"),
    ],
)
def test_bad_options(options, words):
    given = {"n_classes": 2, "n_features": 3} | options
    with pytest.raises(ValueError, match=words):
        CosineHead(given.pop("n_classes"), given.pop("n_features"), **given)

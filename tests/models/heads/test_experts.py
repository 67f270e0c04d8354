"""A cosine classifier for each expert, against loops and against what it is with one expert."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.models.heads import CosineHead, ExpertsHead, HeadPerExpert, make_head
from reference import ride_by_loop as naive


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_experts=st.integers(1, 4),
    n_classes=st.integers(1, 5),
    width=st.integers(1, 4),
    scale=st.floats(0.1, 64.0),
)
def test_equals_the_loops(seed, n_experts, n_classes, width, scale):
    torch.manual_seed(seed)
    head = ExpertsHead(n_classes, n_experts * width, experts=n_experts, scale=scale)
    head.double().requires_grad_(False)
    x = torch.randn(3, n_experts * width, dtype=torch.float64)
    weights = [expert.weight.tolist() for expert in head.experts]
    expected = naive.expert_logits(x.tolist(), weights, scale)
    np.testing.assert_allclose(head.expert_logits(x), expected, rtol=1e-9, atol=1e-9 * scale)
    means = [naive.mean_over_experts(expected, row) for row in range(3)]
    np.testing.assert_allclose(head(x), means, rtol=1e-9, atol=1e-9 * scale)


def test_one_expert_is_the_cosine_head():
    head, cosine = ExpertsHead(4, 6, experts=1, scale=20.0), CosineHead(4, 6, scale=20.0)
    cosine.load_state_dict(head.experts[0].state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(head(x), cosine(x))
    for module in (head, cosine):
        module(x).square().sum().backward()
    assert torch.equal(head.experts[0].weight.grad, cosine.weight.grad)


def test_an_expert_sees_its_part_alone():
    head = ExpertsHead(4, 6, experts=3)
    x = torch.randn(5, 6)
    before = head.expert_logits(x)
    x[:, 2:4] = torch.randn(5, 2)
    moved = (head.expert_logits(x) != before).flatten(1).any(1)
    assert moved.tolist() == [False, True, False]


def test_every_weight_gets_its_own_gradient():
    head = ExpertsHead(4, 6, experts=3)
    head(torch.randn(5, 6)).square().sum().backward()
    for parameter in head.parameters():
        assert parameter.grad.abs().max() > 0


def test_its_scale_is_that_of_the_paper():
    head = make_head("experts", 3, 6)
    assert (head.scale, head.n_experts, head.n_classes, head.n_features) == (30.0, 3, 3, 6)
    aligned = torch.cat([expert.weight[1] for expert in head.experts])[None].detach()
    torch.testing.assert_close(head(aligned)[0, 1].detach(), torch.tensor(30.0))


def test_state_and_copies():
    head = make_head("experts", 3, 8, experts=4, scale=16.0)
    other = make_head("experts", 3, 8, experts=4, scale=16.0)
    x = torch.randn(2, 8)
    assert not torch.equal(other(x), head(x))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(x), head(x))
    assert torch.equal(copy.deepcopy(head)(x), head(x))


def test_half_precision_features_give_single_precision_logits():
    assert make_head("experts", 3, 6)(torch.ones(2, 6, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_compiled_one_is_one_graph():
    torch._dynamo.reset()
    head = make_head("experts", 3, 6)
    x = torch.randn(2, 6)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), head(x))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experts": 0}, "experts=0"),
        ({"experts": 4}, "experts=4 with 6 features.*as many experts as the backbone has"),
        ({"scale": -1.0}, "scale=-1.0"),
        ({"n_classes": 0}, "n_classes=0"),
        ({"n_features": 0}, "0 features"),
    ],
)
def test_bad_options(options, words):
    given = {"n_classes": 2, "n_features": 6} | options
    with pytest.raises(ValueError, match=words):
        ExpertsHead(given.pop("n_classes"), given.pop("n_features"), **given)


@pytest.mark.parametrize("shape", [(2, 9), (6,), (2, 3, 6)])
def test_features_of_another_backbone_are_told(shape):
    with pytest.raises(ValueError, match="expected rows of 6, the features of 3 experts"):
        make_head("experts", 3, 6)(torch.zeros(shape))


def test_any_head_can_be_an_experts():
    head = HeadPerExpert(5, 4, experts=2, make=lambda width: torch.nn.Linear(width, 5))
    x = torch.randn(3, 4)
    first, second = head.experts
    torch.testing.assert_close(head(x), (first(x[:, :2]) + second(x[:, 2:])) / 2)

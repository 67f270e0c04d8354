import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail import ClassProfile
from protail.losses import LogitAdjustedLoss
from protail.models.heads import CosineHead, PostHocAdjustedHead
from reference.linear_by_loop import linear_logits, lists_of, stage_1_head, stage_1_problems

X = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def build(first, counts, **options):
    head = PostHocAdjustedHead(first.n_classes, first.n_features, **options)
    return head.to(first.weight.dtype).build_on(first, counts)


@settings(max_examples=60)
@given(stage_1_problems(), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_equals_a_loop(problem, tau):
    first, features, counts = problem
    expected = linear_logits(features.tolist(), *lists_of(first))
    for row in expected:
        for c in range(len(counts)):
            row[c] -= tau * math.log(counts[c] / sum(counts))
    head = build(first, counts, tau=tau)
    np.testing.assert_allclose(head(features), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(head.float()(features), expected, rtol=1e-4, atol=1e-4)


def test_tau_zero_is_stage_1():
    first = stage_1_head()
    assert torch.equal(build(first, [500, 30, 5, 1], tau=0)(X), first(X))


@settings(max_examples=20)
@given(stage_1_problems(), st.integers(1, 600), st.floats(0, 2))
def test_equal_counts_change_no_prediction(problem, count, tau):
    first, features, counts = problem
    head = build(first, [count] * len(counts), tau=tau)
    assert torch.equal(head(features).argmax(1), first(features).argmax(1))


@settings(max_examples=40)
@given(stage_1_problems(), st.sampled_from([0.0, 1.0]), st.sampled_from([1.0, 16.0]))
def test_on_a_cosine_head_it_equals_a_loop(problem, tau, scale):
    linear, features, counts = problem
    first = CosineHead(linear.n_classes, linear.n_features, scale=scale).double()
    first.weight.data.copy_(linear.weight)
    head = build(first, counts, tau=tau)
    for row, logits in zip(features.tolist(), head(features).tolist(), strict=True):
        for c, weight in enumerate(linear.weight.tolist()):
            cosine = sum(a * b for a, b in zip(row, weight, strict=True)) / (
                math.hypot(*row) * math.hypot(*weight)
            )
            expected = scale * cosine - tau * math.log(counts[c] / sum(counts))
            assert logits[c] == pytest.approx(expected, rel=1e-10, abs=1e-10)
    again = PostHocAdjustedHead(first.n_classes, first.n_features, tau=tau).double()
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(features), head(features))


def test_weights_without_the_scale_of_a_cosine_head_are_those_of_a_linear_one():
    head = build(stage_1_head(), [500, 30, 5, 1])
    state = head.state_dict()
    del state["cosine_scale"]
    again = PostHocAdjustedHead(4, 6).double()
    again.load_state_dict(state)
    assert torch.equal(again(X), head(X))


def test_rare_classes_gain():
    first = stage_1_head()
    gained = build(first, [500, 30, 5, 1])(X) - first(X)
    assert (gained.diff(dim=1) > 0).all()


def test_the_adjusted_loss_undoes_it():
    """Adding tau log N in training and subtracting tau log prior after it are one adjustment."""
    first, counts, target = stage_1_head(), [500, 30, 5, 1], torch.arange(50) % 4
    adjusted = LogitAdjustedLoss(counts, 0.7, dtype=torch.float64)(
        build(first, counts, tau=0.7)(X), target
    )
    torch.testing.assert_close(adjusted, torch.nn.functional.cross_entropy(first(X), target))


@pytest.mark.parametrize("as_type", [np.array, torch.tensor, lambda c: ClassProfile(np.array(c))])
def test_counts_come_in_many_forms(as_type):
    head = build(stage_1_head(), as_type([4, 2, 1, 1]))
    torch.testing.assert_close(
        head.log_prior, torch.tensor([0.5, 0.25, 0.125, 0.125]).double().log()
    )


def test_empty_classes_are_refused():
    with pytest.raises(ValueError, match="1 empty of 4 classes"):
        build(stage_1_head(), [4, 2, 0, 1])


@pytest.mark.parametrize("tau", [-0.1, math.nan, math.inf])
def test_bad_tau(tau):
    with pytest.raises(ValueError, match=r"tau=.*; expected a finite number >= 0"):
        PostHocAdjustedHead(4, 6, tau=tau)

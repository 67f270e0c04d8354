import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from protail.losses import FocalLoss
from reference import losses_by_loop as naive
from reference.losses_by_loop import assert_equals_loop, batches, dtypes


@settings(max_examples=60)
@given(batches(), dtypes, st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]))
def test_equals_a_loop(batch, dtype, gamma):
    logits, target, counts = batch

    def loop(rows, labels):
        return naive.focal(rows, labels, gamma)

    assert_equals_loop(FocalLoss(counts, gamma=gamma), loop, logits, target, dtype)


@settings(max_examples=30)
@given(batches())
def test_gamma_zero_is_cross_entropy(batch):
    logits, target, counts = batch
    torch.testing.assert_close(
        FocalLoss(counts, gamma=0)(logits, target), cross_entropy(logits, target)
    )


def slope(loss, gap):
    logits = torch.tensor([[gap, 0.0]], requires_grad=True)
    loss(logits, torch.tensor([0])).backward()
    return abs(logits.grad[0, 0].item())


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_what_is_nearly_right_is_forgotten_faster_than_by_cross_entropy(gamma):
    focal, plain = FocalLoss([1, 1], gamma=gamma), FocalLoss([1, 1], gamma=0)
    fractions = [slope(focal, gap) / slope(plain, gap) for gap in (1.0, 5.0, 10.0, 30.0)]
    assert fractions == sorted(fractions, reverse=True)
    # Near p = 1 the slope is (1 + gamma) (1 - p)^gamma times that of cross-entropy; float32
    # would round p to 1 there.
    assert fractions[-1] == pytest.approx((1 + gamma) * math.exp(-30 * gamma), rel=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("label", [0, 1])
def test_certainty_has_finite_slopes(gamma, label):
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    value = FocalLoss([1, 1, 1], gamma=gamma)(logits, torch.tensor([label]))
    value.backward()
    assert value.item() == pytest.approx(2e4 * label)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("gamma", [-1.0, math.nan, math.inf])
def test_bad_gamma(gamma):
    with pytest.raises(ValueError, match=r"gamma=.*; expected a finite number >= 0"):
        FocalLoss([2, 1], gamma=gamma)

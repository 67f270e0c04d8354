import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from protail.data.images import long_tailed_counts
from protail.losses import PriorWeightedLoss, begin_epoch, make_loss, prior_weights
from reference import losses_by_loop as naive
from reference.losses_by_loop import assert_equals_loop, batches, dtypes


@settings(max_examples=60)
@given(batches(), dtypes, st.sampled_from([0.0, 0.5, 1.0, 1.2]))
def test_equals_a_loop(batch, dtype, rho):
    logits, target, counts = batch
    loss = make_loss("reweighted", counts, rho=rho)
    np.testing.assert_allclose(loss.weights, naive.prior_weights(counts, rho), rtol=1e-6)
    weights = loss.weights.tolist()

    def loop(rows, labels):
        return naive.cross_entropy(rows, labels, weights)

    assert_equals_loop(loss, loop, logits, target, dtype)


@settings(max_examples=30)
@given(batches())
def test_rho_zero_is_cross_entropy(batch):
    logits, target, counts = batch
    assert torch.equal(
        PriorWeightedLoss(counts, rho=0)(logits, target), cross_entropy(logits, target)
    )


def test_at_rho_one_a_class_counts_one_over_its_rows():
    counts = np.array([500, 30, 5])
    np.testing.assert_allclose(prior_weights(counts, 1.0), 3 / counts / (1 / counts).sum())


def test_weights_of_long_tailed_cifar_100():
    weights = PriorWeightedLoss(long_tailed_counts(500, 100, 100)).weights
    assert weights[0].item() == pytest.approx(0.0204, abs=5e-5)
    assert weights[-1].item() == pytest.approx(5.13, abs=5e-3)


def test_a_large_rho_leaves_numbers():
    np.testing.assert_allclose(prior_weights([10**6, 1000], 200.0), [0.0, 2.0], atol=1e-12)


def test_weights_hold_from_the_first_epoch_on():
    loss = PriorWeightedLoss([500, 5], rho=1.0)
    for epoch in (0, 5):
        begin_epoch(loss, epoch)
        torch.testing.assert_close(loss.weights, torch.tensor([2 / 101, 200 / 101]))


@pytest.mark.parametrize("rho", [-0.1, math.nan, math.inf])
def test_bad_rho(rho):
    with pytest.raises(ValueError, match=r"rho=.*; expected a finite number >= 0"):
        PriorWeightedLoss([2, 1], rho=rho)


def test_empty_classes_are_refused():
    with pytest.raises(ValueError, match="1 empty of 2 classes"):
        PriorWeightedLoss([2, 0])

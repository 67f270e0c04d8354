import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from protail.data.images import long_tailed_counts
from protail.losses import ClassBalancedLoss, begin_epoch
from reference import losses_by_loop as naive
from reference.losses_by_loop import assert_equals_loop, batches, dtypes


@settings(max_examples=60)
@given(batches(), dtypes, st.sampled_from([0.0, 0.9, 0.9999]))
def test_equals_a_loop(batch, dtype, beta):
    logits, target, counts = batch
    loss = ClassBalancedLoss(counts, beta=beta)
    np.testing.assert_allclose(
        loss.weights, naive.effective_number_weights(counts, beta), rtol=1e-6
    )
    weights = loss.weights.tolist()

    def loop(rows, labels):
        return naive.cross_entropy(rows, labels, weights)

    assert_equals_loop(loss, loop, logits, target, dtype)


@settings(max_examples=30)
@given(batches())
def test_beta_zero_is_cross_entropy(batch):
    logits, target, counts = batch
    assert torch.equal(
        ClassBalancedLoss(counts, beta=0)(logits, target), cross_entropy(logits, target)
    )


def test_towards_beta_one_a_class_counts_one_over_its_rows():
    counts = torch.tensor([500, 30, 5])
    weights = ClassBalancedLoss(counts, beta=1 - 1e-9).weights
    expected = 3 / counts / (1 / counts).sum()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=0)


def test_weights_of_long_tailed_cifar_100():
    weights = ClassBalancedLoss(long_tailed_counts(500, 100, 100)).weights
    assert weights[0].item() == pytest.approx(0.0449, abs=5e-5)
    assert weights[-1].item() == pytest.approx(4.378, abs=5e-4)


def test_weights_hold_from_the_first_epoch_on():
    loss = ClassBalancedLoss([500, 5])
    weights = loss.weights.clone()
    assert weights[1] > 50 * weights[0]
    for epoch in (0, 1, 199):
        begin_epoch(loss, epoch)
        assert torch.equal(loss.weights, weights)


def test_bad_beta():
    with pytest.raises(ValueError, match=r"beta=1\.0"):
        ClassBalancedLoss([2, 1], beta=1.0)

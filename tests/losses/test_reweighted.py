"""Deferred re-weighting against loops in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from protail.data.images import long_tailed_counts
from protail.losses import class_balanced_weights, make_loss
from reference.losses_by_loop import cross_entropy as loss_by_hand
from reference.losses_by_loop import effective_number_weights as weights_by_hand

LOGITS = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3
COUNTS = [500, 30, 5]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=6), st.floats(0, 0.9999))
def test_weights_equal_a_loop(counts, beta):
    np.testing.assert_allclose(
        class_balanced_weights(counts, beta), weights_by_hand(counts, beta), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("n_max", "n_classes", "first", "last"), [(500, 100, 0.0449, 4.378), (5000, 10, 0.0506, 3.993)]
)
def test_weights_of_the_long_tailed_cifars(n_max, n_classes, first, last):
    weights = class_balanced_weights(long_tailed_counts(n_max, n_classes, 100))
    assert weights[[0, -1]] == pytest.approx([first, last], rel=1e-3)
    assert weights.mean() == pytest.approx(1)


def test_the_ends_of_beta():
    np.testing.assert_array_equal(class_balanced_weights(COUNTS, 0.0), np.ones(3))
    rare = class_balanced_weights(COUNTS, 1 - 1e-9)
    np.testing.assert_allclose(rare * COUNTS, np.full(3, rare[0] * 500), rtol=1e-5)


def test_weights_come_with_their_epoch_and_go_before_it():
    loss = make_loss("cross-entropy", COUNTS, reweight_from=2)
    place = loss.weights.data_ptr()
    balanced = weights_by_hand(COUNTS, 0.9999)
    for epoch in (0, 1, 2, 3, 1):
        loss.on_epoch(epoch)
        expected = loss_by_hand(
            LOGITS.tolist(), LABELS.tolist(), balanced if epoch >= 2 else [1.0] * 3
        )
        assert loss(LOGITS, LABELS).item() == pytest.approx(expected, rel=1e-6)
        assert loss.weights.data_ptr() == place  # a captured step looks there
    assert loss(LOGITS.bfloat16(), LABELS).dtype == torch.float32


def test_weights_from_the_first_epoch_on_need_not_be_told():
    loss = make_loss("cross-entropy", COUNTS, reweight_from=0)
    np.testing.assert_allclose(loss.weights, weights_by_hand(COUNTS, 0.9999), rtol=1e-6)


def test_without_an_epoch_it_is_torchs():
    loss = make_loss("cross-entropy", COUNTS, label_smoothing=0.1, beta=0.5)
    assert torch.equal(loss(LOGITS, LABELS), cross_entropy(LOGITS, LABELS, label_smoothing=0.1))


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        (COUNTS, {"beta": 1.0}, "beta=1.0"),
        (COUNTS, {"reweight_from": 0, "beta": -0.1}, "beta=-0.1"),
        (COUNTS, {"reweight_from": -1}, "reweight_from=-1"),
        ([3, 0], {"reweight_from": 0}, "1 classes without rows"),
    ],
)
def test_what_cannot_be_is_refused(counts, options, message):
    with pytest.raises(ValueError, match=message):
        make_loss("cross-entropy", counts, **options)

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy, cross_entropy, one_hot

from protail.losses import BalancedBinaryLoss
from reference import losses_by_loop as naive
from reference.losses_by_loop import assert_equals_loop, batches, dtypes


@settings(max_examples=60)
@given(batches(), dtypes, st.sampled_from([0.0, 0.9, 0.9999]))
def test_equals_a_loop(batch, dtype, beta):
    logits, target, counts = batch
    loss = BalancedBinaryLoss(counts, beta=beta)
    np.testing.assert_allclose(
        loss.weights, naive.effective_number_weights(counts, beta), rtol=1e-6
    )
    weights = loss.weights.tolist()

    def loop(rows, labels):
        return naive.balanced_binary(rows, labels, weights)

    assert_equals_loop(loss, loop, logits, target, dtype)


@settings(max_examples=30)
@given(batches(max_size=5.0))
def test_is_torchs_binary_cross_entropy_of_the_softmax(batch):
    logits, target, counts = batch
    loss = BalancedBinaryLoss(counts)
    expected = binary_cross_entropy(
        logits.softmax(1),
        one_hot(target, len(counts)).double(),
        weight=loss.weights.double()[target][:, None],
    )
    # One minus a probability near 1 has few digits left there.
    torch.testing.assert_close(loss(logits, target), expected, rtol=1e-6, atol=1e-6)


def test_twice_the_weights_are_twice_the_loss():
    logits, target = torch.randn(6, 3), torch.arange(6) % 3
    loss = BalancedBinaryLoss([9, 3, 1])
    before = loss(logits, target)
    loss.weights *= 2
    torch.testing.assert_close(loss(logits, target), 2 * before)


def test_is_smaller_than_cross_entropy_by_the_number_of_classes():
    logits, target = torch.zeros(100, 100), torch.arange(100)
    ratio = cross_entropy(logits, target) / BalancedBinaryLoss([5] * 100)(logits, target)
    # Of all-equal logits the wrong classes add 99 log(1/0.99), about 1.
    assert ratio.item() == pytest.approx(100 * 4.6052 / (4.6052 + 0.9950), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("label", "expected"), [(0, 0.0), (1, 200 / 3), (2, 200 / 3)])
def test_probabilities_of_0_and_1_stay_finite(dtype, label, expected):
    logits = torch.tensor([[2000.0, -2000.0, 0.0]], dtype=dtype, requires_grad=True)
    assert logits.softmax(1).tolist() == [[1.0, 0.0, 0.0]]
    value = BalancedBinaryLoss([1, 1, 1])(logits, torch.tensor([label]))
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert torch.isfinite(logits.grad).all()


def test_a_sure_mistake_in_float32_keeps_its_slope():
    """Where p rounds to 1, log(1 - p) must be neither the cut-off value nor flat."""
    logits = torch.tensor([[40.0, 0.0]], requires_grad=True)
    assert logits.softmax(1)[0, 0] == 1
    value = BalancedBinaryLoss([1, 1])(logits, torch.tensor([1]))
    value.backward()
    assert value.item() == pytest.approx(40)
    torch.testing.assert_close(logits.grad, torch.tensor([[1.0, -1.0]]))


@pytest.mark.parametrize(
    ("counts", "options", "words"),
    [([2, 1], {"beta": 1.0}, "beta=1.0"), ([2, 0], {}, "1 classes without rows")],
)
def test_what_cannot_be_is_refused(counts, options, words):
    with pytest.raises(ValueError, match=words):
        BalancedBinaryLoss(counts, **options)

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from protail import ClassProfile, LogitAdjustedLoss


def naive_loss(logits, target, counts, tau):
    """Mean of -log softmax(logits + tau log N), one number at a time."""
    total = 0.0
    for row, label in zip(logits.tolist(), target.tolist(), strict=True):
        adjusted = [z + tau * math.log(n) for z, n in zip(row, counts, strict=True)]
        top = max(adjusted)
        total += top + math.log(sum(math.exp(a - top) for a in adjusted)) - adjusted[label]
    return total / len(target)


@st.composite
def problems(draw):
    n_classes = draw(st.integers(1, 12))
    batch = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0, 1e3]))
    return (
        torch.from_numpy(rng.normal(size=(batch, n_classes)) * scale),
        torch.from_numpy(rng.integers(n_classes, size=batch)),
        rng.integers(1, 10_000, size=n_classes).tolist(),
        draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])),
    )


def some_logits(rows, columns, dtype=torch.float32):
    return torch.randn(rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(0))


TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 1e-5,
    torch.float16: 1e-5,
}


@given(problems(), st.sampled_from(list(TOLERANCE)))
@settings(max_examples=120)
def test_equals_a_naive_loop(problem, dtype):
    logits, target, counts, tau = problem
    logits = logits.to(dtype)  # rounded once; from there half precision must lose nothing more
    working = torch.float64 if dtype == torch.float64 else torch.float32
    loss = LogitAdjustedLoss(counts, tau, dtype=working)(logits, target)
    assert loss.dtype == working
    expected = naive_loss(logits.double(), target, counts, tau)
    scale = 1 + float(logits.double().abs().max())
    assert float(loss) == pytest.approx(
        expected, rel=TOLERANCE[dtype], abs=TOLERANCE[dtype] * scale
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tau_zero_is_cross_entropy(dtype):
    logits = some_logits(20, 7, dtype)
    target = torch.arange(20) % 7
    loss = LogitAdjustedLoss([1, 2, 3, 40, 500, 6, 7], tau=0)
    assert torch.equal(loss(logits, target), cross_entropy(logits, target))


def test_equal_counts_change_nothing():
    logits = some_logits(20, 4, torch.float64)
    target = torch.arange(20) % 4
    loss = LogitAdjustedLoss([50] * 4, tau=1.0, dtype=torch.float64)
    torch.testing.assert_close(loss(logits, target), cross_entropy(logits, target))


@given(problems())
@settings(max_examples=40)
def test_gradient_is_adjusted_softmax_minus_target(problem):
    logits, target, counts, tau = problem
    logits.requires_grad_()
    LogitAdjustedLoss(counts, tau, dtype=torch.float64)(logits, target).backward()
    shift = torch.tensor([tau * math.log(n) for n in counts], dtype=torch.float64)
    expected = torch.softmax(logits.detach() + shift, dim=1)
    expected[torch.arange(len(target)), target] -= 1
    torch.testing.assert_close(logits.grad, expected / len(target), rtol=1e-9, atol=1e-12)


def test_gradcheck():
    logits = some_logits(4, 3, torch.float64).requires_grad_()
    loss = LogitAdjustedLoss([90, 9, 1], tau=1.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: loss(z, torch.tensor([0, 1, 2, 2])), logits)


def test_a_rare_class_must_win_by_more():
    loss = LogitAdjustedLoss([100, 1], tau=1.0)
    even = torch.zeros(1, 2)
    assert loss(even, torch.tensor([1])) > loss(even, torch.tensor([0]))


@pytest.mark.parametrize(
    "as_type", [list, np.array, torch.tensor, lambda c: ClassProfile(np.array(c))]
)
def test_counts_come_in_many_forms(as_type):
    expected = 0.25 * torch.tensor([100.0, 10.0, 1.0]).log()
    torch.testing.assert_close(LogitAdjustedLoss(as_type([100, 10, 1])).adjustment, expected)


def test_the_adjustment_is_saved_copied_and_moved():
    loss = LogitAdjustedLoss([9, 3, 1], tau=0.5)
    assert list(loss.state_dict()) == ["adjustment"]
    assert not list(loss.parameters())
    other = LogitAdjustedLoss([1, 1, 1])
    other.load_state_dict(loss.state_dict())
    for same in (other, copy.deepcopy(loss), loss.to("cpu")):
        assert torch.equal(same.adjustment, loss.adjustment)
    assert copy.deepcopy(loss).to("meta").adjustment.device.type == "meta"
    assert copy.deepcopy(loss).double().adjustment.dtype == torch.float64


def test_a_module_in_half_precision_still_sums_in_float32():
    logits, target = some_logits(8, 3), torch.arange(8) % 3
    loss = LogitAdjustedLoss([900, 30, 1], tau=1.0)
    half = copy.deepcopy(loss).half()(logits.half(), target)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, loss(logits, target), rtol=5e-3, atol=5e-3)


def test_autocast():
    loss = LogitAdjustedLoss([9, 3, 1])
    x, target = some_logits(5, 3).requires_grad_(), torch.tensor([0, 1, 2, 0, 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x @ torch.eye(3), target)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("tau", [-0.1, math.nan, math.inf, "1", None])
def test_bad_tau(tau):
    with pytest.raises(ValueError, match=r"tau=.*; expected a finite number >= 0"):
        LogitAdjustedLoss([1, 2], tau)


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        ([3, 0, 1], ValueError, "1 empty of 3 classes"),
        ([3, -1], ValueError, "no negative count"),
        ([0.5, 1.5], TypeError, "expected whole numbers"),
    ],
)
def test_bad_counts(counts, error, message):
    with pytest.raises(error, match=message):
        LogitAdjustedLoss(counts)

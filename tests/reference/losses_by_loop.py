"""Losses and their class weights as loops over rows and classes in float64: slow and obvious."""

import math

import numpy as np
import pytest
import torch
from hypothesis import strategies as st


def log_share(row, of):
    """Logarithm of the softmax of some classes together; of none of them, minus infinity."""
    top = max(row)
    some = sum(math.exp(row[c] - top) for c in of)
    return math.log(some / sum(math.exp(z - top) for z in row)) if some > 0 else -math.inf


def log_p(row, label):
    return log_share(row, [label])


def log_rest(row, label):
    """Logarithm of 1 - p, with all digits where p is nearly 1."""
    return log_share(row, [c for c in range(len(row)) if c != label])


def cross_entropy(logits, target, weights):
    """Weighted mean: divided by the sum of the weights."""
    top = sum(-weights[y] * log_p(row, y) for row, y in zip(logits, target, strict=True))
    return top / sum(weights[y] for y in target)


def focal(logits, target, gamma):
    total = 0.0
    for row, y in zip(logits, target, strict=True):
        rest = math.exp(log_rest(row, y))
        total += rest**gamma * -log_p(row, y)
    return total / len(target)


def ldam(logits, target, weights, margins, scale):
    lowered = [
        [z - scale * margins[c] if c == y else z for c, z in enumerate(row)]
        for row, y in zip(logits, target, strict=True)
    ]
    return cross_entropy(lowered, target, weights)


def balanced_binary(logits, target, weights):
    total = 0.0
    for row, y in zip(logits, target, strict=True):
        for c in range(len(row)):
            log = log_p(row, y) if c == y else log_rest(row, c)
            total += -weights[y] * max(log, -100.0)
    return total / (len(target) * len(logits[0]))


def effective_number_weights(counts, beta):
    inverse = [1 / sum(beta**k for k in range(n)) for n in counts]
    return [len(counts) * each / sum(inverse) for each in inverse]


def prior_weights(counts, rho):
    power = [(n / sum(counts)) ** -rho for n in counts]
    return [len(counts) * each / sum(power) for each in power]


def margins(counts, max_margin):
    unscaled = [n**-0.25 for n in counts]
    return [max_margin * each / max(unscaled) for each in unscaled]


def slopes(loss, logits, step=1e-5):
    """Slope of a loss by every logit, from its values on both sides."""
    found = np.zeros((len(logits), len(logits[0])))
    for b, c in np.ndindex(found.shape):
        values = []
        for moved in (logits[b][c] + step, logits[b][c] - step):
            rows = [list(row) for row in logits]
            rows[b][c] = moved
            values.append(loss(rows))
        found[b, c] = (values[0] - values[1]) / (2 * step)
    return found


def assert_equals_loop(loss, loop, logits, target, dtype):
    """Compare value and gradient of a module with those of ``loop(rows, labels)``."""
    logits = logits.to(dtype).requires_grad_()
    value = loss.to(dtype)(logits, target)
    value.backward()
    rows, labels = logits.double().tolist(), target.tolist()
    assert value.shape == ()
    assert value.dtype == logits.grad.dtype == dtype
    size = 1 + max(abs(z) for row in rows for z in row)
    small = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    assert value.item() == pytest.approx(loop(rows, labels), rel=10 * small, abs=small * size)
    expected = slopes(lambda changed: loop(changed, labels), rows)
    # Differences of the loop's own values have few digits more than float32.
    near = {torch.float32: 2e-6, torch.float64: 1e-8}[dtype]
    np.testing.assert_allclose(logits.grad.double(), expected, rtol=1e-5, atol=near * size)


@st.composite
def batches(draw, max_size=30.0):
    """Draw logits in float64, labels and class counts."""
    n_classes, n_rows = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = min(max_size, draw(st.sampled_from([1e-2, 1.0, 5.0, 30.0])))
    return (
        torch.from_numpy(rng.normal(size=(n_rows, n_classes)) * size),
        torch.from_numpy(rng.integers(n_classes, size=n_rows)),
        rng.integers(1, 600, size=n_classes).tolist(),
    )


dtypes = st.sampled_from([torch.float32, torch.float64])

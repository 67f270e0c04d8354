"""Distances, searches and losses of numbers at the ends of their types."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protail import ops
from protail.losses import LOSSES, make_loss

# Squares of these fit into float32, so that a training can go on; sums of a few float16 do, too.
TRAINABLE = {torch.float16: 65_504.0, torch.float32: 1e18, torch.float64: 1e150}
DISTANCES = ("euclidean", "sqeuclidean", "cosine")
# Cross-entropy is torch's own, which keeps float16; routing takes more than logits.
NAMES = [name for name in LOSSES.names() if name not in ("cross-entropy", "routing")]


def numbers(dtype, seed, exponents, n=6, n_channels=4):
    """Draw vectors, some rows of which are duplicates, zeros, or at the end of what is trained."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, n_channels)) * 10.0 ** rng.choice(exponents, (n, 1))
    rows[1], rows[2] = rows[0], 0
    rows[3] = TRAINABLE[dtype]
    rows[4, ::2] = -TRAINABLE[dtype]
    return torch.from_numpy(rows.clip(-TRAINABLE[dtype], TRAINABLE[dtype])).to(dtype)


drawn = (
    st.sampled_from([*TRAINABLE]),
    st.integers(0, 2**16),
    st.lists(st.floats(-50, 18), min_size=1, max_size=3),
    st.sampled_from(DISTANCES),
)


@pytest.mark.parametrize("form", ["fused", "chunked", "reference"])
@given(*drawn)
def test_losses_of_distances_and_their_gradients_are_finite(form, dtype, seed, exponents, distance):
    x = numbers(dtype, seed, exponents).requires_grad_()
    prototypes = numbers(dtype, seed + 1, exponents).requires_grad_()
    adjustment = torch.tensor([100_000.0, 10, 1, 1, 1, 1]).log()
    target = torch.arange(6) % 5
    value = ops.loss(
        x, prototypes, target, distance=distance, adjustment=adjustment, form=form, reduction="mean"
    )
    value.backward()
    assert value.isfinite()
    # Of squares of float16 numbers no float16 gradient can be told.
    limit = torch.finfo(dtype).max
    for gradient in (x.grad, prototypes.grad):
        assert not gradient.isnan().any()
        assert gradient.isfinite().all() or (distance == "sqeuclidean" and limit < 1e5)


@given(*drawn, st.floats(0, 20))
def test_searches_agree_at_any_scale(dtype, seed, exponents, distance, more):
    scale = 10.0**more if dtype != torch.float16 else 1.0  # beyond what trains: squares overflow
    x, prototypes = numbers(dtype, seed, exponents), numbers(dtype, seed + 1, exponents)
    x, prototypes = x * scale, prototypes * scale
    away = ops.distances(x, prototypes, distance)
    assert not away.isnan().any()
    index = ops.nearest(x, prototypes, distance=distance)
    values, indices = ops.top_k(x, prototypes, 3, distance=distance)
    assert torch.equal(indices[:, 0], index)
    assert (values.diff(dim=1)[values.isfinite()[:, 1:]] >= 0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float16, 65_504), (torch.bfloat16, 1e30), (torch.float32, 1e30), (torch.float32, 0)],
)
@pytest.mark.parametrize("counts", [(100_000, 10, 1, 1), (1, 1, 1, 1)])
def test_losses_of_logits_are_finite(name, dtype, size, counts):
    logits = torch.tensor([[1, -1, 0, 0.5], [-1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, -1]])
    logits = (logits * size).to(dtype).requires_grad_()
    value = make_loss(name, counts)(logits, torch.arange(4))
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()

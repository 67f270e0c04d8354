"""Kernels of a step so small that starting kernels is what takes time: everything by subtraction.

Three of them make a step: distances, what pulls, gradients. Nothing is centred, because nothing
cancels.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def measure(
    x, prototypes, temperature, distance, n_rows, n_classes, n_channels,
    ROOT: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Measure each row from each class."""
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    klass = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    square = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    for start in range(0, n_channels, BLOCK_D):
        at = start + tl.arange(0, BLOCK_D)
        inside = (at < n_channels)[None, :]
        there = x + row[:, None] * n_channels + at[None, :]
        u = tl.load(there, mask=(row < n_rows)[:, None] & inside, other=0.0)
        there = prototypes + klass[:, None] * n_channels + at[None, :]
        v = tl.load(there, mask=(klass < n_classes)[:, None] & inside, other=0.0)
        gap = u[:, None, :] - v[None, :, :]
        if SCALED:
            weight = 1 / tl.load(temperature + at, mask=at < n_channels, other=1.0)
            square += tl.sum(gap * gap * weight[None, None, :], 2)
        else:
            square += tl.sum(gap * gap, 2)
    if ROOT:
        square = tl.sqrt(square)
    out = distance + row[:, None] * n_classes + klass[None, :]
    tl.store(out, square, mask=(row < n_rows)[:, None] & (klass < n_classes)[None, :])


@triton.jit
def weigh(
    distance,  # (rows, heads, classes): becomes what multiplies x - c
    adjustment,  # (heads, classes)
    target,
    loss,  # (rows, heads)
    n_rows,  # times heads
    n_classes, n_heads, rate, least,
    ROOT: tl.constexpr, ADJUSTED: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Turn distances into the loss of each row and what pulls in its gradients, in place."""
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    klass = tl.arange(0, BLOCK_C)
    known = (row < n_rows)[:, None] & (klass < n_classes)[None, :]
    there = distance + row[:, None] * n_classes + klass[None, :]
    far = tl.load(there, mask=known, other=0.0)
    logit = -rate * far
    if ADJUSTED:
        there_too = adjustment + (row % n_heads)[:, None] * n_classes + klass[None, :]
        logit += tl.load(there_too, mask=known, other=0.0)
    logit = tl.where((klass < n_classes)[None, :], logit, float("-inf"))
    own = tl.load(target + row // n_heads, mask=row < n_rows, other=0)
    is_own = klass[None, :] == own[:, None]
    peak = tl.max(logit, 1)
    power = tl.exp(logit - peak[:, None])
    others = tl.sum(tl.where(is_own, 0.0, power), 1)
    mine = tl.sum(tl.where(is_own, power, 0.0), 1)
    own_logit = tl.sum(tl.where(is_own, logit, 0.0), 1)
    whole = others + mine
    own_logit = tl.where((own >= 0) & (own < n_classes), own_logit, float("nan"))
    tl.store(loss + row, tl.log(whole) + peak - own_logit, mask=row < n_rows)
    # 1 - p is what the others have: no digits cancel.
    pull = tl.where(is_own, -others[:, None], power) / whole[:, None]
    if ROOT:
        pull = pull / tl.maximum(far, least)
    tl.store(there, pull, mask=known)


@triton.jit
def gather(
    own,  # those whose gradient it is: (n_own, n_channels)
    others,  # (n_others, n_channels)
    temperature, pull, grad, gradient,
    energy,  # (blocks of own, channels)
    n_own, n_others, n_channels, own_stride, other_stride, factor,
    OWN_GRAD: tl.constexpr, OTHER_GRAD: tl.constexpr,
    SCALED: tl.constexpr, ENERGY: tl.constexpr, GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum ``pull (other - own)`` over all others, in order."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = at < n_channels
    here = row[:, None] * n_channels + at[None, :]
    known = (row < n_own)[:, None] & inside[None, :]
    mine = tl.load(own + here, mask=known, other=0.0)
    total = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    moment = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for other in tl.range(0, n_others, loop_unroll_factor=16):
        weight = tl.load(
            pull + row * own_stride + other * other_stride, mask=row < n_own, other=0.0
        )
        if OTHER_GRAD:
            weight *= tl.load(grad + other)
        vector = tl.load(others + other * n_channels + at, mask=inside, other=0.0)
        gap = vector[None, :] - mine
        total += weight[:, None] * gap
        if ENERGY:
            moment += weight[:, None] * gap * gap
    by = tl.full((BLOCK,), 1.0, tl.float32) * factor
    if OWN_GRAD:
        by *= tl.load(grad + row, mask=row < n_own, other=0.0)
    elif not OTHER_GRAD:
        by *= tl.load(grad)
    scale = tl.full((BLOCK_D,), 1.0, tl.float32)
    if SCALED:
        scale = 1 / tl.load(temperature + at, mask=inside, other=1.0)
    if GRADIENT:
        tl.store(gradient + here, total * by[:, None] * scale[None, :], mask=known)
    if ENERGY:
        moment = tl.sum(tl.where(known, moment * by[:, None], 0.0), 0) * scale * scale
        tl.store(energy + tl.program_id(0) * n_channels + at, moment, mask=inside)

"""Kernels of the search: scores by tiles, and exact distances of the few that could be nearest."""

# mypy: ignore-errors

import triton
import triton.language as tl

from protail.ops.kernels._tiles import _product


@triton.jit
def score_tiles(
    rows, classes, class_square,
    low,  # (rows, groups of classes): the lowest score of each group
    n, n_rows, n_groups, first_group, width,
    GROUP: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, DEEP: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Give the square of each distance but for the row's own, the lowest of each group."""
    blocks = tl.cdiv(n_rows, BLOCK_B)
    tile = tl.program_id(0) // blocks
    first_row = tl.program_id(0) % blocks * BLOCK_B
    row = first_row + tl.arange(0, BLOCK_B)
    at = tile * BLOCK_C + tl.arange(0, BLOCK_C)
    product = _product(
        rows, classes, first_row, tile * BLOCK_C, width,
        PARTS, BLOCK_B, BLOCK_C, DEEP, 0, DESCRIBED,
    )  # fmt: skip
    score = tl.load(class_square + at)[None, :] - 2 * product
    score = tl.where((at < n)[None, :], score, float("inf"))
    if GROUP > 1:
        score = tl.min(tl.reshape(score, (BLOCK_B, BLOCK_C // GROUP, GROUP)), 2)
    groups: tl.constexpr = BLOCK_C // GROUP
    group = first_group + tile * groups + tl.arange(0, groups)
    out = low + row[:, None].to(tl.int64) * n_groups + group[None, :]
    tl.store(out, score, mask=(row < n_rows)[:, None] & (group < n_groups)[None, :])


@triton.jit
def take(
    low, lowest, groups, n_groups, n_taken, GROUPS: tl.constexpr, TAKEN: tl.constexpr
):  # fmt: skip
    """Find the lowest numbers of a row, in order; of equal ones the first."""
    row = tl.program_id(0)
    at = tl.arange(0, GROUPS)
    number = tl.load(low + row.to(tl.int64) * n_groups + at, mask=at < n_groups, other=float("inf"))
    at = tl.where(at < n_groups, at, 2147483647)
    order = tl.arange(0, TAKEN)
    found = tl.full((TAKEN,), float("inf"), tl.float32)
    place = tl.zeros((TAKEN,), tl.int32)
    for step in range(n_taken):
        least = tl.min(number, 0)
        first = tl.min(tl.where(number == least, at, 2147483647), 0)
        found = tl.where(order == step, least, found)
        place = tl.where(order == step, first, place)
        gone = at == first
        number = tl.where(gone, float("inf"), number)
        at = tl.where(gone, 2147483647, at)
    out = row * n_taken + order
    tl.store(lowest + out, found, mask=order < n_taken)
    tl.store(groups + out, place, mask=order < n_taken)


@triton.jit
def choose(
    x, prototypes, temperature,
    low, groups,  # (rows, n_taken), lowest first
    row_square, row_error, largest,  # largest[0]: square of a class; largest[1]: its error
    distances, found, is_open,
    n_classes, n_channels, n_taken, k, is_all, rounding, nearly,
    ROOT: tl.constexpr, COSINE: tl.constexpr, SCALED: tl.constexpr,
    GROUP: tl.constexpr, TAKEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Measure what could be among the k nearest by subtraction in float64, and sort it."""
    row = tl.program_id(0)
    blocks: tl.constexpr = TAKEN * GROUP // BLOCK_N
    each: tl.constexpr = BLOCK_N
    key = tl.full((blocks, each), float("inf"), tl.float64)
    klass = tl.full((blocks, each), 2147483647, tl.int32)
    which = tl.arange(0, blocks)[:, None]
    for block in range(tl.cdiv(n_taken * GROUP, each)):
        number = block * each + tl.arange(0, each)
        place = number // GROUP
        group = tl.load(groups + row * n_taken + place, mask=place < n_taken, other=0)
        one = group.to(tl.int64) * GROUP + number % GROUP
        known = (place < n_taken) & (one < n_classes)
        square = tl.zeros((each, BLOCK_D), tl.float64)
        if COSINE:
            own = tl.zeros((each, BLOCK_D), tl.float64)
            whole = tl.zeros((each, BLOCK_D), tl.float64)
        for start in range(0, n_channels, BLOCK_D):
            at = start + tl.arange(0, BLOCK_D)
            inside = at < n_channels
            u = tl.load(x + row.to(tl.int64) * n_channels + at, mask=inside, other=0.0)
            u = u.to(tl.float64)[None, :]
            v = tl.load(
                prototypes + one[:, None] * n_channels + at[None, :],
                mask=known[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float64)
            weight = tl.full((BLOCK_D,), 1.0, tl.float64)
            if SCALED:
                t = tl.load(temperature + at, mask=inside, other=1.0).to(tl.float64)
                weight = 1.0 / t
            if COSINE:
                square += u * v * weight[None, :]
                own += v * v * weight[None, :]
                whole += u * u * weight[None, :]
            else:
                gap = tl.where(inside[None, :], u - v, 0.0)
                square += gap * gap * weight[None, :]
        far = tl.sum(square, 1)
        if COSINE:
            length = tl.sum(own, 1) * tl.sum(whole, 1)
            far = 1.0 - far / tl.sqrt(tl.where(length > 0, length, 1.0))
            far = tl.where(length > 0, far, 1.0)
        far = tl.where(known, far, float("inf"))
        key = tl.where(which == block, far[None, :], key)
        klass = tl.where(
            which == block, tl.where(known, one, 2147483647).to(tl.int32)[None, :], klass
        )

    order = tl.arange(0, BLOCK_K)
    sorted_key = tl.full((BLOCK_K,), float("inf"), tl.float64)
    sorted_class = tl.zeros((BLOCK_K,), tl.int32)
    for step in range(k + 1):
        least = tl.min(tl.min(key, 1), 0)
        first = tl.min(tl.min(tl.where(key == least, klass, 2147483647), 1), 0)
        sorted_key = tl.where(order == step, least, sorted_key)
        sorted_class = tl.where(order == step, first, sorted_class)
        key = tl.where(klass == first, float("inf"), key)
    out = row * k + order
    result = tl.sqrt(sorted_key) if ROOT else sorted_key
    tl.store(distances + out, result.to(tl.float32), mask=order < k)
    tl.store(found + out, sorted_class.to(tl.int64), mask=order < k)

    # Open: two that are nearly equal, or a class left out that could be one of the k.
    is_close = 0
    last = tl.full((), float("-inf"), tl.float64)
    for step in range(k + 1):
        now = tl.sum(tl.where(order == step, sorted_key, 0.0), 0)
        limit = now * nearly
        if COSINE:
            limit = tl.maximum(limit, 1e-13)
        clear = (now - last > limit) | (now == float("inf"))
        is_close = tl.where(clear, is_close, 1)
        last = now
    nearest = tl.sum(tl.where(order == 0, sorted_key, 0.0), 0)
    least = 1e-8 if COSINE else -1.0
    is_close = tl.where((nearest > least) & (nearest < float("inf")), is_close, 1)
    kth = tl.load(low + row * n_taken + k - 1)
    final = tl.load(low + row * n_taken + n_taken - 1)
    u_square = tl.load(row_square + row)
    v_square = tl.load(largest)
    size = tl.sqrt(u_square) + tl.load(row_error + row)
    far_out = tl.sqrt(v_square)
    lost = tl.load(row_error + row) * far_out + size * tl.load(largest + 1)
    slack = 4 * lost + 2 * rounding * (v_square + 2 * size * far_out)
    is_wide = (final - kth > slack) | ((is_all != 0) & (slack < float("inf")))
    is_close = tl.where(is_wide, is_close, 1)
    tl.store(is_open + row, is_close != 0)

"""Kernels of the head that work on tiles of a matrix product, written in Triton.

A product of two tables of vectors, one a row, is taken of numbers that the matrix units can hold:
bfloat16, or float32 rounded to TF32's ten digits. With ``PARTS == 3`` a row holds each number twice
as what it rounds to and what is left, and three products give nearly all digits of float32.
Tables are padded with zeros to whole tiles, so no product asks where it ends. A table of bfloat16
that lies where its gradient in float32 will be is spread: ``SPREAD`` numbers, then as much room.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _rounded(number, DTYPE: tl.constexpr):
    """Round to what the matrix units hold, to even."""
    if DTYPE == tl.float32:  # noqa: SIM300
        bits = number.to(tl.int32, bitcast=True)
        bits = (bits + 0x0FFF + ((bits >> 13) & 1)) & -0x2000
        return bits.to(tl.float32, bitcast=True)
    return number.to(DTYPE)


@triton.jit
def _column(at, SPREAD: tl.constexpr):
    """Say where in its row a channel lies."""
    return at // SPREAD * (2 * SPREAD) + at % SPREAD if SPREAD else at


@triton.jit
def _places(
    step, steps, width, DEEP: tl.constexpr, SPREAD: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Say from which columns of either table a step of a product comes."""
    if PARTS == 1:
        from_b = step * DEEP
        from_a = _column(from_b, SPREAD)
    else:  # what was left first: the matrix units cut a sum off at its size
        part = step // steps
        from_a = (step - part * steps) * DEEP
        from_b = from_a + (part == 1) * width
        from_a = from_a + (part == 0) * width
    return from_a, from_b


@triton.jit
def _product(
    a, b, first_a, first_b, width,
    PARTS: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr, DEEP: tl.constexpr,
    SPREAD: tl.constexpr = 0,  # of ``a``
    DESCRIBED: tl.constexpr = False,  # the tables are descriptors, which read a tile at once
):  # fmt: skip
    """Multiply rows of ``a`` by rows of ``b``."""
    total = tl.zeros((BLOCK_A, BLOCK_B), tl.float32)
    steps = width // DEEP
    if DESCRIBED:
        for step in range(PARTS * steps):
            from_a, from_b = _places(step, steps, width, DEEP, SPREAD, PARTS)
            left = a.load([first_a, from_a])
            right = b.load([first_b, from_b])
            total = tl.dot(left, tl.trans(right), total, input_precision="tf32")
    else:
        stride = width * (2 if PARTS == 3 else 1)
        deep = tl.arange(0, DEEP)
        a_rows = first_a + tl.arange(0, BLOCK_A)
        b_rows = first_b + tl.arange(0, BLOCK_B)
        a += a_rows.to(tl.int64)[:, None] * (2 * stride if SPREAD else stride) + deep[None, :]
        b += b_rows.to(tl.int64)[:, None] * stride + deep[None, :]
        if PARTS == 3 and BLOCK_A * BLOCK_B == 4096:  # room for two sums: all is read once
            rest = tl.zeros((BLOCK_A, BLOCK_B), tl.float32)
            for step in range(steps):
                at = step * DEEP
                high_a, low_a = tl.load(a + at), tl.load(a + width + at)
                high_b, low_b = tl.trans(tl.load(b + at)), tl.trans(tl.load(b + width + at))
                rest = tl.dot(low_a, high_b, rest, input_precision="tf32")
                rest = tl.dot(high_a, low_b, rest, input_precision="tf32")
                total = tl.dot(high_a, high_b, total, input_precision="tf32")
            total += rest
        else:
            for step in range(PARTS * steps):
                from_a, from_b = _places(step, steps, width, DEEP, SPREAD, PARTS)
                from_a = tl.multiple_of(from_a, DEEP)
                from_b = tl.multiple_of(from_b, DEEP)
                left, right = tl.load(a + from_a), tl.load(b + from_b)
                total = tl.dot(left, tl.trans(right), total, input_precision="tf32")
    return total


@triton.jit
def place(
    vectors,  # (n, n_channels)
    middle,  # (n_channels,)
    temperature,  # (n_channels,)
    placed,  # (padded n, width), twice as wide with three parts
    across,  # the same, channels by rows
    square,  # (padded n,): of what was rounded
    error,  # (padded n,): length of what was lost
    n,
    n_padded,
    n_channels,
    width,
    SCALED: tl.constexpr,
    UNIT: tl.constexpr,
    ACROSS: tl.constexpr,
    ERROR: tl.constexpr,
    PARTS: tl.constexpr,
    SPREAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Centre and scale vectors, to unit length where asked, and round them."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row[:, None].to(tl.int64)
    dtype = placed.dtype.element_ty
    copies: tl.constexpr = 2 if PARTS == 3 else 1
    length = tl.zeros((ROWS,), tl.float32)
    if UNIT:
        for start in range(0, n_channels, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = (row < n)[:, None] & (at < n_channels)[None, :]
            number = tl.load(vectors + here * n_channels + at[None, :], mask=inside, other=0.0)
            if SCALED:
                scale = tl.rsqrt(tl.load(temperature + at, mask=at < n_channels, other=1.0))
                number = number * scale[None, :]
            length += tl.sum(number * number, 1)
        length = tl.sqrt(length)
    found = tl.zeros((ROWS,), tl.float32)
    lost = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        known = at < n_channels
        inside = (row < n)[:, None] & known[None, :]
        number = tl.load(vectors + here * n_channels + at[None, :], mask=inside, other=0.0)
        centre = tl.load(middle + at, mask=known, other=0.0)[None, :]
        scale = tl.full((BLOCK,), 1.0, tl.float32)
        if SCALED:
            scale = tl.rsqrt(tl.load(temperature + at, mask=known, other=1.0))
        if UNIT:
            by = tl.where(length > 0, 1 / tl.where(length > 0, length, 1.0), 0.0)
            number = number * scale[None, :] * by[:, None] - centre
        else:
            number = (number - centre) * scale[None, :]
        number = tl.where(inside, number, 0.0)
        high = _rounded(number, dtype)
        rest = number - high.to(tl.float32)
        low = _rounded(rest, dtype)
        kept = high.to(tl.float32)
        if PARTS == 3:
            kept += low.to(tl.float32)
        found += tl.sum(kept * kept, 1)
        if ERROR:
            lost += tl.sum((number - kept) * (number - kept), 1)
        stride = (2 if SPREAD else copies) * width
        out = placed + here * stride + _column(at, SPREAD)[None, :]
        stored = (row < n_padded)[:, None] & (at < width)[None, :]
        tl.store(out, high, mask=stored)
        if PARTS == 3:
            tl.store(out + width, low, mask=stored)
        if ACROSS:
            out = across + at[None, :].to(tl.int64) * (copies * n_padded) + row[:, None]
            tl.store(out, high, mask=stored)
            if PARTS == 3:
                tl.store(out + n_padded, low, mask=stored)
    if UNIT:
        found += tl.where((length > 0) | (row >= n), 0.0, 1.0)
    tl.store(square + row, found, mask=row < n_padded)
    if ERROR:
        tl.store(error + row, tl.sqrt(lost), mask=row < n_padded)


@triton.jit
def _measured(
    rows, classes, row_square, class_square, first_row, first_class, width, lift, least,
    ROOT: tl.constexpr, PARTS: tl.constexpr, SPREAD: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, DEEP: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Measure a tile, classes by rows; give one over the distance too, if a root."""
    product = _product(
        classes, rows, first_class, first_row, width,
        PARTS, BLOCK_C, BLOCK_B, DEEP, SPREAD, DESCRIBED,
    )  # fmt: skip
    row = first_row + tl.arange(0, BLOCK_B)
    at = first_class + tl.arange(0, BLOCK_C)
    size = tl.load(class_square + at)[:, None] + tl.load(row_square + row)[None, :]
    square = tl.maximum(size - (2 - 2 * lift) * product, least)
    inverse = tl.rsqrt(square) if ROOT else square
    return square * inverse if ROOT else square, inverse


@triton.jit
def _logits(distance, adjustment, target, row, at, n, n_rows, first, rate, ADJUSTED: tl.constexpr):
    """Give logits of a tile; what is not there and the rows' own classes are left out."""
    logit = -rate * distance
    known = at < n
    if ADJUSTED:
        logit += tl.load(adjustment + first + at, mask=known, other=0.0)[:, None]
    own = tl.load(target + row, mask=row < n_rows, other=-1)
    return tl.where(known[:, None] & ((first + at)[:, None] != own[None, :]), logit, float("-inf"))


@triton.jit
def sum_tiles(
    rows, classes, row_square, class_square, adjustment, target,
    parts,  # (rows, tiles of classes): logarithm of the tile's sum
    stored,  # (classes, rows): distances, where they are few enough to be kept
    n, first, n_rows, n_rows_padded, n_tiles, width, rate, lift, least,
    STORED: tl.constexpr, ROOT: tl.constexpr, ADJUSTED: tl.constexpr, PARTS: tl.constexpr,
    SPREAD: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, DEEP: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Sum ``exp(logit)`` over each tile of classes."""
    blocks = tl.cdiv(n_rows, BLOCK_B)
    tile = tl.program_id(0) // blocks
    first_row = tl.program_id(0) % blocks * BLOCK_B
    row = first_row + tl.arange(0, BLOCK_B)
    at = tile * BLOCK_C + tl.arange(0, BLOCK_C)
    distance, _ = _measured(
        rows, classes, row_square, class_square, first_row, tile * BLOCK_C, width, lift, least,
        ROOT, PARTS, SPREAD, BLOCK_B, BLOCK_C, DEEP, DESCRIBED,
    )  # fmt: skip
    if STORED:
        tl.store(stored + at[:, None] * n_rows_padded + row[None, :], distance)
    logit = _logits(distance, adjustment, target, row, at, n, n_rows, first, rate, ADJUSTED)
    peak = tl.max(logit, 0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(logit - peak[None, :]), 0)
    place = row.to(tl.int64) * n_tiles + first // BLOCK_C + tile
    tl.store(parts + place, tl.log(total) + peak, mask=row < n_rows)


@triton.jit
def merge_tiles(
    x, prototypes, temperature, adjustment, target, parts,
    log_total, own_pull, loss, following,
    n_rows, n_classes, n_tiles, n_channels, rate, least,
    ROOT: tl.constexpr, SCALED: tl.constexpr, ADJUSTED: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the row's own class, by subtraction, to the sums of all tiles; chain equal targets.

    A target that is no class gives NaN, and nothing is read where it would be.
    """
    row = tl.program_id(0)
    own = tl.load(target + row)
    klass = tl.minimum(tl.maximum(own, 0), n_classes - 1)
    square = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, n_channels, BLOCK_D):
        at = start + tl.arange(0, BLOCK_D)
        inside = at < n_channels
        difference = tl.load(x + row.to(tl.int64) * n_channels + at, mask=inside, other=0.0)
        difference -= tl.load(prototypes + klass * n_channels + at, mask=inside, other=0.0)
        if SCALED:
            difference *= tl.rsqrt(tl.load(temperature + at, mask=inside, other=1.0))
        square += difference * difference
    distance = tl.sum(square, 0)
    if ROOT:
        distance = tl.sqrt(distance)
    logit = -rate * distance
    if ADJUSTED:
        logit += tl.load(adjustment + klass)
    logit = tl.where(klass == own, logit, float("nan"))

    peak = tl.full((BLOCK_T,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_T,), tl.float32)
    for start in range(0, n_tiles, BLOCK_T):
        at = start + tl.arange(0, BLOCK_T)
        part = tl.load(
            parts + row.to(tl.int64) * n_tiles + at, mask=at < n_tiles, other=float("-inf")
        )
        higher = tl.maximum(peak, part)
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - shift) + tl.exp(part - shift)
        peak = higher
    highest = tl.maximum(tl.max(peak, 0), logit)
    others = tl.sum(total * tl.exp(peak - highest), 0)
    whole = others + tl.exp(logit - highest)
    log_whole = tl.log(whole) + highest
    tl.store(log_total + row, log_whole)
    # 1 - p is what the others have: no digits cancel. So is the loss where p is nearly 1.
    missing = others / whole
    pull = -missing
    if ROOT:
        pull = pull / tl.maximum(distance, least)
    tl.store(own_pull + row, pull)
    tl.store(loss + row, log_whole - logit)

    # The next row of the same class; -1 before, in a table of its own, says it is the first.
    after = n_rows
    before = n_rows
    for start in range(0, n_rows, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        same = (tl.load(target + at, mask=at < n_rows, other=-1) == own) & (at < n_rows)
        after = tl.minimum(after, tl.min(tl.where(same & (at > row), at, n_rows), 0))
        before = tl.minimum(before, tl.min(tl.where(same, at, n_rows), 0))
    tl.store(following + row, after)
    tl.store(following + n_rows + row, before)


@triton.jit
def pull_tiles(
    rows, classes, row_square, class_square, adjustment, target, log_total, grad,
    pull,  # (classes, rows), twice as wide with three parts
    class_sum,  # (tiles of rows, classes)
    row_sum,  # (tiles of classes, rows)
    stored,
    n, n_padded, first, n_rows, n_rows_padded, width, rate, lift, least, factor,
    GRAD_STRIDE: tl.constexpr, ROW_SUMS: tl.constexpr, STORED: tl.constexpr,
    ROOT: tl.constexpr, ADJUSTED: tl.constexpr, PARTS: tl.constexpr, SPREAD: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, DEEP: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Measure a tile again and give what multiplies ``x - c`` in the gradients."""
    blocks = n_rows_padded // BLOCK_B
    tile = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    first_row = block * BLOCK_B
    row = first_row + tl.arange(0, BLOCK_B)
    at = tile * BLOCK_C + tl.arange(0, BLOCK_C)
    if STORED:
        distance = tl.load(stored + at[:, None] * n_rows_padded + row[None, :])
        inverse = 1 / distance if ROOT else distance
    else:
        distance, inverse = _measured(
            rows, classes, row_square, class_square, first_row, tile * BLOCK_C, width,
            lift, least, ROOT, PARTS, SPREAD, BLOCK_B, BLOCK_C, DEEP, DESCRIBED,
        )  # fmt: skip
    logit = _logits(distance, adjustment, target, row, at, n, n_rows, first, rate, ADJUSTED)
    here = row < n_rows
    weight = factor * tl.load(grad + row * GRAD_STRIDE, mask=here, other=0.0)
    peak = tl.load(log_total + row, mask=here, other=float("inf"))
    slope = tl.exp(logit - peak[None, :]) * weight[None, :]
    if ROOT:
        slope = slope * inverse
    slope = tl.where(here[None, :], slope, 0.0)
    dtype = pull.dtype if DESCRIBED else pull.dtype.element_ty
    copies: tl.constexpr = 2 if PARTS == 3 else 1
    high = _rounded(slope, dtype)
    kept = high.to(tl.float32)
    if DESCRIBED:
        pull.store([tile * BLOCK_C, first_row], high)
    else:
        out = pull + at[:, None].to(tl.int64) * (copies * n_rows_padded) + row[None, :]
        tl.store(out, high)
    if PARTS == 3:
        low = _rounded(slope - kept, dtype)
        if DESCRIBED:
            pull.store([tile * BLOCK_C, n_rows_padded + first_row], low)
        else:
            tl.store(out + n_rows_padded, low)
        kept += low.to(tl.float32)
    tl.store(class_sum + block * n_padded + at, tl.sum(kept, 1))
    if ROW_SUMS:
        place = (first // BLOCK_C + tile) * n_rows_padded + row
        tl.store(row_sum + place, tl.sum(kept, 0))


@triton.jit
def gradient_tiles(
    pull, rows_across, classes, prototypes, middle, class_sum, temperature,
    gradient,  # (classes of the chunk, channels)
    energy,  # (tiles of classes, channels): what the gradient of temperatures adds up
    n, n_padded, n_row_blocks, n_rows_padded, n_channels, width, first_tile,
    SCALED: tl.constexpr, ENERGY: tl.constexpr, PARTS: tl.constexpr, SPREAD: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, DEEP: tl.constexpr, DESCRIBED: tl.constexpr,
    WHOLE: tl.constexpr,  # classes (prototypes, of three parts) and gradient are descriptors too
):  # fmt: skip
    """Pull each class by all rows: ``sum of pull (u - v)``.

    The gradient may lie where the classes are: a program reads its own part of them first.
    """
    blocks = tl.cdiv(n_channels, BLOCK_D)
    tile = tl.program_id(0) // blocks
    at = tile * BLOCK_C + tl.arange(0, BLOCK_C)
    first_channel = tl.program_id(0) % blocks * BLOCK_D
    channel = first_channel + tl.arange(0, BLOCK_D)
    product = _product(
        pull, rows_across, tile * BLOCK_C, first_channel, n_rows_padded,
        PARTS, BLOCK_C, BLOCK_D, DEEP, 0, DESCRIBED,
    )  # fmt: skip
    inside = channel < n_channels
    here = (at < n)[:, None] & inside[None, :]
    out = at[:, None].to(tl.int64) * n_channels + channel[None, :]
    scale = tl.full((BLOCK_D,), 1.0, tl.float32)
    if SCALED:
        scale = tl.rsqrt(tl.load(temperature + channel, mask=inside, other=1.0))
    if PARTS == 3:  # the same to the last digits, and half as much to read
        centre = tl.load(middle + channel, mask=inside, other=0.0)
        if WHOLE:
            vector = prototypes.load([tile * BLOCK_C, first_channel])
        else:
            vector = tl.load(prototypes + out, mask=here, other=0.0)
        vector = tl.where(here, (vector - centre[None, :]) * scale[None, :], 0.0)
    elif WHOLE:
        vector = classes.load([tile * BLOCK_C, _column(first_channel, SPREAD)]).to(tl.float32)
    else:
        stride = 2 * width if SPREAD else width
        placed = at[:, None].to(tl.int64) * stride + _column(channel, SPREAD)[None, :]
        vector = tl.load(classes + placed).to(tl.float32)
        tl.debug_barrier()  # not the numbers that another thread has written there
    total = tl.zeros((BLOCK_C,), tl.float32)
    for block in range(n_row_blocks):
        total += tl.load(class_sum + block * n_padded + at)
    gone = total[:, None] * vector
    if ENERGY:
        moment = tl.sum(vector * (gone - 2 * product), 0)
        tl.store(energy + (first_tile + tile) * n_channels + channel, moment, mask=inside)
    if WHOLE:
        gradient.store([tile * BLOCK_C, first_channel], (product - gone) * scale[None, :])
    else:
        tl.store(gradient + out, (product - gone) * scale[None, :], mask=here)


@triton.jit
def add_own(
    x, prototypes, temperature, target, own_pull, grad, following,
    gradient,  # (classes, channels), added to
    row_gradient,  # (rows, channels): what a row's own class adds to its gradient
    energy,  # (rows, channels)
    n_rows, n_classes, n_channels, factor,
    GRAD_STRIDE: tl.constexpr, SCALED: tl.constexpr, OF_CLASSES: tl.constexpr,
    OF_ROWS: tl.constexpr, ENERGY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Pull each class by the rows that are its own, by subtraction, one after the other."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_channels
    own = tl.minimum(tl.maximum(tl.load(target + row), 0), n_classes - 1)
    prototype = tl.load(prototypes + own * n_channels + at, mask=inside, other=0.0)
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if SCALED:
        weight = 1 / tl.load(temperature + at, mask=inside, other=1.0)
    if OF_ROWS or ENERGY:
        pull = factor * tl.load(own_pull + row) * tl.load(grad + row * GRAD_STRIDE)
        here = row.to(tl.int64) * n_channels + at
        difference = tl.load(x + here, mask=inside, other=0.0) - prototype
        if OF_ROWS:
            tl.store(row_gradient + here, -pull * difference * weight, mask=inside)
        if ENERGY:
            tl.store(energy + here, pull * difference * difference * weight, mask=inside)
    if OF_CLASSES:  # noqa: SIM102 - known to the compiler, unlike what follows
        if tl.load(following + n_rows + row) == row:
            total = tl.zeros((BLOCK,), tl.float32)
            now = row
            while now < n_rows:
                pull = factor * tl.load(own_pull + now) * tl.load(grad + now * GRAD_STRIDE)
                there = x + now.to(tl.int64) * n_channels + at
                total += pull * (tl.load(there, mask=inside, other=0.0) - prototype)
                now = tl.load(following + now)
            out = gradient + own * n_channels + at
            tl.store(out, tl.load(out, mask=inside, other=0.0) + total * weight, mask=inside)

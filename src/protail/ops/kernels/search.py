"""The k nearest prototypes in Triton kernels: products choose, subtraction in float64 decides.

The lowest score of each group of classes is all that the products leave. The k nearest lie in the
k groups whose lowest scores are lowest, as long as scores are exact; they are off by a bound that
is known, so a few groups more are taken, and their classes measured exactly. Rows for which that
may not be enough are told, and are searched again without kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import memory_budget, pieces
from protail.ops._precision import unit_rows
from protail.ops._space import Inputs
from protail.ops.distance import Cosine, Distance
from protail.ops.kernels._device import (
    CLASS_STEP,
    Tiles,
    interpreted,
    launch,
    product_tiles,
    square_or_root,
    whole,
)
from protail.ops.kernels._placed import Placing, middle_of

MOST = 32
"""The largest k."""

# Groups to take beyond the k that exact scores would need.
_MORE = 8
# Classes of a group, where they are too many for a table of all scores; and what is too many.
_GROUP, _FEW_CLASSES = 64, 2**14
# Scores of a row from which a program takes the lowest without torch's sorting.
_TAKEN_FROM = 2**14
_CHUNK_BYTES = 128 * 2**20
# Squares that differ by less, as a part of themselves, are compared by other means.
_NEARLY_EQUAL = 2.0**-35
_PRECISION = "tf32"


class Found(NamedTuple):
    """The k nearest of each row, and which rows must be searched again."""

    distances_bk: Tensor
    classes_bk: Tensor
    open_b: Tensor


def find(inputs: Inputs, k: int, distance: Distance, budget: int | None = None) -> Found:
    """Find the k nearest classes of each row.

    Parameters
    ----------
    inputs : Inputs
        In float32 or shorter, with a temperature by channel or none.
    k : int
        At most `MOST`.
    distance : Distance
        The Euclidean distance, its square, or cosine.
    budget : int, optional
        Bytes for what is kept of rows at a time, beside a chunk of classes; by default a part of
        what is free.

    Returns
    -------
    Found
        Exact but for the rows of ``open_b``.
    """
    x, prototypes, temperature = (
        None if each is None else each.float().contiguous() for each in inputs
    )
    assert x is not None
    assert prototypes is not None
    n_rows, n_classes = len(x), len(prototypes)
    tiles = product_tiles(n_rows, 1, torch.float32, x.device)
    group = _group(n_classes)
    n_groups = -(-n_classes // group)
    of_a_row = 8 * (n_groups + x.shape[1])
    if budget is None:
        budget = memory_budget(x.device, n_rows * of_a_row)
    size = max(tiles.right, budget // of_a_row // tiles.right * tiles.right)
    found = [
        _of_rows(x[rows], prototypes, temperature, k, distance, tiles, group)
        for rows in pieces(n_rows, size)
    ]
    if len(found) == 1:
        return found[0]
    return Found(*(torch.cat(part) for part in zip(*found, strict=True)))


def cannot_find(distance: Distance, k: int) -> str | None:
    """Say why the kernels do not know a distance or so many neighbours; None if they do."""
    if type(distance).difference is not Distance.difference:
        return f"the distance {distance!r} maps vectors; expected one that subtracts them."
    return f"k={k}; expected at most {MOST} for kernels." if k > MOST else None


def _group(n_classes: int) -> int:
    if interpreted():
        return 4 if n_classes > 64 else 1
    return _GROUP if n_classes > _FEW_CLASSES else 1


def _of_rows(
    x: Tensor,
    prototypes: Tensor,
    temperature: Tensor | None,
    k: int,
    distance: Distance,
    tiles: Tiles,
    group: int,
) -> Found:
    from protail.ops.kernels import _found

    (n_rows, n_channels), n_classes = x.shape, len(prototypes)
    unit = isinstance(distance, Cosine)
    placing = Placing(
        _middle(prototypes, temperature, unit), temperature, _PRECISION, tiles.deep, unit
    )
    rows = placing.place(x, tiles.right, measured=_room(x, whole(n_rows, tiles.right)))
    n_groups = -(-n_classes // group)
    step = tiles.left if interpreted() else CLASS_STEP
    low = x.new_empty(n_rows, n_groups)
    bounds = x.new_empty(2, whole(n_classes, step))
    at_a_time = max(1, _CHUNK_BYTES // (4 * rows.width) // step) * step
    for chunk in pieces(n_classes, at_a_time):
        padded = chunk.start + whole(chunk.stop - chunk.start, step)
        some = bounds[0, chunk.start : padded], bounds[1, chunk.start : padded]
        classes = placing.place(prototypes[chunk], step, measured=some)
        grid = (len(classes.square_n) // tiles.left * -(-n_rows // tiles.right),)
        launch(_found.score_tiles, grid,
            tiles.table(rows.vectors, tiles.right), tiles.table(classes.vectors, tiles.left),
            classes.square_n, low, classes.n, n_rows, n_groups, chunk.start // group, rows.width,
            GROUP=group, PARTS=placing.parts, BLOCK_B=tiles.right, BLOCK_C=tiles.left,
            DEEP=tiles.deep, DESCRIBED=tiles.described, **tiles.options(),
        )  # fmt: skip
    n_taken = min(k + _MORE, n_groups)
    taken = max(16 // group, 1 << (n_taken - 1).bit_length())
    lowest, groups = _lowest(low, n_taken, taken)
    largest = bounds.amax(1)
    distances = x.new_empty(n_rows, k)
    found = torch.empty(n_rows, k, dtype=torch.int64, device=x.device)
    is_open = torch.empty(n_rows, dtype=torch.bool, device=x.device)
    launch(_found.choose, (n_rows,),
        x, prototypes, temperature, lowest, groups,
        rows.square_n, rows.error_n, largest, distances, found, is_open,
        n_classes, n_channels, n_taken, k, int(n_taken == n_groups),
        torch.finfo(torch.float32).eps * (4 + n_channels / 4), _NEARLY_EQUAL,
        ROOT=bool(square_or_root(distance)), COSINE=unit, SCALED=temperature is not None,
        GROUP=group, TAKEN=taken, BLOCK_N=min(16, taken * group), BLOCK_D=128,
        BLOCK_K=1 << k.bit_length(), num_warps=4,
    )  # fmt: skip
    return Found(distances, found, is_open)


def _lowest(low: Tensor, n_taken: int, room: int) -> tuple[Tensor, Tensor]:
    """Give the lowest scores of each row, in order, and whose they are."""
    from protail.ops.kernels import _found

    n_rows, n_groups = low.shape
    if n_groups > _TAKEN_FROM:
        found = low.topk(n_taken, largest=False)
        return found.values, found.indices.int()
    lowest = low.new_empty(n_rows, n_taken)
    groups = torch.empty(n_rows, n_taken, dtype=torch.int32, device=low.device)
    wide = max(16, 1 << (n_groups - 1).bit_length())
    launch(_found.take, (n_rows,), low, lowest, groups, n_groups, n_taken,
        GROUPS=wide, TAKEN=room, num_warps=min(16, max(4, wide // 1024)),
    )  # fmt: skip
    return lowest, groups


def _room(like: Tensor, n: int) -> tuple[Tensor, Tensor]:
    square_n, error_n = like.new_empty(2, n).unbind()
    return square_n, error_n


def _middle(prototypes: Tensor, temperature: Tensor | None, unit: bool) -> Tensor:
    if not unit:
        return middle_of(prototypes)
    stride = max(1, -(-prototypes.numel() // 2**16))
    some = prototypes[::stride]
    return unit_rows(some if temperature is None else some * temperature.rsqrt())[0].mean(0)

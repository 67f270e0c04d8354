"""The nearest classes of each row, exactly, over chunks of classes and rows.

Matrix products choose the candidates. Only where their rounding leaves a choice open are distances
computed again by subtraction in float64, so the answer is that of exact arithmetic on the inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import check_inputs
from protail.ops._parts import TopK
from protail.ops._precision import whole_products
from protail.ops._rows import own_temperature
from protail.ops._space import Points, Space
from protail.ops.chunked import MEMORY_BUDGET, Blocks, pieces

# Scores of this size stay in a CPU's last cache between the product and the minimum. Smaller ones
# would only start more parallel regions, which is slow where other programs keep the cores busy.
_CACHED_BYTES = 16 * 2**20
_CACHED_CLASSES = 8192
_CACHED_ROWS = 64
# Elements of the vectors that are subtracted at a time.
_SUBTRACTED_AT_A_TIME = 2**20
# Copies of a block's entries that a list of candidate pairs needs, as against a plain block.
_PAIR_COPIES = 4


@torch.no_grad()
def nearest(
    x: Tensor,
    prototypes: Tensor,
    *,
    distance: str = "euclidean",
    temperature: Tensor | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> Tensor:
    """Find the nearest prototype of each row; of equally near ones the first.

    Parameters
    ----------
    x, prototypes, distance, temperature
        As in `protail.ops.distances`.
    memory_budget : int
        Bytes to use at most beside inputs and result.

    Returns
    -------
    Tensor
        Class index of each row.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import nearest
    >>> nearest(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
    tensor([0])
    """
    scale = check_inputs(x, prototypes, distance, temperature)
    with whole_products(x.device):
        space = Space(x, prototypes, distance, scale)
        blocks = Blocks.within(memory_budget, x, prototypes, space.dtype.itemsize)
        if x.device.type == "cpu":
            blocks = _cached(blocks, space.dtype.itemsize)
        lowest = _Lowest.of_none(len(x), space.dtype, x.device)
        for chunk in pieces(len(prototypes), blocks.classes):
            classes = space.classes(prototypes[chunk], _of_chunk(scale, chunk))
            found = [
                _Lowest.of(space, space.rows(x[rows], scale), classes, chunk.start)
                for rows in pieces(len(x), blocks.rows)
            ]
            if found:
                lowest = lowest.merge(_Lowest(*map(torch.cat, zip(*found, strict=True))))
    class_b = lowest.class_b
    open_b = lowest.open_b.nonzero().squeeze(1)
    if len(open_b):
        exact = top_k(
            x[open_b],
            prototypes,
            1,
            distance=distance,
            temperature=temperature,
            memory_budget=memory_budget,
        )
        class_b[open_b] = exact.classes_bk.squeeze(1)
    return class_b


class _Lowest(NamedTuple):
    """The lowest score of some classes, and whether rounding leaves open whose it is."""

    score_b: Tensor
    class_b: Tensor
    open_b: Tensor
    slack_b: Tensor

    @classmethod
    def of_none(cls, n_rows: int, dtype: torch.dtype, device: torch.device) -> _Lowest:
        score_b = torch.full((n_rows,), torch.inf, dtype=dtype, device=device)
        class_b = torch.zeros(n_rows, dtype=torch.int64, device=device)
        open_b = torch.zeros_like(class_b, dtype=torch.bool)
        return cls(score_b, class_b, open_b, torch.zeros_like(score_b))

    @classmethod
    def of(cls, space: Space, rows: Points, classes: Points, start: int) -> _Lowest:
        score_bc, error_b = space.rank(rows, classes)
        score_b, class_b = score_bc.min(1)
        slack_b = 2 * error_b
        score_bc.scatter_(1, class_b.unsqueeze(1), torch.inf)
        open_b = score_bc.amin(1) <= score_b + slack_b
        return cls(score_b, class_b + start, open_b, slack_b)

    def merge(self, other: _Lowest) -> _Lowest:
        nearer_b = other.score_b < self.score_b
        slack_b = torch.maximum(self.slack_b, other.slack_b)
        tied_b = (other.score_b - self.score_b).abs() <= slack_b
        return _Lowest(
            torch.where(nearer_b, other.score_b, self.score_b),
            torch.where(nearer_b, other.class_b, self.class_b),
            torch.where(nearer_b, other.open_b, self.open_b) | tied_b,
            slack_b,
        )


@torch.no_grad()
def top_k(
    x: Tensor,
    prototypes: Tensor,
    k: int,
    *,
    distance: str = "euclidean",
    temperature: Tensor | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> TopK:
    """Find the k nearest prototypes of each row, nearest first, equally near ones by index.

    Parameters
    ----------
    x, prototypes, distance, temperature
        As in `protail.ops.distances`.
    k : int
        How many, at least 1 and at most the number of classes.
    memory_budget : int
        Bytes to use at most beside inputs and result.

    Returns
    -------
    TopK
        ``distances_bk`` and ``classes_bk``.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import top_k
    >>> top_k(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 1.0]]), 2)
    TopK(distances_bk=tensor([[1., 3.]]), classes_bk=tensor([[2, 0]]))
    """
    scale = check_inputs(x, prototypes, distance, temperature)
    if not 1 <= k <= len(prototypes):
        raise ValueError(f"k={k!r}; expected 1 to {len(prototypes)}, the number of classes.")
    with whole_products(x.device):
        space = Space(x, prototypes, distance, scale)
        blocks = Blocks.within(memory_budget, x, prototypes, space.dtype.itemsize * _PAIR_COPIES)
        found = []
        for rows in pieces(len(x), blocks.rows):
            placed = space.rows(x[rows], scale)
            best: TopK | None = None
            for chunk in pieces(len(prototypes), blocks.classes):
                classes = space.classes(prototypes[chunk], _of_chunk(scale, chunk))
                row_p, class_p = _candidates(space, placed, classes, k)
                class_p += chunk.start
                distance_p = _exact(space, (x[rows], prototypes, scale), row_p, class_p)
                part = TopK.of_pairs(distance_p, row_p, class_p, len(placed.vectors_nd), k)
                best = part if best is None else best.merge(part)
            assert best is not None
            found.append(best)
    if not found:
        return TopK(x.new_empty(0, k), x.new_empty(0, k, dtype=torch.int64))
    distances_bk, classes_bk = map(torch.cat, zip(*found, strict=True))
    return TopK(distances_bk.to(space.result_dtype), classes_bk)


def _candidates(space: Space, rows: Points, classes: Points, k: int) -> tuple[Tensor, ...]:
    """List the pairs that could be among the k nearest of these classes."""
    square_bc, size_bc = space.expand(rows, classes)
    error_bc = space.error(size_bc)
    kth = min(k, square_bc.shape[1])
    worst_b1 = (square_bc + error_bc).topk(kth, dim=1, largest=False).values[:, -1:]
    return (square_bc - error_bc <= worst_b1).nonzero(as_tuple=True)


def _exact(
    space: Space,
    vectors: tuple[Tensor, Tensor, Tensor | None],
    row_p: Tensor,
    class_p: Tensor,
) -> Tensor:
    x, prototypes, temperature = vectors
    exact = space.in_double()
    distance_p = torch.empty(len(row_p), dtype=exact.dtype, device=x.device)
    for part in pieces(len(row_p), max(1, _SUBTRACTED_AT_A_TIME // max(1, x.shape[1]))):
        row, column = row_p[part], class_p[part]
        distance_p[part] = exact.pairs(
            x[row], prototypes[column], own_temperature(temperature, column)
        )
    return distance_p


def _cached(blocks: Blocks, itemsize: int) -> Blocks:
    classes = min(blocks.classes, _CACHED_CLASSES)
    rows = max(_CACHED_ROWS, _CACHED_BYTES // (itemsize * classes))
    return Blocks(min(blocks.rows, rows), classes)


def _of_chunk(temperature: Tensor | None, chunk: slice) -> Tensor | None:
    if temperature is None or temperature.shape[0] == 1:
        return temperature
    return temperature[chunk]

"""The nearest classes of each row, exactly, over chunks of classes and rows.

Matrix products choose the candidates: for k classes the k + 1 that look nearest, whose distances
are then computed by subtraction in float64. Only where rounding leaves a choice open are more
looked at, so the answer is that of exact arithmetic on the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from protail._messages import unknown_name
from protail.ops import _short, kernels
from protail.ops._arguments import Blocks, check_inputs, compute_dtype, pieces
from protail.ops._parts import TopK
from protail.ops._precision import whole_products
from protail.ops._space import Inputs, Points, Space, beyond, exact_distances
from protail.ops.distance import Distance, as_distance

# Scores of this size stay in a CPU's last cache between the product and the minimum. Smaller ones
# would only start more parallel regions, which is slow where other programs keep the cores busy.
_CACHED_BYTES = 16 * 2**20
_CACHED_CLASSES = 8192
_CACHED_ROWS = 64
# Numbers of pairs of vectors that a core's cache holds in float64.
_CACHED_NUMBERS = 2**17
# Copies of a block that choosing candidates needs; that a list of all candidate pairs needs.
_COPIES = 4
_PAIR_COPIES = 32
# Pairs that are computed exactly at a time.
_PAIRS = 4096
# Distances that differ by less, as a part of themselves, are compared without a root.
_NEARLY_EQUAL = 2.0**-36
FORMS = ("auto", "kernels", "torch")


@torch.no_grad()
def nearest(
    x: Tensor,
    prototypes: Tensor,
    *,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    memory_budget: int | None = None,
    form: str = "auto",
) -> Tensor:
    """Find the nearest prototype of each row; of equally near ones the first.

    Parameters
    ----------
    x, prototypes, distance, temperature
        As in `protail.ops.distances`.
    memory_budget : int, optional
        Bytes to use at most beside inputs and result; by default `MEMORY_BUDGET`, and on a GPU
        half of what is free there.
    form : {"auto", "kernels", "torch"}
        What looks for candidates: Triton kernels (an NVIDIA GPU, temperatures by channel or none)
        or torch. The answer is the same.

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
    distance = as_distance(distance)
    inputs = Inputs(x, prototypes, check_inputs(x, prototypes, distance, temperature))
    if len(x) == 0:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    if _by_kernels(form, inputs, distance, 1):
        return _in_kernels(inputs, 1, distance, memory_budget).classes_bk.squeeze(1)
    with whole_products(x.device):
        space = distance.space(distance, *inputs, any_length=True)
        lowest = _scan(space, inputs, memory_budget, _Lowest.of)
        class_b = lowest.class_b
        if bool(lowest.open_b.any()):
            open_b = lowest.open_b.nonzero().squeeze(1)
            exact = _exactly(space, inputs.of_rows(open_b), 1, memory_budget)
            class_b[open_b] = exact.classes_bk.squeeze(1)
    return class_b


@torch.no_grad()
def highest(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor | None:
    """Find the class with the highest ``x . w + b`` of each row, where classes are many.

    Parameters
    ----------
    x : Tensor
        Rows (batch, channels).
    weights : Tensor
        (classes, channels).
    bias : Tensor
        One number a class.

    Returns
    -------
    Tensor or None
        Class index of each row as float64 gives it, of equals the first; -1 where numbers are too
        large or small. None where computing all scores is as fast: few classes, another device or
        dtype.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import highest
    >>> highest(torch.ones(1, 2), torch.eye(2), torch.zeros(2)) is None
    True
    """
    if not _short.pays(x, weights, torch.promote_types(x.dtype, weights.dtype)):
        return None
    x, weights = x.float(), weights.float()
    middle_d = weights[:: max(1, weights.numel() // 2**16)].mean(0)  # the same for all classes
    found = _short.candidates(
        x,
        (
            _short.Table.of(weights[some] - middle_d, bias[some])
            for some in pieces(len(weights), _short.CLASSES)
        ),
    )
    if found is None:
        return None
    row_p, class_p = found
    score_p = torch.zeros(len(row_p), dtype=torch.float64)
    open_p = (row_p.bincount(minlength=len(x)) > 1)[row_p].nonzero().squeeze(1)
    for some in pieces(len(open_p), max(1, _CACHED_NUMBERS // x.shape[1])):
        pair_p = open_p[some]
        product_pd = x[row_p[pair_p]].double() * weights[class_p[pair_p]]
        score_p[pair_p] = product_pd.sum(1) + bias[class_p[pair_p]]
    return _short.first_of_highest(row_p, class_p, score_p, len(x))


class _Lowest(NamedTuple):
    """The lowest score of some classes, and whether rounding leaves open whose it is."""

    score_b: Tensor
    class_b: Tensor
    open_b: Tensor
    slack_b: Tensor

    @classmethod
    def of(cls, space: Space, rows: Points, classes: Points, start: int) -> _Lowest:
        score_bc, _, error = space.rank(rows, classes)
        score_b, class_b = score_bc.min(1)
        slack_b = 2 * error.amax(1)
        score_bc.scatter_(1, class_b.unsqueeze(1), torch.inf)
        # Not "at most the slack": what is no number is open too.
        open_b = ~(score_bc.amin(1) - score_b > slack_b)
        return cls(score_b, class_b + start, open_b, slack_b)

    @classmethod
    def of_rows(cls, parts: list[_Lowest]) -> _Lowest:
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def merge(self, other: _Lowest) -> _Lowest:
        nearer_b = other.score_b < self.score_b
        slack_b = torch.maximum(self.slack_b, other.slack_b)
        tied_b = ~((other.score_b - self.score_b).abs() > slack_b)
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
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    memory_budget: int | None = None,
    form: str = "auto",
    merge: Callable[[TopK], TopK] | None = None,
) -> TopK:
    """Find the k nearest prototypes of each row, nearest first, equally near ones by index.

    Parameters
    ----------
    x, prototypes, distance, temperature
        As in `protail.ops.distances`.
    k : int
        How many, at least 1 and at most the number of classes.
    memory_budget : int, optional
        Bytes to use at most beside inputs and result; by default `MEMORY_BUDGET`, and on a GPU
        half of what is free there.
    form : {"auto", "kernels", "torch"}
        What looks for candidates: Triton kernels (an NVIDIA GPU, temperatures by channel or none)
        or torch. The answer is the same.
    merge : callable, optional
        Where these are only some of the classes: turns what was found among them into what is
        found among all.

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
    distance = as_distance(distance)
    inputs = Inputs(x, prototypes, check_inputs(x, prototypes, distance, temperature))
    if not 1 <= k <= len(prototypes):
        raise ValueError(f"k={k!r}; expected 1 to {len(prototypes)}, the number of classes.")
    if len(x) == 0:
        found = TopK(x.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=x.device))
    elif _by_kernels(form, inputs, distance, k):
        found = _in_kernels(inputs, k, distance, memory_budget)
    else:
        found = _in_torch(inputs, k, distance, memory_budget)
    found = found if merge is None else merge(found)
    return found._replace(distances_bk=found.distances_bk.to(compute_dtype(*inputs)))


def _by_kernels(form: str, inputs: Inputs, distance: Distance, k: int) -> bool:
    if form not in FORMS:
        raise ValueError(unknown_name("form", form, FORMS))
    if form == "torch" or (form == "auto" and not inputs.x_bd.is_cuda):
        return False
    reason = kernels.unsupported(*inputs, distance) or kernels.cannot_find(distance, k)
    if reason and form == "kernels":
        raise ValueError(reason)
    return reason is None


def _in_kernels(inputs: Inputs, k: int, distance: Distance, budget: int | None) -> TopK:
    """Search in kernels, and again the rows that they leave open."""
    *found, open_b = kernels.find(inputs, k, distance, budget)
    best = TopK(*found)
    if bool(open_b.any()):
        _put(best, open_b, _in_torch(inputs.of_rows(open_b), k, distance, budget))
    return best


def _in_torch(inputs: Inputs, k: int, distance: Distance, budget: int | None) -> TopK:
    with whole_products(inputs.x_bd.device):
        space = distance.space(distance, *inputs, any_length=True)
        return _exactly(space, inputs, k, budget)


def _exactly(space: Space, inputs: Inputs, k: int, budget: int | None) -> TopK:
    """Find the k nearest in two steps: what looks nearest, and what rounding leaves open."""
    short = _scan(space, inputs, budget, _Shortlist.look_for(k))
    found, nearly_equal_b = _in_order(space, inputs, short.class_bk[:, : k + 1], k)
    open_b = nearly_equal_b | short.open_b(len(inputs.prototypes_cd))
    if not bool(open_b.any()):
        return found
    far_b = ~short.slack_b.isfinite()
    if bool(far_b.any()) and (wider := inputs.of_rows(far_b).in_wider_numbers()) is not None:
        _put(found, far_b, _in_wider_numbers(space.distance, *wider, k, budget))
        open_b &= ~far_b
    if bool(open_b.any()):
        nearest_o = found.classes_bk[open_b, 0]
        _put(found, open_b, _settled(space, inputs.of_rows(open_b), nearest_o, k, budget))
    return found


def _in_wider_numbers(
    distance: Distance, inputs: Inputs, factor: float, k: int, budget: int | None
) -> TopK:
    found = _exactly(distance.space(distance, *inputs, any_length=True), inputs, k, budget)
    return found._replace(distances_bk=distance.times(found.distances_bk, factor))


def _put(found: TopK, rows_b: Tensor, part: TopK) -> None:
    for whole, some in zip(found, part, strict=True):
        whole[rows_b] = some.to(whole.dtype)


class _Shortlist(NamedTuple):
    """The classes that look nearest, by score, and twice how far scores may be off."""

    score_bk: Tensor
    class_bk: Tensor
    slack_b: Tensor
    k: int

    @classmethod
    def look_for(cls, k: int) -> Callable[[Space, Points, Points, int], _Shortlist]:
        """Look for the k nearest, for one more, and for the score that all others exceed."""

        def look(space: Space, rows: Points, classes: Points, start: int) -> _Shortlist:
            score_bc, _, error = space.rank(rows, classes)
            score_bk, class_bk = score_bc.topk(min(k + 2, score_bc.shape[1]), largest=False)
            return cls(score_bk, class_bk + start, 2 * error.amax(1), k)

        return look

    @classmethod
    def of_rows(cls, parts: list[_Shortlist]) -> _Shortlist:
        scores, classes, slacks, _ = zip(*parts, strict=True)
        return cls(torch.cat(scores), torch.cat(classes), torch.cat(slacks), parts[0].k)

    def merge(self, other: _Shortlist) -> _Shortlist:
        score_bk = torch.cat([self.score_bk, other.score_bk], 1)
        class_bk = torch.cat([self.class_bk, other.class_bk], 1)
        score_bk, place_bk = score_bk.topk(min(self.k + 2, score_bk.shape[1]), largest=False)
        slack_b = torch.maximum(self.slack_b, other.slack_b)
        return _Shortlist(score_bk, class_bk.gather(1, place_bk), slack_b, self.k)

    def open_b(self, n_classes: int) -> Tensor:
        """Mark the rows of which a class beyond the first k + 1 could be among the k nearest."""
        if n_classes <= self.k + 1:
            return ~self.slack_b.isfinite()
        return ~(self.score_bk[:, -1] - self.score_bk[:, self.k - 1] > self.slack_b)


_Part = TypeVar("_Part", _Lowest, _Shortlist)


def _scan(
    space: Space,
    inputs: Inputs,
    budget: int | None,
    look: Callable[[Space, Points, Points, int], _Part],
) -> _Part:
    """Look at all rows and classes, in pieces where they are many."""
    x, prototypes, scale = inputs
    sizes = space.dtype.itemsize, _COPIES, space.distance.vector_copies
    blocks = Blocks.within(budget, x, prototypes, *sizes)
    if x.device.type == "cpu":
        blocks = _cached(blocks, space.dtype.itemsize)
    whole: _Part | None = None
    for chunk in pieces(len(prototypes), blocks.classes):
        classes = space.classes(prototypes[chunk], _of_chunk(scale, chunk))
        parts = [
            look(space, space.rows(x[rows], scale), classes, chunk.start)
            for rows in pieces(len(x), blocks.rows)
        ]
        part = parts[0] if len(parts) == 1 else parts[0].of_rows(parts)
        whole = part if whole is None else whole.merge(part)
    assert whole is not None
    return whole


def _in_order(space: Space, inputs: Inputs, class_bk: Tensor, k: int) -> tuple[TopK, Tensor]:
    """Sort candidates by their exact distances; mark the rows where two are nearly equal."""
    class_bk = class_bk.sort(1).values
    distance_bk, order_bk = exact_distances(space, inputs, class_bk).sort(dim=1, stable=True)
    step_bk = distance_bk.diff(dim=1)
    nearly_equal_b = ~(step_bk > distance_bk[:, 1:] * _NEARLY_EQUAL).all(1)
    return TopK(distance_bk[:, :k], class_bk.gather(1, order_bk)[:, :k]), nearly_equal_b


def _settled(space: Space, inputs: Inputs, nearest_b: Tensor, k: int, budget: int | None) -> TopK:
    """Compare all classes that could be among the k nearest, whatever their number."""
    x, prototypes, scale = inputs
    blocks = Blocks.within(budget, x, prototypes, space.dtype.itemsize, _PAIR_COPIES)
    found = [torch.empty(0, k, dtype=torch.int64, device=x.device)]
    for rows in pieces(len(x), blocks.rows):
        placed = space.rows(x[rows], scale)
        best: TopK | None = None
        for chunk in pieces(len(prototypes), blocks.classes):
            classes = space.classes(prototypes[chunk], _of_chunk(scale, chunk))
            row_p, class_p = _candidates(space, placed, classes, k)
            class_p += chunk.start
            key_p = beyond(space, inputs.of_rows(rows), row_p, class_p, nearest_b[rows][row_p])
            part = TopK.of_pairs(key_p, row_p, class_p, len(placed.vectors_nd), k)
            best = part if best is None else best.merge(part)
        assert best is not None
        found.append(best.classes_bk)
    class_bk = torch.cat(found)
    # Equal but for the last digits, they may come out a bit smaller one after the other.
    distance_bk = exact_distances(space, inputs, class_bk).cummax(1).values
    return TopK(distance_bk, class_bk)


def _candidates(space: Space, rows: Points, classes: Points, k: int) -> tuple[Tensor, ...]:
    """List the pairs that could be among the k nearest of these classes."""
    score_bc, _, error = space.rank(rows, classes)
    kth_b1 = score_bc.topk(min(k, score_bc.shape[1]), dim=1, largest=False).values[:, -1:]
    slack_b1 = 2 * error.amax(1, keepdim=True)
    return (~(score_bc > kth_b1 + slack_b1)).nonzero(as_tuple=True)


def _cached(blocks: Blocks, itemsize: int) -> Blocks:
    classes = min(blocks.classes, _CACHED_CLASSES)
    rows = max(_CACHED_ROWS, _CACHED_BYTES // (itemsize * classes))
    return Blocks(min(blocks.rows, rows), classes)


def _of_chunk(temperature: Tensor | None, chunk: slice) -> Tensor | None:
    if temperature is None or temperature.shape[0] == 1:
        return temperature
    return temperature[chunk]

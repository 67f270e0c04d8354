"""The loss over chunks of classes and rows: memory stays within a budget, whatever their number.

The forward pass keeps merged parts only; the backward pass computes each chunk again. The own
class is left out of its chunk and enters by subtraction, as a part of its own. What other processes
hold of the classes is one part more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protail.ops._arguments import Blocks, check_inputs, pieces
from protail.ops._parts import Parts
from protail.ops._precision import add_rows_, full_precision, own_temperature
from protail.ops._space import Inputs
from protail.ops.distance import Distance, as_distance

# Larger pieces fall out of a CPU's caches and take twice the time.
_CACHED_BYTES = 32 * 2**20

_Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def loss(
    x: Tensor,
    prototypes: Tensor,
    target: Tensor,
    *,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    adjustment: Tensor | None = None,
    reduction: str = "mean",
    memory_budget: int | None = None,
    merge: Callable[[Parts], Parts] | None = None,
) -> Tensor:
    """Give the cross-entropy of the distance logits; see `protail.ops.reference.loss`.

    Parameters
    ----------
    x, prototypes, target, distance, temperature, adjustment, reduction
        As in the reference form.
    memory_budget : int, optional
        Bytes to use at most beside inputs and gradients (and vectors that a map has moved), forward
        and backward; by default as in `protail.ops.loss`.
    merge : callable, optional
        Where these are only some of the classes: turns their `Parts`, all rows at once, into those
        of all classes. A target that is no index of these classes then belongs to the others.

    Returns
    -------
    Tensor
        A number, or one a row for ``"none"``.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import chunked
    >>> x, prototypes = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> chunked.loss(x, prototypes, torch.tensor([0]), memory_budget=1000)
    tensor(0.4741)
    """
    distance = as_distance(distance)
    temperature = check_inputs(x, prototypes, distance, temperature)
    inputs = Inputs(x, prototypes, temperature)
    if distance.tensors():  # the pieces pull at the inputs only
        inputs, adjustment, distance = distance.flat(inputs, adjustment)
    given = *inputs, adjustment, target, distance, memory_budget, merge
    loss_b: Tensor = _ChunkedLoss.apply(*given)
    if reduction == "none":
        return loss_b
    return loss_b.sum() if reduction == "sum" else loss_b.mean()


class _Problem:
    """One loss to compute: its inputs, its space and its pieces."""

    def __init__(
        self,
        inputs: _Inputs,
        target_b: Tensor,
        distance: Distance,
        budget: int | None,
        has_all: bool,
    ) -> None:
        x_bd, prototypes_cd, temperature, _ = self.inputs = inputs
        self.target_b, self.has_all = target_b, has_all
        self.shared = temperature is not None and temperature.shape[0] == 1
        self.space = distance.space(distance, x_bd, prototypes_cd, temperature)
        if x_bd.device.type == "cpu":
            budget = _CACHED_BYTES if budget is None else min(budget, _CACHED_BYTES)
        self.blocks = Blocks.within(budget, x_bd, prototypes_cd, self.space.dtype.itemsize)

    def row_pieces(self) -> Iterator[slice]:
        return pieces(len(self.inputs[0]), self.blocks.rows)

    def class_pieces(self) -> Iterator[slice]:
        return pieces(len(self.inputs[1]), self.blocks.classes)

    def chunk_of(self, rows: slice, chunk: slice) -> _Inputs:
        """Take the inputs of some rows and some classes."""
        x_bd, prototypes_cd, temperature, adjustment_c = self.inputs
        if temperature is not None and not self.shared:
            temperature = temperature[chunk]
        adjustment_c = None if adjustment_c is None else adjustment_c[chunk]
        return x_bd[rows], prototypes_cd[chunk], temperature, adjustment_c

    def with_own(self, rows: slice) -> slice | Tensor:
        """Choose those of some rows whose target is among the classes that are here."""
        if self.has_all:
            return rows
        target_b = self.target_b[rows]
        is_here_b = (target_b >= 0) & (target_b < len(self.inputs[1]))
        here: Tensor = is_here_b.nonzero().squeeze(1) + rows.start
        return here

    def own_of(self, rows: slice | Tensor) -> _Inputs:
        """Take the inputs of some rows and of each one's target class."""
        x_bd, prototypes_cd, temperature, adjustment_c = self.inputs
        target_b = self.target_b[rows]
        adjustment_b = None if adjustment_c is None else adjustment_c[target_b]
        own_bd = prototypes_cd.index_select(0, target_b)
        return x_bd[rows], own_bd, own_temperature(temperature, target_b), adjustment_b

    def chunk_logits(self, inputs: _Inputs) -> Tensor:
        x_bd, prototypes_cd, temperature, adjustment_c = inputs
        rows = self.space.rows(x_bd, temperature)
        classes = self.space.classes(prototypes_cd, temperature)
        return _logits(self.space.distances(rows, classes, floor=True), adjustment_c)

    def own_logits(self, inputs: _Inputs) -> Tensor:
        x_bd, prototypes_bd, temperature, adjustment_b = inputs
        return _logits(self.space.pairs(x_bd, prototypes_bd, temperature), adjustment_b)

    def is_own(self, rows: slice, chunk: slice) -> Tensor:
        """Mark the entries of a piece that are the row's target class."""
        classes_c = torch.arange(chunk.start, chunk.stop, device=self.target_b.device)
        return self.target_b[rows].unsqueeze(1) == classes_c


class _ChunkedLoss(torch.autograd.Function):
    """The loss of each row, by pieces in both directions."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *inputs, target_b, distance, budget, merge = given
        ctx.about = distance, budget, merge is None
        problem, x_bd = _Problem(tuple(inputs), target_b, *ctx.about), given[0]
        shape, dtype = (3, len(x_bd)), problem.space.result_dtype
        whole = Parts(*x_bd.new_full(shape, -torch.inf, dtype=dtype))
        with full_precision(x_bd.device):
            for rows in problem.row_pieces():
                own = problem.with_own(rows)
                whole.target_b[own] = problem.own_logits(problem.own_of(own))
                own_b = whole.target_b[rows]
                parts = Parts.of(own_b.unsqueeze(1), own_b)
                for chunk in problem.class_pieces():
                    logits_bc = problem.chunk_logits(problem.chunk_of(rows, chunk))
                    logits_bc.masked_fill_(problem.is_own(rows, chunk), -torch.inf)
                    parts = parts.merge(Parts.of(logits_bc))
                whole.peak_b[rows], whole.total_b[rows] = parts.peak_b, parts.total_b
            whole = whole if merge is None else merge(whole)
        ctx.save_for_backward(*inputs, target_b, whole.log_total())
        return whole.loss()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_b: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, target_b, log_total_b = ctx.saved_tensors
        problem = _Problem(tuple(inputs), target_b, *ctx.about)
        pulls = _Pulls(problem, ctx.needs_input_grad[:4])
        with full_precision(target_b.device):
            for rows in problem.row_pieces():
                own = problem.with_own(rows)
                pulls.add_own(own, _Weigh(log_total_b[own], grad_b[own]))
                weigh = _Weigh(log_total_b[rows], grad_b[rows])
                for chunk in problem.class_pieces():
                    pulls.add_chunk(rows, chunk, weigh)
        return *pulls.totals, None, None, None, None


class _Weigh(NamedTuple):
    """Turns logits into the loss's slope by them."""

    log_total_b: Tensor
    grad_b: Tensor

    def others(self, logits_bc: Tensor, is_own_bc: Tensor) -> Tensor:
        p_bc = (logits_bc - self.log_total_b.unsqueeze(1)).exp_().masked_fill_(is_own_bc, 0)
        return p_bc.mul_(self.grad_b.unsqueeze(1))

    def own(self, logits_b: Tensor) -> Tensor:
        return (logits_b - self.log_total_b).expm1().mul_(self.grad_b)


class _Pulls:
    """Gradients of all inputs, added up piece by piece."""

    def __init__(self, problem: _Problem, needs: Sequence[bool]) -> None:
        self.problem, self.needs = problem, needs
        self.totals = [
            torch.zeros_like(tensor, dtype=problem.space.result_dtype)
            if tensor is not None and need
            else None
            for tensor, need in zip(problem.inputs, needs, strict=True)
        ]

    def add_own(self, rows: slice | Tensor, weigh: _Weigh) -> None:
        leaves, logits_b = self._compute(self.problem.own_logits, self.problem.own_of(rows))
        by_x, *by_class = self._pull(leaves, logits_b, weigh.own(logits_b.detach()))
        self._add(0, rows, by_x)
        for i, by_row in enumerate(by_class, start=1):
            total = self.totals[i]
            if total is None or by_row is None:
                continue
            if i == 2 and self.problem.shared:
                total += by_row
            else:
                add_rows_(total, self.problem.target_b[rows], by_row)

    def add_chunk(self, rows: slice, chunk: slice, weigh: _Weigh) -> None:
        inputs = self.problem.chunk_of(rows, chunk)
        leaves, logits_bc = self._compute(self.problem.chunk_logits, inputs)
        slope_bc = weigh.others(logits_bc.detach(), self.problem.is_own(rows, chunk))
        by_x, by_prototypes, by_temperature, by_adjustment = self._pull(leaves, logits_bc, slope_bc)
        self._add(0, rows, by_x)
        self._add(1, chunk, by_prototypes)
        self._add(2, slice(None) if self.problem.shared else chunk, by_temperature)
        self._add(3, chunk, by_adjustment)

    def _add(self, i: int, where: slice | Tensor, pull: Tensor | None) -> None:
        total = self.totals[i]
        if total is not None and pull is not None:
            total[where] += pull

    def _compute(
        self, compute: Callable[[_Inputs], Tensor], inputs: _Inputs
    ) -> tuple[list[Tensor | None], Tensor]:
        dtype = self.problem.space.result_dtype
        leaves = [
            None if tensor is None else tensor.detach().to(dtype).requires_grad_(need)
            for tensor, need in zip(inputs, self.needs, strict=True)
        ]
        with torch.enable_grad():
            return leaves, compute(tuple(leaves))  # type: ignore[arg-type]

    def _pull(
        self, leaves: list[Tensor | None], logits: Tensor, slope: Tensor
    ) -> list[Tensor | None]:
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        if not logits.requires_grad:
            return [None] * len(leaves)
        found = iter(torch.autograd.grad(logits, wanted, slope, allow_unused=True))
        return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def _logits(distance: Tensor, adjustment: Tensor | None) -> Tensor:
    logits = -0.5 * distance
    return logits if adjustment is None else logits + adjustment.to(logits.dtype)

"""How much farther each prototype is than the nearest one: all that a softmax needs to know.

Two large distances leave few digits for their difference; far from the prototypes none at all. So
the difference is computed first, from scores that lack the row's own square, and the distances
follow from it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import check_inputs
from protail.ops._precision import whole_products
from protail.ops._space import Inputs, Space, beyond, exact_distances
from protail.ops.distance import Distance, as_distance

# No distance may be further off than this part of its row's largest distance.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


class Gaps(NamedTuple):
    """Distances from the nearest prototype, and how much farther all of them are.

    Parameters
    ----------
    nearest_b : Tensor
        Distance of each row from the nearest prototype.
    gap_bc : Tensor
        What to add to it for the distance from each prototype: 0 for the nearest.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import gaps
    >>> gaps(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])).distances()
    tensor([[3., 4.]])
    """

    nearest_b: Tensor
    gap_bc: Tensor

    def distances(self) -> Tensor:
        """Give the distances from all prototypes.

        Returns
        -------
        Tensor
            (batch, classes).
        """
        return self.nearest_b.unsqueeze(1) + self.gap_bc


@torch.no_grad()
def gaps(
    x: Tensor,
    prototypes: Tensor,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
) -> Gaps:
    """Measure how much farther each prototype is than the nearest one.

    The class with a gap of 0 is the one that `nearest` finds. A softmax of ``-gap / 2`` is that of
    ``-distance / 2``, but for rows of any finite length, in float32 too: far away a Euclidean gap
    tends to a limit while distances go on growing.

    Parameters
    ----------
    x, prototypes, distance, temperature
        As in `protail.ops.distances`.

    Returns
    -------
    Gaps
        ``nearest_b`` and ``gap_bc``. Infinite only where the dtype ends.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import gaps
    >>> prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> gaps(torch.tensor([[3.0, 0.0], [3e30, 0.0]]), prototypes).gap_bc
    tensor([[0., 1.],
            [3., 0.]])
    """
    distance = as_distance(distance)
    inputs = Inputs(x, prototypes, check_inputs(x, prototypes, distance, temperature))
    with whole_products(x.device):
        return measured(distance.space(distance, *inputs, any_length=True), inputs)


def measured(space: Space, inputs: Inputs) -> Gaps:
    """Do what `gaps` promises in a space of these inputs, for vectors of any length."""
    x, prototypes, scale = inputs
    score_bc, rest_b1, error = space.rank(space.rows(x, scale), space.classes(prototypes, scale))
    slack_b = 2 * error.amax(1)
    low_b1, nearest_b1 = score_bc.min(1, keepdim=True)
    beyond_bc = score_bc.sub_(low_b1)
    second_b = beyond_bc.scatter_(1, nearest_b1, torch.inf).amin(1)
    beyond_bc.scatter_(1, nearest_b1, 0)
    square_b = (low_b1 + rest_b1).squeeze(1).clamp_min_(0)
    error_b = slack_b + rest_b1.squeeze(-1) * space.rounding
    doubt = _Doubt(
        slack_b, error_b, (square_b + beyond_bc.amax(1)) * _TOLERANCE[space.result_dtype]
    )

    # "Not more than" and not "at most": what is no number is open too.
    open_b = ~(second_b > slack_b) | doubt.of(space, square_b)
    patches = []
    far_b = ~slack_b.isfinite()
    if bool(far_b.any()) and (wider := inputs.of_rows(far_b).in_wider_numbers()) is not None:
        patches.append((far_b, _in_wider_numbers(space.distance, *wider)))
        open_b &= ~far_b
    if bool(open_b.any()):
        some = inputs.of_rows(open_b), nearest_b1[open_b, 0], square_b[open_b], beyond_bc[open_b]
        patches.append((open_b, _refined(space, *some, doubt.of_rows(open_b))))
    found = _of_squares(space, square_b, beyond_bc)
    for rows_b, patch in patches:
        for whole, part in zip(found, patch, strict=True):
            whole[rows_b] = part.to(whole.dtype)
    return found


class _Doubt(NamedTuple):
    """How far squares may be off, and what that must not exceed."""

    slack_b: Tensor  # the difference of two squares
    error_b: Tensor  # one square
    allowed_b: Tensor  # of the row's largest square

    def of(self, space: Space, square: Tensor) -> Tensor:
        """Mark the squares, one a row or many, of whose distances too little is known."""
        shape = (-1, *[1] * (square.ndim - 1))
        error, allowed = self.error_b.reshape(shape), self.allowed_b.reshape(shape)
        tolerance = _TOLERANCE[space.result_dtype]
        return ~(error <= space.distance.room(square, allowed, tolerance))

    def of_rows(self, rows_b: Tensor) -> _Doubt:
        return _Doubt(*(part[rows_b] for part in self))


def _of_squares(space: Space, square_b: Tensor, beyond_bc: Tensor) -> Gaps:
    """Turn squares, and how much larger they are, into distances; in place."""
    found = space.distance.gaps(square_b, beyond_bc)
    return Gaps(*(part.to(space.result_dtype) for part in found))


def _refined(
    space: Space,
    inputs: Inputs,
    nearest_b: Tensor,
    square_b: Tensor,
    beyond_bc: Tensor,
    doubt: _Doubt,
) -> Gaps:
    """Compute again by subtraction, in float64, what rounding leaves open or could spoil."""
    doubtful_bc = ~(beyond_bc > doubt.slack_b.unsqueeze(1))
    doubtful_bc |= doubt.of(space, square_b.unsqueeze(1) + beyond_bc)
    row_p, class_p = doubtful_bc.nonzero(as_tuple=True)
    beyond_p = beyond(space, inputs, row_p, class_p, nearest_b[row_p])
    # What looked nearest is among them, with 0; what is nearest has the lowest number.
    low_b = torch.zeros_like(square_b, dtype=beyond_p.dtype)
    low_b.scatter_reduce_(0, row_p, beyond_p, "amin")
    is_low_p = beyond_p == low_b[row_p]
    nearest_b = torch.full_like(nearest_b, len(inputs.prototypes_cd) - 1)
    nearest_b.scatter_reduce_(0, row_p[is_low_p], class_p[is_low_p], "amin")

    distance_b = exact_distances(space, inputs, nearest_b.unsqueeze(1)).squeeze(1)
    squares_b = space.distance.unlink(distance_b)
    found = _of_squares(
        space, squares_b.to(beyond_bc.dtype), beyond_bc - low_b.unsqueeze(1).to(beyond_bc.dtype)
    )
    exact = _of_squares(space.in_double(), squares_b[row_p], (beyond_p - low_b[row_p]).unsqueeze(1))
    found.gap_bc[row_p, class_p] = exact.gap_bc.squeeze(1).to(found.gap_bc.dtype)
    return Gaps(distance_b, found.gap_bc)


def _in_wider_numbers(distance: Distance, inputs: Inputs, factor: float) -> Gaps:
    found = measured(distance.space(distance, *inputs, any_length=True), inputs)
    return Gaps(*(distance.times(part, factor) for part in found))

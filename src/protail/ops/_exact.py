"""Distances of chosen pairs by subtraction in float64, and the same problem in wider numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import compute_dtype
from protail.ops._memory import memory_budget, pieces
from protail.ops._rows import own_temperature
from protail.ops._space import Space

# Elements of the vectors that a CPU subtracts at a time; bytes that each of them takes.
_SUBTRACTED_AT_A_TIME = 2**20
_BYTES_OF_ONE = 32
# Float64 numbers above the first are divided by the second before they are squared.
_LARGE, _DIVISOR = 2.0**400, 2.0**600


class Inputs(NamedTuple):
    """Rows, prototypes and temperature, as ``check_inputs`` gives it."""

    x_bd: Tensor
    prototypes_cd: Tensor
    temperature: Tensor | None

    def of_rows(self, rows: Tensor | slice) -> Inputs:
        """Take some rows.

        Parameters
        ----------
        rows : Tensor or slice
            Which.

        Returns
        -------
        Inputs
            These rows and all prototypes.
        """
        return self._replace(x_bd=self.x_bd[rows])

    def in_wider_numbers(self) -> tuple[Inputs, float] | None:
        """Give the same problem in numbers whose squares do not overflow.

        Returns
        -------
        inputs, factor : Inputs, float
            The same in float64, divided by the factor; None where nothing is wider.
        """
        if compute_dtype(*self) == torch.float32:
            x_bd, prototypes_cd, temperature = self
            scale = None if temperature is None else temperature.double()
            return Inputs(x_bd.double(), prototypes_cd.double(), scale), 1.0
        x_bd, prototypes_cd = (vectors.double() for vectors in self[:2])
        if not any(bool(_is_large(vectors).any()) for vectors in (x_bd, prototypes_cd)):
            return None
        return Inputs(x_bd / _DIVISOR, prototypes_cd / _DIVISOR, self.temperature), _DIVISOR


def _is_large(vectors: Tensor) -> Tensor:
    return (vectors.abs() > _LARGE) & vectors.isfinite()


def exact_distances(space: Space, inputs: Inputs, class_bk: Tensor) -> Tensor:
    """Measure the distances of each row from some classes of its own by subtraction.

    Parameters
    ----------
    space : Space
        Of these inputs.
    inputs : Inputs
        Rows and prototypes.
    class_bk : Tensor
        Classes of each row.

    Returns
    -------
    Tensor
        In float64.
    """
    exact = space.in_double()
    x_bd, prototypes_cd, temperature = inputs
    n_rows, n_features = x_bd.shape
    width = class_bk.shape[1] * max(1, n_features)
    step = _SUBTRACTED_AT_A_TIME // width
    if x_bd.device.type != "cpu":
        budget = memory_budget(x_bd.device, n_rows * width * _BYTES_OF_ONE)
        step = budget // (width * _BYTES_OF_ONE)
    found = [
        exact.pairs(
            x_bd[rows].unsqueeze(1),
            prototypes_cd[class_bk[rows]],
            own_temperature(temperature, class_bk[rows]),
        )
        for rows in pieces(n_rows, max(1, step))
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def beyond(space: Space, inputs: Inputs, row_p: Tensor, class_p: Tensor, other_p: Tensor) -> Tensor:
    """Compare the squares of distances in float64; see `Space.beyond`.

    Parameters
    ----------
    space : Space
        Of these inputs.
    inputs : Inputs
        Rows and prototypes.
    row_p, class_p, other_p : Tensor
        Row and two classes of each comparison.

    Returns
    -------
    Tensor
        How much larger the square from the first class is.
    """
    exact = space.in_double()
    x_bd, prototypes_cd, temperature = inputs
    found_p = torch.empty(len(row_p), dtype=exact.dtype, device=x_bd.device)
    for part in pieces(len(row_p), max(1, _SUBTRACTED_AT_A_TIME // max(1, x_bd.shape[1]))):
        found_p[part] = exact.beyond(
            x_bd[row_p[part]], prototypes_cd, temperature, class_p[part], other_p[part]
        )
    return found_p

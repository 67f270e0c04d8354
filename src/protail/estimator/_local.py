"""What prototypes cannot say: corrections near training rows.

Borders between prototypes are flat. Where rows that are left out gain from it, logits are corrected
near some training rows, the landmarks: by ``1 / (1 + |x - landmark|^2 / width)`` times a weight for
each class. The weights are learned together with the prototypes, on the same honest residuals, as
if the correction of each class were drawn from a Gaussian process: before any row is seen it has
the same spread around 0 everywhere, and says the more similar things the nearer two rows are. In
other words: Nyström features of a rational quadratic kernel with alpha = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# The squared distance at which nearness has fallen to a half, over the median of two landmarks.
_WIDTH = 0.15
# Added to how near each landmark is to itself: rows that come twice would have no Cholesky factor.
_DEPENDENT = 1e-4
# Lengths whose rounding, in float32, is more than this part of the width have no say.
_PRECISE = 1e-3
# Rows farther away are near nothing; the squares of larger numbers would overflow.
_FAR = 1e15


class Corrections(NamedTuple):
    """What is added to the logits of prepared rows."""

    landmark_md: Tensor
    width: float
    weight_cm: Tensor

    def __call__(self, x_nd: Tensor) -> Tensor:
        """Give what is added to the logits of some rows."""
        near_nm = _nearness(x_nd.clamp(-_FAR, _FAR), self.landmark_md, self.width)
        added_nc: Tensor = near_nm @ self.weight_cm.mT
        return added_nc


@dataclass(frozen=True)
class LandmarkFeatures:
    """The Nyström features of rows: how near landmarks are, turned to be learned like channels.

    As `sklearn.kernel_approximation.Nystroem` makes them, but in torch, wherever the rows lie.

    Of any two rows, the product of their columns is ``spread^2`` times how near they are.
    """

    rows_nd: Tensor  # that landmarks were taken from, and their columns
    column_nm: Tensor
    index_m: Tensor
    width: float
    spread: float
    triangle_mm: Tensor  # lower, the Cholesky factor of how near landmarks are

    @classmethod
    def of(cls, x_nd: Tensor, index_m: Tensor, spread: float) -> LandmarkFeatures | None:
        """Take at least two of some prepared rows for landmarks; None where they are too alike."""
        square_nm = _squares(x_nd, x_nd[index_m])
        square_mm = square_nm[index_m]
        median = square_mm[torch.ones_like(square_mm, dtype=torch.bool).triu(1)].median()
        width = _WIDTH * float(median.clamp_min(torch.finfo(median.dtype).tiny ** 0.5))
        near_mm = _near(square_mm.double(), width)
        near_mm.diagonal().add_(_DEPENDENT)
        triangle_mm, failed = torch.linalg.cholesky_ex(near_mm)
        rounding = torch.finfo(torch.float32).eps * float(x_nd[index_m].square().sum(1).max())
        if int(failed) or not rounding < _PRECISE * width:
            return None
        triangle_mm = triangle_mm.to(x_nd)
        column_nm = _columns(triangle_mm, _near(square_nm, width), spread)
        return cls(x_nd, column_nm, index_m, width, spread, triangle_mm)

    def __call__(self, x_nd: Tensor) -> Tensor:
        """Give the columns (rows, landmarks) of prepared rows."""
        if x_nd is self.rows_nd:
            return self.column_nm
        near_nm = _nearness(x_nd, self.rows_nd[self.index_m], self.width)
        return _columns(self.triangle_mm, near_nm, self.spread)

    def corrections(self, added_cm: Tensor, landmark_md: Tensor) -> Corrections:
        """Write what was learned of the columns as weights of the same landmarks."""
        weight_mc = torch.linalg.solve_triangular(self.triangle_mm.mT, added_cm.mT, upper=True)
        return Corrections(landmark_md, self.width, self.spread * weight_mc.mT)


def _columns(triangle_mm: Tensor, near_nm: Tensor, spread: float) -> Tensor:
    column_mn = torch.linalg.solve_triangular(triangle_mm, near_nm.mT, upper=False)
    column_nm: Tensor = column_mn.mul_(spread).mT
    return column_nm


def _nearness(x_nd: Tensor, landmark_md: Tensor, width: float) -> Tensor:
    """Say how near rows are to each landmark: 1 at it, 0 far away."""
    return _near(_squares(x_nd, landmark_md), width)


def _near(square_nm: Tensor, width: float) -> Tensor:
    return square_nm.mul_(1 / width).add_(1).reciprocal_()


def _squares(x_nd: Tensor, y_md: Tensor) -> Tensor:
    square_nm = torch.addmm(y_md.square().sum(1), x_nd, y_md.mT, alpha=-2)
    return square_nm.add_(x_nd.square().sum(1, keepdim=True)).clamp_min_(0)

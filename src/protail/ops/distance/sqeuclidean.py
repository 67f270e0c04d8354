"""The squared Euclidean distance, ``d = |x - c|^2``: its softmax is that of a linear head.

Its gradient by ``x`` is ``2 (x - c)``: the farther a row, the harder it pulls.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protail.ops.distance.base import Distance, register_distance


@register_distance("sqeuclidean")
class SqEuclidean(Distance):
    """The squared length of ``x - c``.

    References
    ----------
    Prototypical Networks for Few-shot Learning. NeurIPS 2017.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import SqEuclidean, distances
    >>> distances(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]), SqEuclidean())
    tensor([[25.]])
    """

    power = 2

    def between(self, x_pd: Tensor, prototypes_pd: Tensor) -> Tensor:
        """Square the length."""
        length_p: Tensor = torch.linalg.vector_norm(self.move(x_pd - prototypes_pd), dim=-1)
        return length_p.square()

    def measure(self, difference_pd: Tensor) -> Tensor:
        """Sum the squares."""
        return difference_pd.square().sum(-1)

    def link(self, square_bc: Tensor) -> Tensor:
        """Take the square as it is, but not below zero."""
        return square_bc.clamp_min(0)

    def unlink(self, distance: Tensor) -> Tensor:
        """Give the distance itself."""
        return distance

    def gaps(self, square_b: Tensor, beyond_bc: Tensor) -> tuple[Tensor, Tensor]:
        """Give both as they are."""
        return square_b, beyond_bc

    def is_sure(self, error: Tensor, square: Tensor, allowed: Tensor, tolerance: float) -> Tensor:
        """Compare errors of squares."""
        return (error <= allowed).expand_as(square)

    def steepness(self, distance: float) -> float:
        """Give twice the length."""
        return 2 * math.sqrt(distance)

    def link_(self, square_bc: Tensor, own_b1: Tensor) -> None:
        """Square the own lengths."""
        own_b1.square_()

    def pull_(self, p_bc: Tensor, own_p_b1: Tensor, distance_bc: Tensor, own_b1: Tensor) -> float:
        """Leave all but a factor: the gradient is ``2 (x - c)``."""
        return 2.0

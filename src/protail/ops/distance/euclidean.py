"""The Euclidean distance, ``d = |x - c|``: the paper's, whose pull is bounded.

Its gradient is computed here. By ``x`` it is ``(x - c) / d``, a vector of length 1, however far
away the row is; by ``c`` it is the opposite. `Euclidean.pull_` is that, written by hand, for the
steps of `protail.ops.loss` that fit into memory (`protail.ops.fused` multiplies what it gives by
``x - c``): `PrototypeClassifier` trains that way. Elsewhere, as in stage 2 of recipes, autograd
derives `Euclidean.link`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protail.ops._precision import smallest_length
from protail.ops.distance.base import Distance, register_distance


@register_distance("euclidean")
class Euclidean(Distance):
    """The length of ``x - c``.

    References
    ----------
    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> from protail.ops.distance import Euclidean
    >>> distances(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]), Euclidean())
    tensor([[5.]])
    """

    power = 1
    lifts = True

    def measure(self, difference_pd: Tensor) -> Tensor:
        """Give the length; its gradient is zero where the length is."""
        length_p: Tensor = torch.linalg.vector_norm(difference_pd, dim=-1)
        return length_p

    def link(self, square_bc: Tensor) -> Tensor:
        """Take the root; where there is next to none, 0 with a gradient of 0."""
        tiny = torch.finfo(square_bc.dtype).tiny
        return torch.where(square_bc > tiny, square_bc, tiny).sqrt() * (square_bc > tiny)

    def unlink(self, distance: Tensor) -> Tensor:
        """Square."""
        return distance.square()

    def gaps(self, square_b: Tensor, beyond_bc: Tensor) -> tuple[Tensor, Tensor]:
        """Take ``sqrt(s + e) - sqrt(s)`` as ``e / (sqrt(s + e) + sqrt(s))``, which keeps digits."""
        nearest_b = square_b.sqrt()
        sum_bc = (square_b.unsqueeze(1) + beyond_bc).sqrt_().add_(nearest_b.unsqueeze(1))
        return nearest_b, beyond_bc.div_(sum_bc.clamp_min_(torch.finfo(sum_bc.dtype).tiny))

    def room(self, square: Tensor, allowed: Tensor, part: float) -> Tensor:
        """Let a root be off by ``part`` of the largest: it is off by ``error / (2 root)``."""
        return allowed.sqrt() * square.sqrt().mul_(2 * part**0.5)

    def steepness(self, distance: float) -> float:
        """Give 1: far and near it grows as the length does."""
        return 1.0

    def link_(self, square_bc: Tensor, own_b1: Tensor) -> None:
        """Take the roots."""
        square_bc.clamp_min_(smallest_length(square_bc.dtype) ** 2).sqrt_()

    def pull_(self, p: Tensor, distance: Tensor) -> float:
        """Divide by the distance: the gradient is ``(x - c) / d``."""
        p /= distance
        return 1.0

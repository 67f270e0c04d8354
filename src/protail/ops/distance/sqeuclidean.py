"""The squared Euclidean distance, ``d = |x - c|^2``: its softmax is that of a linear head.

It is what `Distance` is as it stands. Its gradient by ``x`` is ``2 (x - c)`` (`Distance.pull_`):
the farther a row, the harder it pulls.
"""

from __future__ import annotations

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
    >>> from protail.ops.distance import SqEuclidean
    >>> SqEuclidean().between(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]))
    tensor([25.])
    """

    def between(self, x_pd: Tensor, prototypes_pd: Tensor) -> Tensor:
        """Square the length."""
        length_p: Tensor = torch.linalg.vector_norm(self.difference(x_pd, prototypes_pd), dim=-1)
        return length_p.square()

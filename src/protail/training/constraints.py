"""Constraints: what parameters must obey after every step."""

from __future__ import annotations

import torch
from torch import Tensor


class MaxNorm:
    """Keep every row of a weight within a radius.

    The radius is set once: ``part`` of the way from the shortest to the longest row that the
    weight has at the beginning. Applying it is pure tensor code.

    Parameters
    ----------
    weight : Tensor, shape (n_classes, n_features)
        Whose rows to keep.
    part : float
        0 is the shortest row's length, 1 the longest one's; infinity constrains nothing.

    Examples
    --------
    >>> import torch
    >>> from protail.training import MaxNorm
    >>> weight = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> MaxNorm(weight, part=0.25)()
    >>> weight.norm(dim=1)
    tensor([2., 1.])
    """

    def __init__(self, weight: Tensor, part: float = 0.1) -> None:
        if not part >= 0:
            raise ValueError(f"part={part!r}; expected a number from 0 on, as in 0.1.")
        self._weight = weight
        lengths = torch.linalg.vector_norm(weight.detach(), dim=1)
        low, high = lengths.min(), lengths.max()
        self.radius = (
            low + part * (high - low) if part < float("inf") else torch.full_like(low, part)
        )

    @torch.no_grad()
    def __call__(self) -> None:
        """Shorten the rows that are too long."""
        lengths = torch.linalg.vector_norm(self._weight, dim=1, keepdim=True)
        self._weight.mul_((self.radius / lengths.clamp(min=1e-30)).clamp(max=1.0))

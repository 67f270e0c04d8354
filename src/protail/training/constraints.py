"""Constraints: what parameters must obey after every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MaxNorm:
    """Keep every row of a weight within a radius.

    The radius is set once: a number, or ``part`` of the way from the shortest to the longest row
    that the weight has at the beginning. Applying it is pure tensor code.

    Parameters
    ----------
    weight : Tensor, shape (n_classes, n_features)
        Whose rows to keep.
    part : float
        0 is the shortest row's length, 1 the longest one's; infinity constrains nothing.
    radius : float, optional
        The radius itself, whatever ``part`` says.

    Examples
    --------
    >>> import torch
    >>> from protail.training import MaxNorm
    >>> weight = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> MaxNorm(weight, part=0.25)()
    >>> weight.norm(dim=1)
    tensor([2., 1.])
    >>> MaxNorm(weight, radius=0.5)()
    >>> weight.norm(dim=1)
    tensor([0.5000, 0.5000])
    """

    def __init__(self, weight: Tensor, part: float = 0.1, *, radius: float | None = None) -> None:
        if radius is not None and not radius > 0:
            raise ValueError(f"radius={radius!r}; expected a number above 0.")
        if not part >= 0:
            raise ValueError(f"part={part!r}; expected a number from 0 on, as in 0.1.")
        self._weight = weight
        lengths = torch.linalg.vector_norm(weight.detach(), dim=1)
        low, high = lengths.min(), lengths.max()
        if radius is not None or part == float("inf"):
            self.radius = torch.full_like(low, part if radius is None else radius)
        else:
            self.radius = low + part * (high - low)

    @torch.no_grad()
    def __call__(self) -> None:
        """Shorten the rows that are too long."""
        lengths = torch.linalg.vector_norm(self._weight, dim=1, keepdim=True)
        self._weight.mul_((self.radius / lengths.clamp(min=1e-30)).clamp(max=1.0))


def head_constraint(head: nn.Module, radius: float, part: float | None = None) -> MaxNorm | None:
    """Keep the rows of a head's weights within a radius.

    Parameters
    ----------
    head : nn.Module
        With a matrix ``weight``, a row a class.
    radius : float
        How long a row may be; 0 for no limit.
    part : float, optional
        Instead of the radius, as in `MaxNorm`.

    Returns
    -------
    MaxNorm or None
        To be called after every step; None without a limit.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.training.constraints import head_constraint
    >>> head = nn.Linear(4, 3)
    >>> head_constraint(head, 0.1)()
    >>> bool((head.weight.norm(dim=1) < 0.1001).all())
    True
    """
    if radius == 0 and part is None:
        return None
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        what = f"max_norm={radius:g}" if part is None else f"max_norm_part={part:g}"
        raise ValueError(
            f"{what}: {type(head).__name__} has no matrix of weights to keep within "
            "it; expected a head that has one, such as 'linear'."
        )
    return MaxNorm(weight, radius=radius) if part is None else MaxNorm(weight, part)

"""A linear head of stage 1 that learns no more, for the heads of stage 2 that are built on it."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protail.heads._built import BuiltHead
from protail.heads.linear import linear_head_that_fits
from protail.ops._precision import full_precision
from protail.profile import Counts


class FrozenLinear(BuiltHead):
    """Hold the weights of a linear head in buffers, so that no optimiser finds them.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.

    Attributes
    ----------
    frozen_weight : Tensor, shape (n_classes, n_features)
        The weights of stage 1.
    frozen_bias : Tensor, shape (n_classes,)
        Its bias; 0 where it has none.

    Examples
    --------
    >>> import torch
    >>> from protail.heads._frozen_linear import FrozenLinear
    >>> from protail.heads.linear import LinearHead
    >>> first, x = LinearHead(3, 2), torch.ones(1, 2)
    >>> frozen = FrozenLinear(3, 2).build_on(first, [9, 3, 1])
    >>> torch.equal(frozen.stage_1_logits(x), first(x)), len(list(frozen.parameters()))
    (True, 0)
    """

    stage_1: ClassVar[tuple[str, ...]] = ("linear",)
    taken_over = "frozen_weight"
    frozen_weight: Tensor
    frozen_bias: Tensor

    def __init__(self, n_classes: int, n_features: int) -> None:
        super().__init__()
        for name, value in (("n_classes", n_classes), ("n_features", n_features)):
            if value < 1:
                raise ValueError(f"{name}={value!r}; expected at least 1.")
        self.register_buffer("frozen_weight", torch.zeros(n_classes, n_features))
        self.register_buffer("frozen_bias", torch.zeros(n_classes))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.frozen_weight.shape[0]

    @property
    def n_features(self) -> int:
        """Length of a feature vector."""
        return self.frozen_weight.shape[1]

    def build_on(self, head: nn.Module, counts: Counts) -> Self:
        """Copy the weights of stage 1.

        Parameters
        ----------
        head : LinearHead
            The head of stage 1, of as many classes and features.
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class.

        Returns
        -------
        FrozenLinear
            This head.
        """
        first = linear_head_that_fits(head, self.n_classes, self.n_features, counts)
        with torch.no_grad():
            self.frozen_weight.copy_(first.weight)
            self.frozen_bias.copy_(first.bias_or_zeros())
        self._is_built = True
        return self

    def stage_1_logits(self, x: Tensor) -> Tensor:
        """Give the logits of stage 1.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels); brought to the precision of the weights.

        Returns
        -------
        Tensor
            (batch, classes), in that precision under autocast too.
        """
        with full_precision(x.device):
            return linear(self.checked(x), self.frozen_weight, self.frozen_bias)

    def checked(self, x: Tensor) -> Tensor:
        """Check feature vectors; give them in the precision of the weights.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels).

        Returns
        -------
        Tensor
            The same vectors.
        """
        self.check_built()
        if x.ndim != 2 or x.shape[1] != self.n_features:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected (batch, {self.n_features}), feature "
                "vectors as stage 1 had them."
            )
        return x.to(self.frozen_weight.dtype)

    def extra_repr(self) -> str:
        """Show the sizes in ``repr``."""
        return f"{self.n_classes}, {self.n_features}"

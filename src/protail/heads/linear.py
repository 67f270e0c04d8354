"""The linear head: the softmax classifier's weights."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protail.heads.registry import register_head
from protail.profile import ClassProfile, Counts


@register_head("linear")
class LinearHead(nn.Linear):
    """Classify a feature vector by its product with one weight vector a class.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    bias : bool
        Whether each class has a number of its own to add.

    Examples
    --------
    >>> import torch
    >>> from protail.heads.linear import LinearHead
    >>> LinearHead(3, 2)(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, n_classes: int, n_features: int, *, bias: bool = True) -> None:
        for name, value in (("n_classes", n_classes), ("n_features", n_features)):
            if value < 1:
                raise ValueError(f"{name}={value!r}; expected at least 1.")
        super().__init__(n_features, n_classes, bias=bias)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.out_features

    @property
    def n_features(self) -> int:
        """Length of a feature vector."""
        return self.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels); brought to the precision of the weights.

        Returns
        -------
        Tensor
            (batch, classes).
        """
        return linear(x.to(self.weight.dtype), self.weight, self.bias)

    def build_on(self, head: nn.Module, counts: Counts) -> Self:
        """Begin with the weights of another linear head.

        Parameters
        ----------
        head : LinearHead
            Of as many classes and features. Where it has no bias, that of this head becomes 0.
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class.

        Returns
        -------
        LinearHead
            This head.

        Examples
        --------
        >>> import torch
        >>> from protail.heads.linear import LinearHead
        >>> first = LinearHead(3, 2)
        >>> bool((LinearHead(3, 2).build_on(first, [9, 3, 1]).weight == first.weight).all())
        True
        """
        first = linear_head_that_fits(head, self.n_classes, self.n_features, counts)
        if self.bias is None and first.bias is not None:
            raise ValueError(
                "head has a bias and this head has none, so it would not give the same logits; "
                "expected both alike. Make this head with bias=True."
            )
        with torch.no_grad():
            self.weight.copy_(first.weight)
            if self.bias is not None:
                self.bias.copy_(first.bias_or_zeros())
        return self

    def bias_or_zeros(self) -> Tensor:
        """Give the bias of every class, 0 where there is none.

        Returns
        -------
        Tensor, shape (n_classes,)
            What is added to the products.

        Examples
        --------
        >>> from protail.heads.linear import LinearHead
        >>> LinearHead(3, 2, bias=False).bias_or_zeros()
        tensor([0., 0., 0.])
        """
        return self.weight.new_zeros(self.n_classes) if self.bias is None else self.bias


def linear_head_that_fits(
    head: nn.Module, n_classes: int, n_features: int, counts: Counts
) -> LinearHead:
    """Check that a head is linear and that another of this size can be built on it.

    Parameters
    ----------
    head : nn.Module
        What came.
    n_classes, n_features : int
        The size of the other.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class.

    Returns
    -------
    LinearHead
        The head that came.

    Examples
    --------
    >>> from protail.heads.linear import LinearHead, linear_head_that_fits
    >>> linear_head_that_fits(LinearHead(3, 2), 3, 2, [9, 3, 1])
    LinearHead(in_features=2, out_features=3, bias=True)
    """
    if not isinstance(head, LinearHead):
        raise TypeError(
            f"head is a {type(head).__name__}; expected a linear head to build on. Train stage 1 "
            "with head 'linear'."
        )
    if (head.n_classes, head.n_features) != (n_classes, n_features):
        raise ValueError(
            f"head has {head.n_classes} classes and {head.n_features} features; expected "
            f"{n_classes} and {n_features}, as the head that is built on it."
        )
    profile = ClassProfile.of(counts)
    if profile.n_classes != n_classes:
        raise ValueError(
            f"counts has {profile.n_classes} classes; expected {n_classes}, as the heads have."
        )
    return head

"""The linear head: the softmax classifier's weights."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from protail.heads.registry import register_head


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

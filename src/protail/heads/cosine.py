"""The cosine head: a softmax classifier whose weights have a direction and no length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protail import ops
from protail.heads.registry import register_head
from protail.ops._arguments import compute_dtype
from protail.ops._precision import full_precision


@register_head("cosine")
class CosineHead(nn.Module):
    """Classify a feature vector by its cosine with one weight vector a class.

    Neither the length of a feature vector nor that of a weight vector counts, so no class gets a
    larger say by a longer one.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    scale : float
        What cosines are multiplied by: logits lie between minus this and this.

    Attributes
    ----------
    weight : Parameter
        (classes, channels).

    Examples
    --------
    >>> import torch
    >>> from protail.heads.cosine import CosineHead
    >>> head = CosineHead(2, 2, scale=10.0)
    >>> _ = head.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 0.1]]))
    >>> head(torch.tensor([[0.0, 7.0]])).detach()
    tensor([[ 0., 10.]])
    """

    def __init__(self, n_classes: int, n_features: int, *, scale: float = 16.0) -> None:
        super().__init__()
        for name, value in (("n_classes", n_classes), ("n_features", n_features)):
            if value < 1:
                raise ValueError(f"{name}={value!r}; expected at least 1.")
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale={scale!r}; expected a number above 0.")
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(n_classes, n_features))
        nn.init.normal_(self.weight, std=n_features**-0.5)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.weight)

    @property
    def n_features(self) -> int:
        """Length of a feature vector."""
        return self.weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels). The logits of a zero vector are zero.

        Returns
        -------
        Tensor
            (batch, classes), float64 if an input is, otherwise float32, under autocast too.
        """
        with full_precision(x.device):  # which would round a logit of 30 to 0.125
            x_bd, _ = ops.unit_rows(x.to(compute_dtype(x, self.weight)))
            weight_cd, _ = ops.unit_rows(self.weight)
            return self.scale * linear(x_bd, weight_cd.to(x_bd.dtype))

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{self.n_classes}, {self.n_features}, scale={self.scale!r}"

"""The cosine head: a softmax classifier whose weights have a direction and no length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protail.models.heads.registry import register_head
from protail.ops import compute_dtype, full_precision, unit_rows
from protail.options import Count, Positive, checked


@register_head("cosine", has_weight=True)
class CosineHead(nn.Module):
    """Classify a feature vector by its cosine with one weight vector a class.

    Neither the length of a feature vector nor that of a weight vector counts, so no class has a
    larger influence by a longer one.

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

    References
    ----------
    Dynamic Few-Shot Visual Learning without Forgetting. CVPR 2018.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import CosineHead
    >>> head = CosineHead(2, 2, scale=10.0)
    >>> _ = head.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 0.1]]))
    >>> head(torch.tensor([[0.0, 7.0]])).detach()
    tensor([[ 0., 10.]])
    """

    @checked
    def __init__(self, n_classes: Count, n_features: Count, *, scale: Positive = 16.0) -> None:
        super().__init__()
        self.n_classes, self.n_features, self.scale = n_classes, n_features, scale
        self.weight = nn.Parameter(torch.empty(n_classes, n_features))
        nn.init.normal_(self.weight, std=n_features**-0.5)

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
            x_bd, _ = unit_rows(x.to(compute_dtype(x, self.weight)))
            weight_cd, _ = unit_rows(self.weight)
            return self.scale * linear(x_bd, weight_cd.to(x_bd.dtype))

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{self.n_classes}, {self.n_features}, scale={self.scale!r}"

"""The scaled head: the classifier of stage 1, and one learned factor a class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protail.models.heads.linear import FrozenLinear
from protail.models.heads.registry import register_head


@register_head("scaled", builds_on=("linear",))
class ScaledHead(FrozenLinear):
    """Multiply the logits of stage 1, bias included, by one learned factor a class (LWS).

    Before it learns every factor is 1 and the logits are those of stage 1.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.

    Attributes
    ----------
    scales : Parameter, shape (n_classes,)
        The factors, all that learns.

    References
    ----------
    Decoupling Representation and Classifier for Long-Tailed Recognition. ICLR 2020.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import LinearHead, ScaledHead
    >>> first, x = LinearHead(3, 2), torch.ones(1, 2)
    >>> head = ScaledHead(3, 2).build_on(first, [9, 3, 1])
    >>> torch.equal(head(x), first(x)), [name for name, _ in head.named_parameters()]
    (True, ['scales'])
    """

    def __init__(self, n_classes: int, n_features: int) -> None:
        super().__init__(n_classes, n_features)
        self.scales = nn.Parameter(torch.ones(n_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        return self.scales * self.stage_1_logits(x)

"""The aligned head: the classifier of stage 1, calibrated by class as far as a row needs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protail.models.heads.linear import FrozenLinear
from protail.models.heads.registry import register_head
from protail.ops import full_precision


@register_head("aligned", builds_on=("linear",))
class AlignedHead(FrozenLinear):
    """Blend the logits of stage 1 with a learned scaling and shift of them (DisAlign).

    Of logits ``z`` it makes ``kappa * (scales * z + offsets) + (1 - kappa) * z``, where ``kappa``,
    between 0 and 1, is the logistic function of a learned product with the feature vector. Before
    it learns, the logits are those of stage 1.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.

    Attributes
    ----------
    scales, offsets : Parameter, shape (n_classes,)
        What logits are multiplied by, and what is added.
    confidence : Linear
        Features to the log-odds of ``kappa``.

    References
    ----------
    Distribution Alignment: A Unified Framework for Long-tail Visual Recognition. CVPR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import AlignedHead, LinearHead
    >>> first, x = LinearHead(3, 2), torch.ones(1, 2)
    >>> head = AlignedHead(3, 2).build_on(first, [9, 3, 1])
    >>> torch.equal(head(x), first(x)), head.kappa(x).shape
    (True, torch.Size([1, 1]))
    """

    def __init__(self, n_classes: int, n_features: int) -> None:
        super().__init__(n_classes, n_features)
        self.scales = nn.Parameter(torch.ones(n_classes))
        self.offsets = nn.Parameter(torch.zeros(n_classes))
        self.confidence = nn.Linear(n_features, 1)
        nn.init.constant_(self.confidence.weight, 0.1)

    def kappa(self, x: Tensor) -> Tensor:
        """Say how far each row is calibrated (batch, 1): 0 as in stage 1, 1 in full."""
        with full_precision(x.device):
            kappa: Tensor = self.confidence(self._checked_features(x)).sigmoid()
        return kappa

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        logits_bc = self.stage_1_logits(x)
        # The blend written as a change: where nothing is learned yet it is nothing, to the bit.
        return logits_bc + self.kappa(x) * ((self.scales - 1) * logits_bc + self.offsets)

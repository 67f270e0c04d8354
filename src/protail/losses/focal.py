"""Cross-entropy that forgets rows the more surely they are classified."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from protail.losses._batch import checked_batch, own_class
from protail.losses.registry import register_loss
from protail.profile import ClassProfile, Counts


@register_loss("focal")
class FocalLoss(nn.Module):
    """Average ``(1 - p) ** gamma * -log p`` over a batch, p the softmax of the own class.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class; only how many classes there are matters.
    gamma : float, default=1
        0 is plain cross-entropy; the larger, the less a row counts that is nearly right.

    Examples
    --------
    >>> import torch
    >>> from protail.losses.focal import FocalLoss
    >>> FocalLoss([3, 1], gamma=2.0)(torch.zeros(1, 2), torch.tensor([0]))  # log(2) / 4
    tensor(0.1733)
    """

    def __init__(self, counts: Counts, *, gamma: float = 1.0) -> None:
        super().__init__()
        if not 0 <= gamma < math.inf:
            raise ValueError(
                f"gamma={gamma!r}; expected a finite number from 0 on. Use gamma=0 for plain "
                "cross-entropy."
            )
        profile = ClassProfile.of(counts)
        self.n_classes = profile.n_classes
        self.gamma = gamma

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        logits : Tensor, shape (batch, n_classes)
            float16 and bfloat16 are summed in float32.
        target : Tensor of int, shape (batch,)
            The class code of every row.

        Returns
        -------
        Tensor, shape ()
            The mean over the batch.
        """
        logits_bc, target_b = checked_batch(logits, target, self.n_classes)
        own_bc = own_class(target_b, self.n_classes)
        own_b = torch.where(own_bc, logits_bc, 0).sum(1)
        others_bc = logits_bc.masked_fill(own_bc, torch.finfo(logits_bc.dtype).min)
        # From the odds both 1 - p and log p keep their digits and their slopes, however near p is
        # to 0 or 1; from p itself neither would.
        log_odds_b = others_bc.logsumexp(1) - own_b
        share_b = (self.gamma * logsigmoid(log_odds_b)).exp()
        return (share_b * -logsigmoid(-log_odds_b)).mean()

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"n_classes={self.n_classes}, gamma={self.gamma:g}"

"""Cross-entropy that forgets rows the more surely they are classified."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from protail.losses.registry import checked_batch, is_target, register_loss
from protail.options import NonNegative, checked
from protail.profile import ClassProfile, Counts


@register_loss("focal")
class FocalLoss(nn.Module):
    """Average ``(1 - p) ** gamma * -log p`` over a batch, p the softmax of the target class.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class; only how many classes there are matters.
    gamma : float, default=1
        0 is plain cross-entropy; the larger, the less a row counts that is nearly right.

    References
    ----------
    Focal Loss for Dense Object Detection. ICCV 2017.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import FocalLoss
    >>> FocalLoss([3, 1], gamma=2.0)(torch.zeros(1, 2), torch.tensor([0]))  # log(2) / 4
    tensor(0.1733)
    """

    @checked
    def __init__(self, counts: Counts, *, gamma: NonNegative = 1.0) -> None:
        super().__init__()
        self.n_classes = ClassProfile.of(counts).n_classes
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
        target_bc = is_target(target_b, self.n_classes)
        logit_b = torch.where(target_bc, logits_bc, 0).sum(1)
        others_bc = logits_bc.masked_fill(target_bc, torch.finfo(logits_bc.dtype).min)
        # From the odds both 1 - p and log p keep their digits and their slopes, however near p is
        # to 0 or 1; from p itself neither would.
        log_odds_b = others_bc.logsumexp(1) - logit_b
        factor_b = (self.gamma * logsigmoid(log_odds_b)).exp()
        return (factor_b * -logsigmoid(-log_odds_b)).mean()

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"n_classes={self.n_classes}, gamma={self.gamma:g}"

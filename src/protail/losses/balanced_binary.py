"""Binary cross-entropy of softmax outputs, weighted by class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protail.losses.registry import checked_batch, is_target, register_loss
from protail.losses.reweighted import class_balanced_weights
from protail.options import BelowOne
from protail.profile import Counts

# No logarithm of a probability counts for less.
_LEAST_LOG = -100.0


@register_loss("balanced-binary")
class BalancedBinaryLoss(nn.Module):
    """Average the binary cross-entropies of all softmax outputs, rows weighted by class.

    A row costs ``-log p`` of its target class and ``-log(1 - p)`` of every other, times the weight
    of its class in `class_balanced_weights`. The sum is divided by rows times classes, not by the
    weights. That makes it smaller than a cross-entropy by about the number of classes, and the
    learning rate and the weight decay of Weight Balancing are made for that.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    beta : float, default=0.9999
        0 weighs all classes alike; towards 1 a class counts as one over its rows.

    Attributes
    ----------
    weights : Tensor, shape (n_classes,)
        What each class counts.

    References
    ----------
    Long-Tailed Recognition via Weight Balancing. CVPR 2022.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import BalancedBinaryLoss
    >>> loss = BalancedBinaryLoss([1, 1])
    >>> loss(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    tensor(0.6931)
    """

    weights: Tensor

    def __init__(self, counts: Counts, *, beta: BelowOne = 0.9999) -> None:
        super().__init__()
        weights = torch.from_numpy(class_balanced_weights(counts, beta)).float()
        self.register_buffer("weights", weights)

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
            The sum over the batch by rows times classes.
        """
        logits_bc, target_b = checked_batch(logits, target, len(self.weights))
        log_p_bc = logits_bc.log_softmax(1)
        target_bc = is_target(target_b, len(self.weights))
        log_bc = torch.where(target_bc, log_p_bc, _log_one_minus(log_p_bc)).clamp_min(_LEAST_LOG)
        weights_b = self.weights.to(log_bc.dtype)[target_b]
        return -(weights_b * log_bc.sum(1)).sum() / log_bc.numel()


def _log_one_minus(log_p_bc: Tensor) -> Tensor:
    """Give ``log(1 - p)``, with its digits and slopes where p is all but 1.

    Only the largest p of a row can be: its rest is added up from the others.
    """
    top_bc = is_target(log_p_bc.argmax(1), log_p_bc.shape[1])
    rest_b1 = log_p_bc.masked_fill(top_bc, torch.finfo(log_p_bc.dtype).min).logsumexp(1, True)
    others_bc = torch.log1p(-log_p_bc.exp().masked_fill(top_bc, 0))
    return torch.where(top_bc, rest_b1, others_bc)

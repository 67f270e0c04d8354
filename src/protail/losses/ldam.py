"""Cross-entropy that asks for a margin, the wider the rarer a class is."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail.losses.registry import checked_batch, is_target, register_loss
from protail.losses.reweighted import ReweightedCrossEntropy
from protail.options import BelowOne, Epoch, NonNegative, Positive, checked
from protail.profile import ClassProfile, Counts


@checked
def class_margins(counts: Counts, max_margin: NonNegative = 0.5) -> NDArray[np.float64]:
    """Give every class a margin in proportion to ``N ** -1/4``.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    max_margin : float, default=0.5
        The margin of the rarest class.

    Returns
    -------
    ndarray of float64, shape (n_classes,)
        The margins.

    Examples
    --------
    >>> from protail.losses import class_margins
    >>> class_margins([81, 16, 1], max_margin=0.6)
    array([0.2, 0.3, 0.6])
    """
    log_counts = ClassProfile.of(counts).log_counts
    return np.asarray(max_margin * np.exp((log_counts.min() - log_counts) / 4))


@register_loss("ldam", heads=("cosine", "experts"))
class LDAMLoss(ReweightedCrossEntropy):
    """Average the cross-entropy of logits whose target class is ``scale * margin`` lower.

    The margin belongs to training alone: at inference nothing is subtracted. From an epoch on
    classes may be weighted by their effective numbers (LDAM-DRW).

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    max_margin : float, default=0.5
        The margin of the rarest class, in cosine; others have less, as ``N ** -1/4``.
    scale : float, default=30
        What the head multiplies cosines by.
    reweight_from : int, optional
        The epoch, counted from 0, from which on a class counts one over its effective number of
        rows; by default never.
    beta : float, default=0.9999
        As in `class_balanced_weights`.

    Attributes
    ----------
    margins : Tensor, shape (n_classes,)
        The margin of every class, in cosine.
    weights : Tensor, shape (n_classes,)
        What each class counts now.

    References
    ----------
    Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss. NeurIPS 2019.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import LDAMLoss
    >>> loss = LDAMLoss([16, 1], scale=10.0)
    >>> loss.margins
    tensor([0.2500, 0.5000])
    >>> loss(torch.tensor([[7.5, 5.0]]), torch.tensor([0]))  # 7.5 - 10 * 0.25 against 5
    tensor(0.6931)
    """

    margins: Tensor

    @checked
    def __init__(
        self,
        counts: Counts,
        *,
        max_margin: NonNegative = 0.5,
        scale: Positive = 30.0,
        reweight_from: Epoch | None = None,
        beta: BelowOne = 0.9999,
    ) -> None:
        super().__init__(counts, reweight_from, beta)
        self.scale = scale
        margins = torch.from_numpy(class_margins(counts, max_margin)).float()
        self.register_buffer("margins", margins)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        logits : Tensor, shape (batch, n_classes)
            ``scale`` times cosines, without margins. float16 and bfloat16 are summed in float32.
        target : Tensor of int, shape (batch,)
            The class code of every row.

        Returns
        -------
        Tensor, shape ()
            The weighted mean over the batch.
        """
        logits_bc, target_b = checked_batch(logits, target, len(self.margins))
        lowered_by_c = self.scale * self.margins.to(logits_bc.dtype)
        target_bc = is_target(target_b, len(self.margins))
        return super().forward(logits_bc - lowered_by_c * target_bc, target_b)


# No logarithm of a probability counts for less.

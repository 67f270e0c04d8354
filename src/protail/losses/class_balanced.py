"""Cross-entropy weighted by the effective numbers of the classes, from the first epoch on."""

from __future__ import annotations

from protail.losses.registry import register_loss
from protail.losses.reweighted import ReweightedCrossEntropy
from protail.options import BelowOne
from protail.profile import Counts


@register_loss("class-balanced")
class ClassBalancedLoss(ReweightedCrossEntropy):
    """Average the cross-entropy over a batch, each class weighted by its effective number.

    The weights are those of `class_balanced_weights`, and the average is divided by their sum.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    beta : float, default=0.9999
        0 is plain cross-entropy; towards 1 a class counts as one over its rows.

    Attributes
    ----------
    weights : Tensor, shape (n_classes,)
        What each class counts.

    References
    ----------
    Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import ClassBalancedLoss
    >>> loss = ClassBalancedLoss([1, 3], beta=0.5)
    >>> loss.weights
    tensor([1.2727, 0.7273])
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.6931)
    """

    def __init__(self, counts: Counts, *, beta: BelowOne = 0.9999) -> None:
        super().__init__(counts, reweight_from=0, beta=beta)

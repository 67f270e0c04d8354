"""Cross-entropy weighted by a power of the classes' fractions of the training set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protail.losses.registry import register_loss
from protail.losses.reweighted import WeightedCrossEntropy
from protail.options import NonNegative, checked
from protail.profile import ClassProfile, Counts


@checked
def prior_weights(counts: Counts, rho: NonNegative = 1.2) -> NDArray[np.float64]:
    """Weigh classes by ``prior ** -rho``.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    rho : float, default=1.2
        0 weighs all classes alike; at 1 a class counts as one over its rows.

    Returns
    -------
    ndarray of float64, shape (n_classes,)
        Weights of mean 1.

    Examples
    --------
    >>> from protail.losses import prior_weights
    >>> prior_weights([4, 1], rho=0.5)
    array([0.66666667, 1.33333333])
    """
    log_counts = ClassProfile.of(counts).log_counts
    # The rarest class has weight 1 before they are brought to mean 1: nothing overflows.
    weights = np.exp(-rho * (log_counts - log_counts.min()))
    return np.asarray(weights / weights.mean())


@register_loss("reweighted")
class PriorWeightedLoss(WeightedCrossEntropy):
    """Average the cross-entropy over a batch, each class weighted by a power of its frequency.

    DisAlign calls it generalised re-weighting. The weights are those of `prior_weights`, and the
    average is divided by their sum.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    rho : float, default=1.2
        0 is plain cross-entropy; at 1 a class counts as one over its rows.

    Attributes
    ----------
    weights : Tensor, shape (n_classes,)
        What each class counts.

    References
    ----------
    Distribution Alignment: A Unified Framework for Long-tail Visual Recognition. CVPR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import PriorWeightedLoss
    >>> loss = PriorWeightedLoss([4, 1], rho=0.5)
    >>> loss.weights
    tensor([0.6667, 1.3333])
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.6931)
    """

    def __init__(self, counts: Counts, *, rho: NonNegative = 1.2) -> None:
        super().__init__(prior_weights(counts, rho))

"""Cross-entropy weighted by a power of the classes' shares in the training set."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protail.losses.registry import register_loss
from protail.losses.reweighted import WeightedCrossEntropy
from protail.profile import ClassProfile, Counts


def prior_weights(counts: Counts, rho: float = 1.2) -> NDArray[np.float64]:
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
    >>> from protail.losses.reweighted_by_prior import prior_weights
    >>> prior_weights([4, 1], rho=0.5)
    array([0.66666667, 1.33333333])
    """
    if not 0 <= rho < math.inf:
        raise ValueError(f"rho={rho!r}; expected a finite number from 0 on, as in 1.2.")
    profile = ClassProfile.of(counts)
    # The rarest class has weight 1 before they are brought to mean 1: nothing overflows.
    weights = np.exp(-rho * (profile.log_counts - profile.log_counts.min()))
    return np.asarray(weights / weights.mean())


@register_loss("reweighted")
class PriorWeightedLoss(WeightedCrossEntropy):
    """Average the cross-entropy over a batch, each class weighted by a power of its share.

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

    Examples
    --------
    >>> from protail.losses.reweighted_by_prior import PriorWeightedLoss
    >>> PriorWeightedLoss([4, 1], rho=0.5).weights
    tensor([0.6667, 1.3333])
    """

    def __init__(self, counts: Counts, *, rho: float = 1.2) -> None:
        super().__init__(prior_weights(counts, rho))

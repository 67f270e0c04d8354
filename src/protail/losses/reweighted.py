"""Cross-entropy, plain or with classes that count the more the rarer they are from an epoch on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protail.losses.registry import checked_batch, register_loss
from protail.options import BelowOne, Epoch, NonNegative, checked
from protail.profile import ClassProfile, Counts


@checked
def class_balanced_weights(counts: Counts, beta: BelowOne = 0.9999) -> NDArray[np.float64]:
    """Weigh classes by one over their effective number of rows, ``(1 - beta^N) / (1 - beta)``.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    beta : float, default=0.9999
        0 weighs all classes alike; towards 1 a class counts as one over its rows.

    Returns
    -------
    ndarray of float64, shape (n_classes,)
        Weights of mean 1.

    References
    ----------
    Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019.

    Examples
    --------
    >>> from protail.losses import class_balanced_weights
    >>> class_balanced_weights([1, 3], beta=0.5).round(4)
    array([1.2727, 0.7273])
    """
    profile = ClassProfile.of(counts)
    if profile.counts.min() < 1:
        raise ValueError(
            f"counts has {int((profile.counts == 0).sum())} classes without rows; expected at "
            "least one row of each class to weigh it by."
        )
    weights = (1 - beta) / (1 - beta ** profile.counts.astype(np.float64))
    return np.asarray(weights / weights.mean())


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


class WeightedCrossEntropy(nn.Module):
    """Average the cross-entropy over a batch, weighted by class, from some epoch on.

    A weighted average is divided by the sum of its weights. The weights lie in a buffer that
    changes in place, so a CUDA graph sees them.

    Parameters
    ----------
    balanced : array-like of float, shape (n_classes,)
        What each class counts from that epoch on.
    reweight_from : int or None, default=0
        The first epoch with weights, counted from 0; None for never.
    label_smoothing : float, default=0
        As in `torch.nn.CrossEntropyLoss`.

    Attributes
    ----------
    weights : Tensor, shape (n_classes,)
        What each class counts now.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import WeightedCrossEntropy
    >>> loss = WeightedCrossEntropy([1.0, 3.0])
    >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> loss(logits, torch.tensor([0, 1]))  # (0.3133 + 3 * 1.3133) / 4
    tensor(1.0633)
    """

    weights: Tensor
    balanced: Tensor

    @checked
    def __init__(
        self, balanced: ArrayLike, reweight_from: Epoch | None = 0, label_smoothing: BelowOne = 0.0
    ) -> None:
        super().__init__()
        self.reweight_from = reweight_from
        self.label_smoothing = label_smoothing
        self.register_buffer("balanced", torch.tensor(np.asarray(balanced), dtype=torch.float32))
        self.register_buffer("weights", torch.ones_like(self.balanced))
        self.on_epoch(0)

    def on_epoch(self, epoch: int) -> None:
        """Set the weights of an epoch, counted from 0, in place."""
        if self.reweight_from is not None and epoch >= self.reweight_from:
            self.weights.copy_(self.balanced)
        else:
            self.weights.fill_(1.0)

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
            The weighted mean over the batch.
        """
        logits_bc, target_b = checked_batch(logits, target, len(self.weights))
        return cross_entropy(
            logits_bc,
            target_b,
            self.weights.to(logits_bc.dtype),
            label_smoothing=self.label_smoothing,
        )


class ReweightedCrossEntropy(WeightedCrossEntropy):
    """Average the cross-entropy over a batch, from some epoch on weighted by effective numbers.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    reweight_from : int or None
        The first epoch with weights, counted from 0; None for never.
    beta : float, default=0.9999
        As in `class_balanced_weights`.
    label_smoothing : float, default=0
        As in `torch.nn.CrossEntropyLoss`.

    Attributes
    ----------
    weights : Tensor, shape (n_classes,)
        What each class counts now.

    References
    ----------
    Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019.

    Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss. NeurIPS 2019. (Weights
    from some epoch on: deferred re-weighting, DRW.)

    Examples
    --------
    >>> from protail.losses import ReweightedCrossEntropy
    >>> loss = ReweightedCrossEntropy([1, 3], reweight_from=160, beta=0.5)
    >>> loss.weights
    tensor([1., 1.])
    >>> loss.on_epoch(160)
    >>> loss.weights
    tensor([1.2727, 0.7273])
    """

    def __init__(
        self,
        counts: Counts,
        reweight_from: Epoch | None,
        beta: BelowOne = 0.9999,
        label_smoothing: BelowOne = 0.0,
    ) -> None:
        super().__init__(class_balanced_weights(counts, beta), reweight_from, label_smoothing)


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


@register_loss("cross-entropy")
@checked
def _cross_entropy(
    counts: Counts,
    *,
    label_smoothing: BelowOne = 0.0,
    reweight_from: Epoch | None = None,
    beta: BelowOne = 0.9999,
) -> nn.Module:
    """Make the cross-entropy.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class.
    label_smoothing : float, default=0
        How much of each label is spread over all classes.
    reweight_from : int, optional
        The epoch, counted from 0, from which on a class counts the more the rarer it is: one over
        its effective number of images, ``(1 - beta^N) / (1 - beta)``.
    beta : float, default=0.9999
        0 weighs all classes alike; towards 1 a class counts as one over its images.
    """
    if reweight_from is None:
        return nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    return ReweightedCrossEntropy(counts, reweight_from, beta, label_smoothing)

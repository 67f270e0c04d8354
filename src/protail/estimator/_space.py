"""Choosing the space: normalised or not, how sharp, and how much logit adjustment.

On frozen features given once there is nothing to tune on where the backbone has seen the rows: it
has memorised them, and held-out rows look as easy as the others. So the three numbers follow from
leave-one-out distances by a rule with few constants. The constants were set on features of
CIFAR-LT networks, memorised and not, and on scikit-learn's small data sets; the tests that guard
them and the benchmark that measures them are in this project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._evidence import Evidence, gather_evidence
from protail.estimator._features import Features, Placement, class_means

Auto = Literal["auto"]

# Rows that nearest class means get right but for this part are taken for memorised.
MEMORISED_ERROR = 0.02
# Lengths are kept only where that gets this much more rows right than dropping them.
_LENGTHS_MATTER = 0.02
# The mean own-class probability that sets the sharpness, as a part of the accuracy. Memorised
# rows lie too near their class means, so theirs is lower.
_MEMORISED_PART = 0.8
_LARGEST_PART = 0.98
_SMALLEST_PART = 0.75
_PART_LOST_PER_ERROR = 30.0
_CLEARLY_NOT_MEMORISED = 0.03
# Logit adjustment of a training set whose nearest means are all right; less for mild imbalance,
# where counts differ by chance.
_TAU = 0.7
_FULL_IMBALANCE = 10.0
# Without a row to spare in any class there is no evidence: logits then span a few units.
_UNINFORMED_SPAN = 8.0


@dataclass(frozen=True)
class Space:
    """Where prototypes are learned.

    Attributes
    ----------
    features : Features
        All training rows, placed.
    means : Tensor
        Their class means.
    logit_scale : float
        Factor on the logits in training; only cosine needs one, having no length to scale.
    tau : float
        Weight of the logit adjustment.
    evidence : Evidence or None
        What leave-one-out class means get right; None without a row to spare.
    own_distance : float
        Mean distance from the own class, logit scale included.
    """

    features: Features
    means: Tensor
    logit_scale: float
    tau: float
    evidence: Evidence | None
    own_distance: float

    @property
    def accuracy(self) -> float | None:
        """Leave-one-out accuracy of the nearest class mean."""
        return None if self.evidence is None else self.evidence.accuracy

    @property
    def memorised(self) -> bool:
        """Whether rows are so easy that nothing can be learned from holding some out."""
        return self.accuracy is not None and 1 - self.accuracy < MEMORISED_ERROR


def choose_space(
    features: Features,
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    distance: str,
    normalize: float | Auto | None,
    tau: float | Auto,
    rng: np.random.Generator,
) -> Space:
    """Take what the user fixed and choose the rest from the training rows.

    Parameters
    ----------
    features : Features
        All training rows, as they came.
    labels, counts : ndarray of int
        Class codes, and rows of each class.
    distance : str
        A name of ``protail.ops.DISTANCES``.
    normalize : float, None or "auto"
        The radius.
    tau : float or "auto"
        The weight of the logit adjustment.
    rng : numpy.random.Generator
        Chooses the rows that are looked at.

    Returns
    -------
    Space
        The choice.
    """
    codes = torch.from_numpy(labels).to(features.device)
    seen: list[tuple[Features, Tensor, Evidence | None]] = []
    for placement in _placements(distance, normalize):
        placed = features.placed_as(placement)
        means = class_means(placed, codes, len(counts))
        evidence = gather_evidence(placed, labels, means, counts, distance, rng)
        seen.append((placed, means, evidence))
    return _space(*_better(seen), counts, distance, normalize, tau)


def _better(
    seen: list[tuple[Features, Tensor, Evidence | None]],
) -> tuple[Features, Tensor, Evidence | None]:
    """Drop lengths unless they help."""
    if len(seen) == 1 or seen[0][2] is None or seen[1][2] is None:
        return seen[0]
    return seen[1] if seen[1][2].accuracy > seen[0][2].accuracy + _LENGTHS_MATTER else seen[0]


def _space(
    placed: Features,
    means: Tensor,
    evidence: Evidence | None,
    counts: NDArray[np.int64],
    distance: str,
    normalize: float | Auto | None,
    tau: float | Auto,
) -> Space:
    if evidence is None:
        sharpness = _uninformed_sharpness(means, counts, distance)
    else:
        sharpness = _sharpness(evidence, counts)
    rule_tau = _rule_tau(evidence, counts)
    own_distance = 1.0 if evidence is None else evidence.own_distance
    scale = logit_scale = 1.0
    if distance == "cosine":
        logit_scale = sharpness
        own_distance *= sharpness
    elif normalize == "auto":
        scale = sharpness**0.5 if distance == "sqeuclidean" else sharpness
        own_distance *= sharpness
    else:
        # Tau moves boundaries by tau over the sharpness: at another sharpness, another tau.
        rule_tau *= min(1.0, 1 / sharpness)
    return Space(
        features=placed if scale == 1 else placed.placed_as(placed.placement.scaled(scale)),
        means=means * scale,
        logit_scale=logit_scale,
        tau=rule_tau if tau == "auto" else float(tau),
        evidence=evidence,
        own_distance=own_distance,
    )


def _placements(distance: str, normalize: float | Auto | None) -> list[Placement]:
    if normalize is None:
        return [Placement()]
    if normalize != "auto":
        return [Placement(float(normalize))]
    # Cosine has no use for lengths, so there is nothing to compare.
    return [Placement(1.0)] if distance == "cosine" else [Placement(1.0), Placement()]


def _uninformed_sharpness(means: Tensor, counts: NDArray[np.int64], distance: str) -> float:
    means = means[torch.from_numpy(counts > 0).to(means.device)]
    spread = float(ops.distances(means, means.mean(0, keepdim=True), distance).mean())
    return _UNINFORMED_SPAN / spread if spread > 0 else 1.0


def _sharpness(evidence: Evidence, counts: NDArray[np.int64]) -> float:
    error = 1 - evidence.accuracy
    part = 1 - _PART_LOST_PER_ERROR * error * len(counts) / counts.sum()
    part = min(max(part, _SMALLEST_PART), _LARGEST_PART)
    part = _MEMORISED_PART + min(1, error / _CLEARLY_NOT_MEMORISED) * (part - _MEMORISED_PART)
    return evidence.sharpness_at(part * evidence.accuracy)


def _rule_tau(evidence: Evidence | None, counts: NDArray[np.int64]) -> float:
    accuracy = 0.5 if evidence is None else evidence.accuracy
    filled = counts[counts > 0]
    imbalance = filled.max() / filled.min()
    return _TAU * accuracy * min(1.0, math.log(imbalance) / math.log(_FULL_IMBALANCE))

"""What a fit chooses from the training rows: the space, the sharpness, tau; and its evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._features import Features, Placement, class_means

_MOST_ENTRIES = 2**22
_MOST_ROWS = 4096
_FEWEST_ROWS = 256
# The sharpness is sought from here to its inverse, around one over the mean distance.
_SHARPEST = 1e5


@dataclass(frozen=True)
class Evidence:
    """Leave-one-out distances of some rows, each class weighing the same."""

    index: NDArray[np.int64]
    distances: Tensor
    labels: Tensor
    weights: Tensor
    classes: Tensor

    @property
    def accuracy(self) -> float:
        """How often the nearest class mean is the right one."""
        right = self.distances.argmin(1) == self.labels
        return min(1.0, float((self.weights * right).sum()))

    @property
    def own_distance(self) -> float:
        """Mean distance from the target class."""
        own = self.distances.gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return float((self.weights * own).sum())

    def harmed(self, logits: Tensor) -> NDArray[np.int64]:
        """Find the classes that a classifier loses although their class means get them right."""
        n = torch.bincount(self.labels, minlength=len(self.classes))
        before = self._right_by_class(self.distances.neg())
        after = self._right_by_class(logits[:, self.classes])
        # One row right and one row wrong are added: a class that is all right has its noise too.
        chance = (before + 1) / (n + 2)
        deviation = (n * chance * (1 - chance)).sqrt()
        lost = before - after > math.sqrt(2 * math.log(2 * len(n))) * deviation
        codes: NDArray[np.int64] = self.classes[lost].cpu().numpy()
        return codes

    def _right_by_class(self, scores: Tensor) -> Tensor:
        """Count the rows of each class whose largest score is their target class's."""
        own = self.labels[scores.argmax(1) == self.labels]
        return torch.bincount(own, minlength=len(self.classes))

    def own_probability(self, sharpness: float) -> float:
        """Mean probability of the target class at logits of ``-sharpness / 2 * distance``."""
        probability = torch.softmax(self.distances * (-0.5 * sharpness), 1)
        return float((self.weights @ probability.gather(1, self.labels.unsqueeze(1))).item())

    def sharpness_at(self, probability: float) -> float:
        """Find the sharpness at which the target class gets this mean probability."""
        middle = float(self.distances.mean())
        if not math.isfinite(middle):
            raise ValueError(
                "X has values so large that their squares overflow its dtype; expected smaller "
                "ones. Divide X by its standard deviation, or give it as float64."
            )
        if not middle > 0:
            return 1.0
        low, high = 1 / (_SHARPEST * middle), _SHARPEST / middle
        while high > low * 1.01:
            sharpness = math.sqrt(low * high)
            if self.own_probability(sharpness) < probability:
                low = sharpness
            else:
                high = sharpness
        return math.sqrt(low * high)


def gather_evidence(
    features: Features,
    labels: NDArray[np.int64],
    means: Tensor,
    counts: NDArray[np.int64],
    distance: str,
    rng: np.random.Generator,
) -> Evidence | None:
    """Compare a class-balanced sample of rows with the class means."""
    n_rows = min(max(_MOST_ENTRIES // len(counts), _FEWEST_ROWS), _MOST_ROWS)
    index = _balanced_sample(labels, counts, n_rows, rng)
    if len(np.unique(labels[index])) < 2:
        return None
    # A class without rows has no mean: only the others are compared with.
    filled = np.flatnonzero(counts)
    own = torch.from_numpy(np.searchsorted(filled, labels[index])).to(features.device)
    classes = torch.from_numpy(filled).to(features.device)
    means = means[classes]
    rows = features.take(index)
    all_distances = ops.distances(rows, means, distance)
    size = torch.from_numpy(counts[labels[index]]).to(rows).unsqueeze(1)
    others_mean = (means[own] * size - rows) / (size - 1)
    left_out = ops.as_distance(distance).between(rows, others_mean)
    all_distances.scatter_(1, own.unsqueeze(1), left_out.unsqueeze(1))
    weights = 1 / np.bincount(labels[index], minlength=len(counts))[labels[index]]
    weights = weights / weights.sum()
    return Evidence(index, all_distances, own, torch.from_numpy(weights).to(rows), classes)


def _balanced_sample(
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    n_rows: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Choose about ``n_rows`` rows, as evenly over the classes of two rows and more as they go."""
    spare = counts >= 2
    each = max(1, n_rows // max(1, int(spare.sum())))
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.arange(len(labels)) - first[labels[by_class]]
    chosen = by_class[(place < each) & spare[labels[by_class]]]
    return np.sort(chosen if len(chosen) <= n_rows else rng.choice(chosen, n_rows, False))


Auto = Literal["auto"]

# Rows that nearest class means get right but for this part are taken for memorised.
MEMORISED_ERROR = 0.02
# Lengths are kept only where that gets this much more rows right than dropping them.
_LENGTHS_MATTER = 0.02
# The mean target-class probability that sets the sharpness, as a part of the accuracy. Memorised
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
    """Where prototypes are learned."""

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
    """Take what the user fixed and choose the rest from the training rows."""
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
    power = ops.as_distance(distance).power
    if power == 0:  # longer rows are no farther: logits grow instead
        logit_scale = sharpness
        own_distance *= sharpness
    elif normalize == "auto":
        scale = sharpness ** (1 / power)
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
    # Where lengths do not matter there is nothing to compare.
    matters = ops.as_distance(distance).power > 0
    return [Placement(1.0), Placement()] if matters else [Placement(1.0)]


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

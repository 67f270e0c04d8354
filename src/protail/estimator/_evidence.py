"""What training rows say about a classifier before anything is trained.

Every row is compared with the class means, its own class's mean taken without it. How often the
nearest mean is the right one tells how much there is to learn; the distances tell how sharp a
softmax over them should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._features import Features

_MOST_ENTRIES = 2**22
_MOST_ROWS = 4096
_FEWEST_ROWS = 256
# The sharpness is sought from here to its inverse, around one over the mean distance.
_SHARPEST = 1e5


@dataclass(frozen=True)
class Evidence:
    """Leave-one-out distances of some rows, each class weighing the same.

    Attributes
    ----------
    index : ndarray of shape (rows,)
        Which rows these are.
    distances : Tensor, shape (rows, classes)
        From the class means, the row itself left out of its own.
    labels, weights : Tensor, shape (rows,)
        Class of each row, and its weight; the weights add up to 1.
    classes : Tensor, shape (classes,)
        The codes of the classes that have rows: the others have no mean.
    """

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
        """Mean distance from the own class."""
        own = self.distances.gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return float((self.weights * own).sum())

    def harmed(self, logits: Tensor) -> NDArray[np.int64]:
        """Find the classes that a classifier loses although their class means get them right.

        Parameters
        ----------
        logits : Tensor, shape (rows, all classes)
            What a fitted classifier says of these rows.

        Returns
        -------
        ndarray of int
            Codes of the classes of which the classifier gets fewer rows right than the nearest
            class mean does, by more than the noise of that count. The more classes, the more
            standard deviations that is: the largest of C deviations is about sqrt(2 log C).
        """
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
        """Count the rows of each class whose largest score is their own class's."""
        own = self.labels[scores.argmax(1) == self.labels]
        return torch.bincount(own, minlength=len(self.classes))

    def own_probability(self, sharpness: float) -> float:
        """Mean softmax probability of the own class at logits of ``-sharpness / 2 * distance``."""
        probability = torch.softmax(self.distances * (-0.5 * sharpness), 1)
        return float((self.weights @ probability.gather(1, self.labels.unsqueeze(1))).item())

    def sharpness_at(self, probability: float) -> float:
        """Find the sharpness at which the own class gets this mean probability."""
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
    """Compare a class-balanced sample of rows with the class means.

    Parameters
    ----------
    features : Features
        All training rows, placed.
    labels : ndarray of int
        Their class codes.
    means : Tensor, shape (classes, channels)
        The class means of the placed rows.
    counts : ndarray of int
        Rows of each class.
    distance : str
        A name of ``protail.ops.DISTANCES``.
    rng : numpy.random.Generator
        Chooses the sample.

    Returns
    -------
    Evidence or None
        None where fewer than two classes have a row to spare.
    """
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
    left_out = _pair_distances(rows, others_mean, distance)
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


def _pair_distances(rows: Tensor, means: Tensor, distance: str) -> Tensor:
    if distance == "cosine":
        return 1 - torch.cosine_similarity(rows, means, dim=1)
    length: Tensor = torch.linalg.vector_norm(rows - means, dim=1)
    return length.square() if distance == "sqeuclidean" else length

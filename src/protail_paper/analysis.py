"""What the numbers say about the paper, and about the vectors that models have for classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protail.data import make_sampler
from protail.models.heads import LinearHead, PrototypeHead
from protail.profile import ClassProfile, host_array
from protail.training import PlainDriver, cosine, train
from protail_paper.paper import (
    TABLE_7,
    Entry,
    PrintedMean,
    Row,
    printed_means,
    table7_entries,
    table7_errata,
    table7_row,
)

__all__ = [
    "TABLE_7", "Boundaries", "ClassNorms", "Entry", "PlaneClassifier", "PrintedMean", "Row",
    "Separation", "class_norms", "class_separation", "learn_boundaries", "mean_class_norms",
    "printed_means", "table7_entries", "table7_errata", "table7_row",
]  # fmt: skip

Floats = NDArray[np.float64]
Batch = tuple[Tensor, Tensor]
Model = Literal["softmax", "prototypes"]

PAIRS = ("all-all", "head-head", "head-tail", "tail-tail")
# Of Figure 1.
_MODELS: tuple[Model, ...] = ("softmax", "prototypes")
_SAMPLINGS = ("instance", "class-balanced")
_ROWS = np.array([500, 110, 25, 5])
_TEST_ROWS = 500
# About as long as the features of a trained ResNet; the paper's rate fits this scale.
_RADIUS, _SPREAD = 10.0, 4.0
_BATCH = 64
_SOFTMAX_STEPS = 1500
_PROTOTYPE_STEPS = -(-_ROWS.max() * len(_ROWS) // _BATCH)  # one class-balanced epoch


@dataclass(frozen=True, eq=False)
class ClassNorms:
    """Hold the lengths of one vector a class and what they say together.

    Attributes
    ----------
    norms : ndarray of float64, shape (n_classes,)
        Euclidean lengths, in class order.
    rank_correlation : float or None
        Spearman's, between norm and training rows; None where all norms or all sizes are equal.
    variation : float or None
        Standard deviation over mean: 0 where all are equally long; None where all are 0.
    head_to_tail : float or None
        Mean norm of the many group over that of the few group; None without one of them.
    """

    norms: Floats
    rank_correlation: float | None
    variation: float | None
    head_to_tail: float | None

    def to_dict(self) -> dict[str, Any]:
        """Give the same as plain values, ready for JSON.

        Returns
        -------
        dict
            By attribute.

        Examples
        --------
        >>> from protail_paper.analysis import class_norms
        >>> class_norms([[3.0, 4.0], [0.0, 5.0]], [300, 3]).to_dict()
        {'norms': [5.0, 5.0], 'rank_correlation': None, 'variation': 0.0, 'head_to_tail': 1.0}
        """
        return {**vars(self), "norms": self.norms.tolist()}


def class_norms(vectors: ArrayLike | Tensor, counts: ArrayLike | ClassProfile) -> ClassNorms:
    """Measure the vectors of the classes: softmax weights, centroids or prototypes.

    Parameters
    ----------
    vectors : array-like or tensor, shape (n_classes, n_channels)
        One vector a class.
    counts : array-like of int or ClassProfile, shape (n_classes,)
        Training rows of every class, in the same order.

    Returns
    -------
    ClassNorms
        In float64.

    Examples
    --------
    >>> from protail_paper.analysis import class_norms
    >>> measured = class_norms([[9.0, 0.0], [0.0, 6.0], [3.0, 0.0]], [500, 50, 5])
    >>> measured.rank_correlation, measured.head_to_tail
    (1.0, 3.0)
    """
    profile = ClassProfile.of(counts)
    norms = np.linalg.norm(_as_vectors(vectors, profile), axis=1)
    mean = float(norms.mean())
    head, _, tail = profile.groups().values()
    has_both = len(head) > 0 and len(tail) > 0 and norms[tail].any()
    return ClassNorms(
        norms=norms,
        rank_correlation=_rank_correlation(norms, profile.counts),
        variation=float(norms.std()) / mean if mean else None,
        head_to_tail=float(norms[head].mean() / norms[tail].mean()) if has_both else None,
    )


def mean_class_norms(norms: ArrayLike, counts: ArrayLike | ClassProfile) -> ClassNorms:
    """Measure the norms of several seeds, each by itself, and average.

    The variation of averaged norms would be too small: what differs from seed to seed cancels.

    Parameters
    ----------
    norms : array-like, shape (n_seeds, n_classes)
        Lengths of the classes' vectors, a row a seed.
    counts : array-like of int or ClassProfile, shape (n_classes,)
        Training rows of every class, in the same order.

    Returns
    -------
    ClassNorms
        Means over seeds; None for what one of them does not have.

    Examples
    --------
    >>> from protail_paper.analysis import mean_class_norms
    >>> measured = mean_class_norms([[1.0, 3.0], [3.0, 1.0]], [500, 5])
    >>> measured.norms.tolist(), measured.variation, measured.rank_correlation
    ([2.0, 2.0], 0.5, 0.0)
    """
    profile = ClassProfile.of(counts)
    of_seeds = [class_norms(np.reshape(one, (-1, 1)), profile) for one in np.asarray(norms)]
    if not of_seeds:
        raise ValueError("norms has no rows; expected one for each seed.")

    def mean_of(name: str) -> float | None:
        values = [getattr(one, name) for one in of_seeds]
        return None if None in values else float(np.mean(values))

    return ClassNorms(
        np.mean([one.norms for one in of_seeds], axis=0),
        *(mean_of(name) for name in ("rank_correlation", "variation", "head_to_tail")),
    )


def _as_vectors(vectors: ArrayLike | Tensor, profile: ClassProfile) -> Floats:
    """Check that there is one finite vector for each class of the profile."""
    # A tensor first becomes float64: numpy has no bfloat16.
    given = vectors.double() if isinstance(vectors, Tensor) else vectors
    rows = np.asarray(host_array(given), dtype=np.float64)
    if rows.ndim != 2 or len(rows) != profile.n_classes:
        raise ValueError(
            f"vectors has shape {rows.shape}; expected ({profile.n_classes}, n_channels), one row "
            "for each of the counts."
        )
    if not np.isfinite(rows).all():
        first = int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
        raise ValueError(
            f"vectors has values that are no finite numbers, first in row {first}; expected finite "
            "ones. The training it comes from may have diverged."
        )
    return rows


def _rank_correlation(norms: Floats, counts: NDArray[np.int64]) -> float | None:
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    if np.ptp(norms) == 0 or np.ptp(counts) == 0:
        return None
    return float(spearmanr(norms, counts).statistic)


@dataclass(frozen=True)
class Separation:
    """Hold the mean separation of prototypes, by kind of pair.

    Head is the many group, tail the few group. The paper does not say what it took; its groups
    are the ones its tables have.

    Attributes
    ----------
    distance : mapping of str to float or None
        Mean Euclidean distance of "all-all", "head-head", "head-tail" and "tail-tail" pairs;
        None where there is no such pair.
    cosine : mapping of str to float or None
        Mean cosine similarity of the same pairs; a zero vector is similar to nothing (0).
    """

    distance: Mapping[str, float | None]
    cosine: Mapping[str, float | None]

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """Give the same as plain values, ready for JSON.

        Returns
        -------
        dict of str to dict
            By measure, then by kind of pair.

        Examples
        --------
        >>> from protail_paper.analysis import class_separation
        >>> class_separation([[3.0, 0.0], [0.0, 4.0]], [300, 3]).to_dict()["distance"]
        {'all-all': 5.0, 'head-head': None, 'head-tail': 5.0, 'tail-tail': None}
        """
        return {"distance": dict(self.distance), "cosine": dict(self.cosine)}


def class_separation(
    prototypes: ArrayLike | Tensor, counts: ArrayLike | ClassProfile
) -> Separation:
    """Measure how far apart prototypes are; each pair of different classes counts once.

    Parameters
    ----------
    prototypes : array-like or tensor, shape (n_classes, n_channels)
        One vector a class.
    counts : array-like of int or ClassProfile, shape (n_classes,)
        Training rows of every class, in the same order.

    Returns
    -------
    Separation
        In float64.

    Examples
    --------
    >>> from protail_paper.analysis import class_separation
    >>> measured = class_separation([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]], [200, 5, 3])
    >>> measured.distance
    {'all-all': 1.3333333333333333, 'head-head': None, 'head-tail': 1.0, 'tail-tail': 2.0}
    """
    from scipy.spatial.distance import cdist, pdist  # type: ignore[import-untyped]

    profile = ClassProfile.of(counts)
    rows = _as_vectors(prototypes, profile)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    head, _, tail = profile.groups().values()
    return Separation(
        distance={
            "all-all": _mean(pdist(rows)),
            "head-head": _mean(pdist(rows[head])),
            "head-tail": _mean(cdist(rows[head], rows[tail])),
            "tail-tail": _mean(pdist(rows[tail])),
        },
        cosine={
            "all-all": _mean_product_within(units),
            "head-head": _mean_product_within(units[head]),
            "head-tail": _mean_product_between(units[head], units[tail]),
            "tail-tail": _mean_product_within(units[tail]),
        },
    )


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _mean_product_within(rows: Floats) -> float | None:
    """Average products without making them: the square of a sum holds every pair twice."""
    n_pairs = len(rows) * (len(rows) - 1)
    total = rows.sum(0)
    return float(total @ total - np.sum(rows * rows)) / n_pairs if n_pairs else None


def _mean_product_between(some: Floats, others: Floats) -> float | None:
    n_pairs = len(some) * len(others)
    return float(some.sum(0) @ others.sum(0)) / n_pairs if n_pairs else None


@dataclass(frozen=True, eq=False)
class PlaneClassifier:
    """Hold what a classifier of two channels learned.

    Attributes
    ----------
    model : {"softmax", "prototypes"}
        Whether a class wins by its product with a row or by its distance from it.
    sampling : {"instance", "class-balanced"}
        Whether rows or classes were drawn equally often.
    vectors : ndarray of float64, shape (n_classes, 2)
        Weights, without a bias as in the paper's model, or prototypes.
    accuracy : ndarray of float64, shape (n_classes,)
        Of each class on new rows, as many of each class.
    """

    model: Model
    sampling: str
    vectors: Floats
    accuracy: Floats

    def predict(self, points: ArrayLike) -> NDArray[np.int64]:
        """Say which class each point belongs to.

        Parameters
        ----------
        points : array-like, shape (n_points, 2)
            Any points of the plane.

        Returns
        -------
        ndarray of int, shape (n_points,)
            Class codes.

        Examples
        --------
        >>> import numpy as np
        >>> from protail_paper.analysis import PlaneClassifier
        >>> long_and_short = np.array([[4.0, 0.0], [0.0, 1.0]])
        >>> [
        ...     PlaneClassifier(model, "instance", long_and_short, np.ones(2)).predict([[1, 2]])
        ...     for model in ("softmax", "prototypes")
        ... ]
        [array([0]), array([1])]
        """
        scores: Floats = np.asarray(points, dtype=np.float64) @ self.vectors.T
        if self.model == "prototypes":
            # The nearest prototype: what all distances of a point share is left out.
            scores = scores - np.sum(self.vectors**2, axis=1) / 2
        winners: NDArray[np.int64] = scores.argmax(axis=1)
        return winners


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Hold a long-tailed set of two channels and classifiers learned from it.

    Attributes
    ----------
    features : ndarray of float64, shape (n_samples, 2)
        Training rows.
    labels : ndarray of int, shape (n_samples,)
        Their classes, the largest first.
    classifiers : tuple of PlaneClassifier
        Softmax and prototypes under instance sampling, then both under class-balanced sampling.
    """

    features: Floats
    labels: NDArray[np.int64]
    classifiers: tuple[PlaneClassifier, ...]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training rows of every class."""
        return np.bincount(self.labels)


def learn_boundaries(seed: int = 0) -> Boundaries:
    """Draw four Gaussian classes of 500 to 5 rows; learn softmax and prototypes on them.

    Rates, momentum and weight decay are the paper's. Softmax learns from zero until it has
    converged; prototypes learn from the class means for one class-balanced epoch, without logit
    adjustment.

    Parameters
    ----------
    seed : int
        Same seed, same set and same classifiers.

    Returns
    -------
    Boundaries
        After a few seconds on one core.

    Examples
    --------
    >>> from protail_paper.analysis import learn_boundaries
    >>> learned = learn_boundaries()
    >>> learned.counts
    array([500, 110,  25,   5])
    >>> [(one.model, one.sampling) for one in learned.classifiers][:2]
    [('softmax', 'instance'), ('prototypes', 'instance')]
    """
    rng = np.random.default_rng(seed)
    features, labels = _draw(rng, _ROWS)
    new_features, _ = _draw(rng, np.full(len(_ROWS), _TEST_ROWS))
    new_features_by_class = new_features.reshape(len(_ROWS), _TEST_ROWS, 2)
    classifiers = []
    for sampling, model in itertools.product(_SAMPLINGS, _MODELS):
        head = _learn(model, features, labels, sampling, seed)
        accuracy = [
            (head(rows).argmax(1) == label).double().mean().item()
            for label, rows in enumerate(new_features_by_class)
        ]
        [vectors] = (each.detach().numpy() for each in head.parameters())
        classifiers.append(PlaneClassifier(model, sampling, vectors, np.array(accuracy)))
    return Boundaries(features.numpy(), labels.numpy(), tuple(classifiers))


def _draw(rng: np.random.Generator, counts: NDArray[np.int64]) -> Batch:
    """Draw rows around the corners of a square; each small class lies between the large ones."""
    angles = np.pi / 4 + np.pi / 2 * np.array([0, 2, 1, 3])
    centres = _RADIUS * np.stack([np.cos(angles), np.sin(angles)], 1)
    labels = np.repeat(np.arange(len(counts)), counts)
    features = centres[labels] + _SPREAD * rng.standard_normal((len(labels), 2))
    return torch.from_numpy(features), torch.from_numpy(labels)


def _learn(model: Model, features: Tensor, labels: Tensor, sampling: str, seed: int) -> nn.Module:
    head: nn.Module
    if model == "softmax":
        head = LinearHead(len(_ROWS), 2, bias=False).double()
        nn.init.zeros_(head.weight)
        lr, weight_decay, n_steps = 0.01, 5e-3, _SOFTMAX_STEPS
    else:
        head = PrototypeHead.from_means(features, labels)
        lr, weight_decay, n_steps = 4.0, 0.0, _PROTOTYPE_STEPS
    driver: PlainDriver[Batch] = PlainDriver(
        lambda batch: cross_entropy(head(batch[0]), batch[1]),
        torch.optim.SGD(head.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay),
    )
    train(driver, _batches(features, labels, sampling, seed), n_steps, schedule=cosine)
    return head


def _batches(features: Tensor, labels: Tensor, sampling: str, seed: int) -> Iterator[Batch]:
    sampler = make_sampler(sampling, labels.numpy(), seed=seed)
    for epoch in itertools.count():
        for rows in torch.split(torch.from_numpy(sampler.epoch_indices(epoch)), _BATCH):
            yield features[rows], labels[rows]

"""Softmax and prototypes learned on a long-tailed set that can be seen: two channels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protail.data import make_sampler
from protail.heads import PrototypeHead
from protail.heads.linear import LinearHead
from protail.training import PlainDriver, cosine, train

Model = Literal["softmax", "prototypes"]
Batch = tuple[Tensor, Tensor]

_ROWS = np.array([500, 110, 25, 5])
_TEST_ROWS = 500
# About as long as the features of a trained ResNet; the paper's rate fits this scale.
_RADIUS, _SPREAD = 10.0, 4.0
_BATCH = 64
_SOFTMAX_STEPS = 1500
_PROTOTYPE_STEPS = -(-_ROWS.max() * len(_ROWS) // _BATCH)  # one class-balanced epoch


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
    vectors: NDArray[np.float64]
    accuracy: NDArray[np.float64]

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
        >>> from protail.analysis import PlaneClassifier
        >>> long_and_short = np.array([[4.0, 0.0], [0.0, 1.0]])
        >>> [
        ...     PlaneClassifier(model, "instance", long_and_short, np.ones(2)).predict([[1, 2]])
        ...     for model in ("softmax", "prototypes")
        ... ]
        [array([0]), array([1])]
        """
        scores: NDArray[np.float64] = np.asarray(points, dtype=np.float64) @ self.vectors.T
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

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    classifiers: tuple[PlaneClassifier, ...]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training rows of every class."""
        return np.bincount(self.labels)


def learn_boundaries(seed: int = 0) -> Boundaries:
    """Draw four Gaussian classes of 500 to 5 rows; learn softmax and prototypes on them.

    Rates, momentum and weight decay are the paper's. Softmax learns from zero until it stands;
    prototypes learn from the class means for one class-balanced epoch, without logit adjustment.

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
    >>> from protail.analysis import learn_boundaries
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
    for sampling in ("instance", "class-balanced"):
        for learn in (_learn_softmax, _learn_prototypes):
            head = learn(features, labels, sampling, seed)
            accuracy = [
                (head(rows).argmax(1) == label).double().mean().item()
                for label, rows in enumerate(new_features_by_class)
            ]
            model: Model = "softmax" if learn is _learn_softmax else "prototypes"
            [vectors] = head.parameters()
            classifiers.append(
                PlaneClassifier(model, sampling, vectors.detach().numpy(), np.array(accuracy))
            )
    return Boundaries(features.numpy(), labels.numpy(), tuple(classifiers))


def _draw(rng: np.random.Generator, counts: NDArray[np.int64]) -> Batch:
    """Draw rows around the corners of a square; each small class lies between the large ones."""
    angles = np.pi / 4 + np.pi / 2 * np.array([0, 2, 1, 3])
    centres = _RADIUS * np.stack([np.cos(angles), np.sin(angles)], 1)
    labels = np.repeat(np.arange(len(counts)), counts)
    features = centres[labels] + _SPREAD * rng.standard_normal((len(labels), 2))
    return torch.from_numpy(features), torch.from_numpy(labels)


def _learn_softmax(features: Tensor, labels: Tensor, sampling: str, seed: int) -> nn.Module:
    head = LinearHead(len(_ROWS), 2, bias=False).double()
    nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-3)
    _take_steps(head, optimizer, _batches(features, labels, sampling, seed), _SOFTMAX_STEPS)
    return head


def _learn_prototypes(features: Tensor, labels: Tensor, sampling: str, seed: int) -> nn.Module:
    head = PrototypeHead.from_means(features, labels)
    optimizer = torch.optim.SGD(head.parameters(), lr=4.0, momentum=0.9)
    _take_steps(head, optimizer, _batches(features, labels, sampling, seed), _PROTOTYPE_STEPS)
    return head


def _batches(features: Tensor, labels: Tensor, sampling: str, seed: int) -> Iterator[Batch]:
    sampler = make_sampler(sampling, labels.numpy(), seed=seed)
    for epoch in itertools.count():
        drawn = torch.from_numpy(sampler.epoch_indices(epoch))
        for begin in range(0, len(drawn), _BATCH):
            rows = drawn[begin : begin + _BATCH]
            yield features[rows], labels[rows]


def _take_steps(
    head: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch], n_steps: int
) -> None:
    driver: PlainDriver[Batch] = PlainDriver(
        lambda batch: cross_entropy(head(batch[0]), batch[1]), optimizer
    )
    train(driver, batches, n_steps, schedule=cosine)

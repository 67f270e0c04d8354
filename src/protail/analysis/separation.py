"""How far apart prototypes are: mean distance and mean cosine similarity of their pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.analysis.norms import as_vectors
from protail.profile import ClassProfile

PAIRS = ("all-all", "head-head", "head-tail", "tail-tail")

# Rows whose distances from all others are held at a time.
_BLOCK = 256


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
        >>> from protail.analysis import class_separation
        >>> class_separation([[3.0, 0.0], [0.0, 4.0]], [300, 3]).to_dict()["distance"]
        {'all-all': 5.0, 'head-head': None, 'head-tail': 5.0, 'tail-tail': None}
        """
        return {"distance": dict(self.distance), "cosine": dict(self.cosine)}


def class_separation(
    prototypes: ArrayLike | torch.Tensor, counts: ArrayLike | ClassProfile
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
    >>> from protail.analysis import class_separation
    >>> measured = class_separation([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]], [200, 5, 3])
    >>> measured.distance
    {'all-all': 1.3333333333333333, 'head-head': None, 'head-tail': 1.0, 'tail-tail': 2.0}
    """
    profile = ClassProfile.of(counts)
    rows = as_vectors(prototypes, profile)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    head, _, tail = profile.groups().values()
    return Separation(
        distance={
            "all-all": _mean_distance_within(rows),
            "head-head": _mean_distance_within(rows[head]),
            "head-tail": _mean_distance_between(rows[head], rows[tail]),
            "tail-tail": _mean_distance_within(rows[tail]),
        },
        cosine={
            "all-all": _mean_product_within(units),
            "head-head": _mean_product_within(units[head]),
            "head-tail": _mean_product_between(units[head], units[tail]),
            "tail-tail": _mean_product_within(units[tail]),
        },
    )


def _mean_distance_within(rows: NDArray[np.float64]) -> float | None:
    # Ordered pairs: each distance twice, and that of a row from itself is exactly 0.
    n_pairs = len(rows) * (len(rows) - 1)
    return _sum_of_distances(rows, rows) / n_pairs if n_pairs else None


def _mean_distance_between(some: NDArray[np.float64], others: NDArray[np.float64]) -> float | None:
    n_pairs = len(some) * len(others)
    return _sum_of_distances(some, others) / n_pairs if n_pairs else None


def _sum_of_distances(some: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

    starts = range(0, len(some), _BLOCK)
    return float(sum(cdist(some[at : at + _BLOCK], others).sum() for at in starts))


def _mean_product_within(rows: NDArray[np.float64]) -> float | None:
    """Average products without making them: the square of a sum holds every pair twice."""
    n_pairs = len(rows) * (len(rows) - 1)
    total = rows.sum(0)
    return float(total @ total - np.sum(rows * rows)) / n_pairs if n_pairs else None


def _mean_product_between(some: NDArray[np.float64], others: NDArray[np.float64]) -> float | None:
    n_pairs = len(some) * len(others)
    return float(some.sum(0) @ others.sum(0)) / n_pairs if n_pairs else None

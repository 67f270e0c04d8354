"""How long the vectors of the classes are, and whether that goes with their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.profile import ClassProfile, host_array


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

    norms: NDArray[np.float64]
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
        >>> from protail.analysis import class_norms
        >>> class_norms([[3.0, 4.0], [0.0, 5.0]], [300, 3]).to_dict()
        {'norms': [5.0, 5.0], 'rank_correlation': None, 'variation': 0.0, 'head_to_tail': 1.0}
        """
        return {
            "norms": self.norms.tolist(),
            "rank_correlation": self.rank_correlation,
            "variation": self.variation,
            "head_to_tail": self.head_to_tail,
        }


def class_norms(vectors: ArrayLike | torch.Tensor, counts: ArrayLike | ClassProfile) -> ClassNorms:
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
    >>> from protail.analysis import class_norms
    >>> measured = class_norms([[9.0, 0.0], [0.0, 6.0], [3.0, 0.0]], [500, 50, 5])
    >>> measured.rank_correlation, measured.head_to_tail
    (1.0, 3.0)
    """
    profile = ClassProfile.of(counts)
    norms = np.linalg.norm(as_vectors(vectors, profile), axis=1)
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
    >>> from protail.analysis import mean_class_norms
    >>> measured = mean_class_norms([[1.0, 3.0], [3.0, 1.0]], [500, 5])
    >>> measured.norms.tolist(), measured.variation, measured.rank_correlation
    ([2.0, 2.0], 0.5, 0.0)
    """
    profile = ClassProfile.of(counts)
    of_seeds = [class_norms(np.reshape(one, (-1, 1)), profile) for one in np.asarray(norms)]
    if not of_seeds:
        raise ValueError("norms has no rows; expected one for each seed.")
    return ClassNorms(
        norms=np.mean([one.norms for one in of_seeds], axis=0),
        rank_correlation=_mean([one.rank_correlation for one in of_seeds]),
        variation=_mean([one.variation for one in of_seeds]),
        head_to_tail=_mean([one.head_to_tail for one in of_seeds]),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def as_vectors(vectors: ArrayLike | torch.Tensor, profile: ClassProfile) -> NDArray[np.float64]:
    """Check that there is one finite vector for each class of the profile."""
    # A tensor first becomes float64: numpy has no bfloat16.
    given = vectors.double() if isinstance(vectors, torch.Tensor) else vectors
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


def _rank_correlation(norms: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    if np.ptp(norms) == 0 or np.ptp(counts) == 0:
        return None
    return float(spearmanr(norms, counts).statistic)

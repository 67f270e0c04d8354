"""Scores of confidence and novelty: calibration error and AUROC for unseen classes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.evaluation._checks import GROUPS, probabilities, row_scores, scores, whole_number
from protail.profile import host_array


def calibration_error(
    confidence: ArrayLike | torch.Tensor, right: ArrayLike | torch.Tensor, n_bins: int = 15
) -> float:
    """Measure the expected calibration error of top-1 predictions.

    Rows fall into bins of equal width by their confidence; the result is the mean of
    abs(accuracy - mean confidence) over the bins, weighted by their rows.

    Parameters
    ----------
    confidence : array-like or tensor of float, shape (n_samples,)
        The probability of the predicted class.
    right : array-like or tensor of bool, shape (n_samples,)
        Whether the prediction is right.
    n_bins : int
        How many bins there are. A confidence on an edge is in the upper bin, 1 in the last.

    Returns
    -------
    float
        From 0 (confidence says how often the classifier is right) to 1.

    Examples
    --------
    >>> from protail.evaluation import calibration_error
    >>> calibration_error([0.75, 0.75, 0.75, 0.75], [True, True, True, False])
    0.0
    >>> calibration_error([0.75, 0.75, 0.5, 0.5], [True, True, False, False])
    0.375
    """
    confidence = probabilities(confidence, "confidence")
    hits = host_array(right)
    n_bins = whole_number(n_bins, "n_bins", least=1)
    if hits.shape != confidence.shape:
        raise ValueError(
            f"right has shape {hits.shape} and confidence {confidence.shape}; expected one value "
            "a row in both."
        )
    if hits.dtype.kind not in "biuf" or not np.isin(hits, (0, 1)).all():
        raise TypeError("right holds other values than True and False; expected one bool a row.")
    edges = np.arange(1, n_bins) / n_bins
    bins = np.searchsorted(edges, confidence, side="right")
    gaps = np.bincount(bins, weights=hits - confidence)
    return float(np.abs(gaps).sum() / confidence.size)


def known_confidence(
    confidence: ArrayLike | torch.Tensor | None, known: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Check the confidence of every row and keep that of the known rows."""
    if confidence is None:
        return None
    return probabilities(row_scores(confidence, "confidence", known.size), "confidence")[known]


def calibration_by_group(
    confidence: NDArray[np.float64] | None, right: NDArray[np.bool_], group: NDArray[np.int64]
) -> tuple[float | None, dict[str, float | None]]:
    """Measure the calibration error of all rows and of each group's; None where there are none."""
    if confidence is None:
        return None, dict.fromkeys(GROUPS)
    by_group: dict[str, float | None] = {}
    for index, name in enumerate(GROUPS):
        inside = group == index
        by_group[name] = (
            calibration_error(confidence[inside], right[inside]) if inside.any() else None
        )
    return calibration_error(confidence, right), by_group


def novelty_auroc(known: ArrayLike | torch.Tensor, unseen: ArrayLike | torch.Tensor) -> float:
    """Measure the area under the ROC curve of a novelty score.

    It is the fraction of pairs (known row, unseen row) in which the unseen row has the larger
    score; a tie counts half.

    Parameters
    ----------
    known : array-like or tensor of float, shape (n_known,)
        Scores of rows whose class was in the training set.
    unseen : array-like or tensor of float, shape (n_unseen,)
        Scores of rows whose class was not. Larger means stranger.

    Returns
    -------
    float
        1 when every unseen row is stranger than every known row, 0.5 by chance.

    Examples
    --------
    >>> from protail.evaluation import novelty_auroc
    >>> novelty_auroc(known=[1.0, 2.0], unseen=[2.0, 3.0])
    0.875
    """
    ranked = np.sort(scores(known, "known"))
    strange = np.sort(scores(unseen, "unseen"))  # sorted needles are found several times faster
    below = int(np.searchsorted(ranked, strange, side="left").sum())
    not_above = int(np.searchsorted(ranked, strange, side="right").sum())
    return (below + not_above) / (2 * ranked.size * strange.size)


def unseen_auroc(
    novelty: ArrayLike | torch.Tensor | None, known: NDArray[np.bool_]
) -> float | None:
    """Measure how well novelty finds the rows that are not known; None where that says nothing."""
    if novelty is None:
        return None
    strangeness = row_scores(novelty, "novelty", known.size)
    return None if known.all() else novelty_auroc(strangeness[known], strangeness[~known])

"""How well a novelty score tells unseen classes from known ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.evaluation._checks import row_scores, scores


def novelty_auroc(known: ArrayLike | torch.Tensor, unseen: ArrayLike | torch.Tensor) -> float:
    """Measure the area under the ROC curve of a novelty score.

    It is the share of pairs (known row, unseen row) in which the unseen row has the larger
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

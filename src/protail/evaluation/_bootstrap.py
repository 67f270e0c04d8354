"""The paired bootstrap, drawn cell by cell instead of row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 2**25
# Numbers of 8 bytes held at once for each class of a resample: drawn and sorted cells (3 + 3),
# rows, net, change, present, and one to spare.
_NUMBERS_A_CLASS = 11


def resampled_differences(
    cells: NDArray[np.int64],
    members: NDArray[np.float64],
    n_resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw the paired bootstrap of differences in accuracy.

    Accuracies see a row only through its class and whether the one, the other or neither of the
    models alone is right. So a resample of rows with replacement is, exactly in distribution,
    one multinomial draw over these cells.

    Parameters
    ----------
    cells : ndarray of int, shape (n_classes, 3)
        Rows of every class that only the first model has right, only the second, and the rest;
        every class has at least one row.
    members : ndarray of float, shape (n_classes, n_sets)
        1 where a class is in a set of classes, else 0.
    n_resamples : int
        How many resamples to draw.
    rng : numpy.random.Generator
        Where random numbers come from.

    Returns
    -------
    ndarray of float, shape (n_resamples, 1 + n_sets)
        The difference (second minus first) in the share of right rows, then in the mean accuracy
        of each set. Classes that drop out of a resample leave the mean; NaN where all do.
    """
    n_classes, n_rows = len(cells), int(cells.sum())
    filled = np.flatnonzero(cells)
    # The largest cell last: the probability left for the remaining cells, which numpy keeps by
    # subtraction, is then never so small that rounding shows.
    filled = filled[np.argsort(cells.ravel()[filled], kind="stable")]
    shares = cells.ravel()[filled] / n_rows
    step = max(1, _CHUNK_BYTES // (8 * _NUMBERS_A_CLASS * n_classes))
    chunks = []
    for start in range(0, n_resamples, step):
        size = min(step, n_resamples - start)
        drawn = np.zeros((size, n_classes * 3), dtype=np.int64)
        drawn[:, filled] = rng.multinomial(n_rows, shares, size=size)
        chunks.append(_differences(drawn.reshape(size, n_classes, 3), members, n_rows))
    # Sums of fractions such as 1/3 - 1/3 may miss 0 by a rounding error; 0 must be 0 here.
    return np.concatenate(chunks).round(12)


def _differences(
    drawn: NDArray[np.int64], members: NDArray[np.float64], n_rows: int
) -> NDArray[np.float64]:
    rows = drawn.sum(axis=2)
    net = drawn[:, :, 1] - drawn[:, :, 0]
    present = (rows > 0).astype(np.float64)
    change = net / np.maximum(rows, 1)
    with np.errstate(invalid="ignore"):
        means = (change @ members) / (present @ members)
    return np.column_stack([net.sum(axis=1) / n_rows, means])

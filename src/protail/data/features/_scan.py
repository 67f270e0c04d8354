"""Look through rows once: which are not finite, which are zero, which came before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail.data.features._spool import row_bytes, rows_a_block, spans


@dataclass(frozen=True)
class Scan:
    """Hold what a look through all rows has found.

    Attributes
    ----------
    finite : ndarray of bool, shape (n_rows,)
        Whether all numbers of the row are finite.
    n_non_finite, n_zero : int
        Rows with a NaN or infinity; rows of zeros only.
    duplicate_of : ndarray of int64, shape (n_rows,)
        The first identical row; the row itself where none came before.
    n_duplicates : int
        Rows that came before.
    n_conflicts : int
        Duplicates whose label is not that of the first one; 0 without labels.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.features import Scan, scan
    >>> isinstance(scan(np.eye(2)), Scan)
    True
    """

    finite: NDArray[np.bool_]
    n_non_finite: int
    n_zero: int
    duplicate_of: NDArray[np.int64]
    n_duplicates: int
    n_conflicts: int


def scan(rows: NDArray[Any], labels: ArrayLike | None = None) -> Scan:
    """Find rows that are not finite, zero, or there twice.

    Identical means: every number equal, where 0 equals -0 and NaN equals NaN.

    Parameters
    ----------
    rows : ndarray, shape (n_rows, width)
        May be memory mapped; it is read in blocks.
    labels : array-like, shape (n_rows,), optional
        To see which duplicates contradict each other.

    Returns
    -------
    Scan
        Masks and counts.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.features import scan
    >>> found = scan(np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]), ["ant", "bee", "cat"])
    >>> found.duplicate_of, found.n_zero, found.n_conflicts
    (array([0, 1, 0]), 1, 1)
    """
    if rows.ndim != 2:
        raise ValueError(f"rows has shape {rows.shape}; expected (n_rows, width).")
    plain = np.asarray(rows)
    names = None if labels is None else np.asarray(labels)
    if names is not None and names.shape != plain.shape[:1]:
        raise ValueError(f"labels has shape {names.shape}; expected ({len(plain)},).")
    finite = np.empty(len(plain), dtype=np.bool_)
    hashes = np.empty(len(plain), dtype=np.int64)
    n_zero = 0
    for part in spans(len(plain), rows_a_block(row_bytes(plain))):
        block = _comparable(plain[part])
        finite[part] = np.isfinite(block).all(axis=1)
        n_zero += len(block) - int(np.count_nonzero(block.any(axis=1)))
        hashes[part] = _hashes(block)
    first = _first_identical(plain, hashes)
    again = np.flatnonzero(first != np.arange(len(plain)))
    return Scan(
        finite=finite,
        n_non_finite=int(len(plain) - np.count_nonzero(finite)),
        n_zero=n_zero,
        duplicate_of=first,
        n_duplicates=len(again),
        n_conflicts=0 if names is None else int(np.sum(names[again] != names[first[again]])),
    )


def _comparable(rows: NDArray[Any]) -> NDArray[Any]:
    """Copy rows so that equal numbers have equal bytes: -0 becomes 0, every NaN the same."""
    block = np.array(rows, order="C")
    if block.dtype.kind == "f":
        block[block == 0] = 0
        block[np.isnan(block)] = np.nan
    return block


def _hashes(block: NDArray[Any]) -> NDArray[np.int64]:
    data, size = block.tobytes(), row_bytes(block)
    pieces = (data[begin : begin + size] for begin in range(0, len(data), size))
    return np.fromiter(map(hash, pieces), dtype=np.int64, count=len(block))


def _first_identical(rows: NDArray[Any], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give each row the first one it equals; the hash only says whom to compare with."""
    first = np.arange(len(rows), dtype=np.int64)
    undecided = np.arange(len(rows), dtype=np.int64)
    while undecided.size:
        _, leaders, codes = np.unique(
            hashes[undecided], return_index=True, return_inverse=True
        )  # the index is that of the first, thus the smallest row
        leader = undecided[leaders][codes]
        follows = leader != undecided
        undecided, leader = undecided[follows], leader[follows]
        same = _equal_rows(rows, undecided, leader)
        first[undecided[same]] = leader[same]
        # Same hash, other row: these look for a first one among themselves.
        undecided = undecided[~same]
    return first


def _equal_rows(
    rows: NDArray[Any], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.bool_]:
    same = np.empty(len(left), dtype=np.bool_)
    for part in spans(len(left), rows_a_block(row_bytes(rows))):
        a, b = rows[left[part]], rows[right[part]]
        equal = a == b
        if rows.dtype.kind == "f":
            equal |= np.isnan(a) & np.isnan(b)
        same[part] = equal.all(axis=1)
    return same

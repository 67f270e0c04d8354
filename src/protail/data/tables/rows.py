"""What is done with rows that may be more than memory should hold: gather, take, scan, split."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from protail._files import explained

BLOCK_BYTES = 16 << 20
IN_MEMORY_BYTES = 256 << 20

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


def rows_a_block(row_bytes: int) -> int:
    """Say how many rows make a block of about 16 MiB; at least one."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def spans(n_rows: int, row_bytes: int) -> Iterator[slice]:
    """Cut ``range(n_rows)`` into blocks."""
    size = rows_a_block(row_bytes)
    return (slice(begin, min(begin + size, n_rows)) for begin in range(0, n_rows, size))


def gather(
    blocks: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: DTypeLike
) -> NDArray[Any]:
    """Put blocks one below the other: in memory, or in a temporary file nobody has to remove."""
    kind, filled = np.dtype(dtype), 0
    if math.prod(shape) * kind.itemsize < IN_MEMORY_BYTES:
        rows = np.empty(shape, kind)
        for block in blocks:
            rows[filled : filled + len(block)] = block
            filled += len(block)
    else:
        with tempfile.TemporaryFile(prefix="protail-") as file:
            for block in blocks:
                # Written, not mapped: a full disk is then an error and not the end of the process.
                try:
                    file.write(np.ascontiguousarray(block, kind).data)
                    file.flush()
                except OSError as error:
                    raise explained(error, Path(tempfile.gettempdir())) from error
                filled += len(block)
            rows = np.memmap(file, kind, "r+", shape=shape)
    if filled != shape[0]:
        raise ValueError(f"{filled} rows came; expected {shape[0]}. Did the file change meanwhile?")
    return rows


def take(rows: NDArray[Any], index: ArrayLike) -> NDArray[Any]:
    """Take the chosen rows, on disk where they are many.

    Parameters
    ----------
    rows : ndarray, shape (n_rows, width)
        May be memory mapped.
    index : array-like of int or bool
        Which rows, in which order; or a mask of length n_rows.

    Returns
    -------
    ndarray, shape (n_chosen, width)
        In memory below 256 MiB; otherwise mapped from a temporary file, which goes away with the
        array.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.tables import take
    >>> take(np.array([[1.0], [2.0], [3.0]]), [2, 0])
    array([[3.],
           [1.]])
    """
    chosen = np.asarray(index)
    if chosen.dtype == bool:
        if chosen.shape != rows.shape[:1]:
            raise ValueError(f"index is a mask of shape {chosen.shape}; expected ({len(rows)},).")
        chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64) if chosen.size == 0 else chosen
    plain = np.asarray(rows)
    blocks = (plain[chosen[part]] for part in spans(len(chosen), plain[:1].nbytes))
    return gather(blocks, (len(chosen), plain.shape[1]), plain.dtype)


@dataclass(frozen=True)
class Scan:
    """Hold what a scan of all rows has found.

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
    >>> from protail.data.tables import Scan, scan
    >>> isinstance(scan(np.eye(2)), Scan)
    True
    """

    finite: Mask
    n_non_finite: int
    n_zero: int
    duplicate_of: Index
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
    >>> from protail.data.tables import scan
    >>> found = scan(np.array([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]), ["ant", "bee", "cat"])
    >>> found.duplicate_of, found.n_zero, found.n_conflicts
    (array([0, 1, 0]), 1, 1)
    """
    if rows.ndim != 2:
        raise ValueError(f"rows has shape {rows.shape}; expected (n_rows, width).")
    plain = np.asarray(rows)
    names = np.zeros(len(plain)) if labels is None else np.asarray(labels)
    if names.shape != plain.shape[:1]:
        raise ValueError(f"labels has shape {names.shape}; expected ({len(plain)},).")
    finite = np.empty(len(plain), dtype=np.bool_)
    # Digests in place of rows: two different rows of one digest are as good as impossible.
    digests = np.empty((len(plain), 2), dtype=np.uint64)
    n_zero = 0
    for part in spans(len(plain), plain[:1].nbytes):
        block = np.array(plain[part], order="C")
        if block.dtype.kind == "f":  # equal numbers get equal bytes
            block[block == 0] = 0
            block[np.isnan(block)] = np.nan
        finite[part] = np.isfinite(block).all(axis=1)
        n_zero += len(block) - int(np.count_nonzero(block.any(axis=1)))
        joined = b"".join(blake2b(row, digest_size=16).digest() for row in block)
        digests[part] = np.frombuffer(joined, dtype=np.uint64).reshape(-1, 2)
    first = _first_equal(digests)
    again = np.flatnonzero(first != np.arange(len(plain)))
    return Scan(
        finite=finite,
        n_non_finite=int(len(plain) - np.count_nonzero(finite)),
        n_zero=n_zero,
        duplicate_of=first,
        n_duplicates=len(again),
        n_conflicts=int(np.sum(names[again] != names[first[again]])),
    )


def _first_equal(digests: NDArray[np.uint64]) -> Index:
    """Give each row the first one of the same digest."""
    order = np.lexsort(digests.T)  # stable: rows of one digest stay in their order
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (digests[order[1:]] != digests[order[:-1]]).any(axis=1)
    first = np.empty_like(order)
    first[order] = order[begins][np.cumsum(begins) - 1]
    return first


def split(
    labels: ArrayLike, *, fraction: float = 0.2, groups: ArrayLike | None = None, seed: int = 0
) -> tuple[Index, Index]:
    """Split rows into a part to train on and a part held out, class by class.

    Of a class with n rows, ``round(fraction * n)`` are held out, but at least one where it has two
    and never all. Rows of one group stay together, so a class may get fewer than that where its
    groups are large, and the smallest group where none fits. A group whose rows carry different
    labels counts for each of their classes.

    Parameters
    ----------
    labels : array-like, shape (n_rows,)
        Whole numbers or names.
    fraction : float, default=0.2
        Above 0 and below 1.
    groups : array-like of int, shape (n_rows,), optional
        Rows with the same number are not to be parted: `Scan.duplicate_of`.
    seed : int, default=0
        Same seed, same split.

    Returns
    -------
    train, held_out : ndarray of int64
        Row numbers in ascending order.

    Examples
    --------
    >>> from protail.data.tables import split
    >>> train, held_out = split(["ant"] * 8 + ["bee"] * 2 + ["cat"], fraction=0.25)
    >>> len(train), len(held_out)
    (8, 3)
    """
    names = np.asarray(labels)
    if names.ndim != 1 or names.size == 0:
        raise ValueError(f"labels has shape {names.shape}; expected (n_rows,), at least one row.")
    if not (math.isfinite(fraction) and 0 < fraction < 1):
        raise ValueError(f"fraction={fraction!r}; expected a number above 0 and below 1.")
    given = np.arange(len(names)) if groups is None else np.asarray(groups)
    if given.shape != names.shape:
        raise ValueError(f"groups has shape {given.shape}; expected ({len(names)},), as labels.")
    classes = np.unique(names, return_inverse=True)[1]
    group_of = np.unique(given, return_inverse=True)[1]
    held = _held_out_groups(classes, group_of, fraction, np.random.default_rng(seed))[group_of]
    return np.flatnonzero(~held), np.flatnonzero(held)


def _held_out_groups(
    classes: Index, group_of: Index, fraction: float, random: np.random.Generator
) -> Mask:
    """Say of each group whether it is held out."""
    sizes, counts = np.bincount(group_of), np.bincount(classes)
    class_of = np.empty(len(sizes), dtype=np.int64)
    class_of[group_of] = classes
    is_mixed = np.zeros(len(sizes), dtype=np.bool_)
    is_mixed[group_of[classes != class_of[group_of]]] = True
    quota = np.clip(np.rint(fraction * counts).astype(np.int64), 1, counts - 1)
    order = np.lexsort((random.random(len(sizes)), class_of))
    held = np.zeros(len(sizes), dtype=np.bool_)
    left = quota.copy()

    # Groups of several classes, as far as each class can spare rows. Left in training, they would
    # make a classifier look better than it is: rows that contradict each other are the ones it
    # cannot get right.
    chosen = is_mixed & (random.random(len(sizes)) < fraction)
    rows = np.flatnonzero(chosen[group_of])
    rows = rows[np.argsort(group_of[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(group_of[rows])) + 1):
        found, n_rows = np.unique(classes[members], return_counts=True)
        if (n_rows <= left[found]).all():
            held[group_of[members]] = True
            left[found] -= n_rows

    # The others in random order, while they fit; lists, because numpy is slow one by one.
    order = order[~is_mixed[order]]
    spare = left.tolist()
    triples = zip(order.tolist(), class_of[order].tolist(), sizes[order].tolist(), strict=True)
    for group, name, size in triples:
        if size <= spare[name]:
            held[group] = True
            spare[name] -= size

    # Where none fitted, the smallest group of the class, unless it is the whole class.
    is_empty = np.array(spare) == quota
    able = np.flatnonzero(~is_mixed & is_empty[class_of] & (sizes < counts[class_of]))
    able = able[np.lexsort((sizes[able], class_of[able]))]
    held[able[np.unique(class_of[able], return_index=True)[1]]] = True
    return held

"""What is done with rows that may be more than memory should hold: gather, take, scan, split."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from protail._files import explained

if TYPE_CHECKING:
    from protail.data.tables.feature_file import FeatureFile

BLOCK_BYTES = 16 << 20
IN_MEMORY_BYTES = 256 << 20
# Lists of numbers take ten times the memory of arrays.
_LISTED_AT_A_TIME = 1 << 18

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
# Works as the builtin `map` does, perhaps on several machines.
Engine = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


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


def scratch(shape: tuple[int, int], dtype: DTypeLike) -> NDArray[Any]:
    """Give rows to be filled: in memory, or in a temporary file nobody has to remove.

    Parameters
    ----------
    shape : tuple of int
        How many rows, of how many numbers.
    dtype : dtype
        Of the numbers.

    Returns
    -------
    ndarray
        In memory below 256 MiB; its numbers are anything at all.

    Examples
    --------
    >>> from protail.data.tables import scratch
    >>> scratch((3, 2), "float32").shape
    (3, 2)
    """
    kind = np.dtype(dtype)
    n_bytes = math.prod(shape) * kind.itemsize
    if n_bytes < IN_MEMORY_BYTES:
        return np.empty(shape, kind)
    with tempfile.TemporaryFile(prefix="protail-") as file:
        try:  # a disk that is full when a page is written would end the process
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        except AttributeError:  # not on this system
            file.truncate(n_bytes)
        except OSError as error:
            raise explained(error, Path(tempfile.gettempdir())) from error
        return np.memmap(file, kind, "r+", shape=shape)


class Part(NamedTuple):
    """Rows of one file, from ``start`` to ``stop``; where some are chosen only those."""

    file: FeatureFile
    start: int
    stop: int
    chosen: Index | None = None  # ascending, counted from start

    @property
    def n_rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start if self.chosen is None else len(self.chosen)

    def at(self, index: Index) -> Part:
        """Choose some of its rows."""
        chosen = index if self.chosen is None else self.chosen[index]
        return self._replace(stop=self.start + int(chosen[-1]) + 1, chosen=chosen)

    def blocks(self, dtype: DTypeLike) -> Iterator[NDArray[Any]]:
        """Read them in the type that all files have in common, a block at a time."""
        return (block.astype(dtype, copy=False) for block in self._blocks())

    def _blocks(self) -> Iterator[NDArray[Any]]:
        if self.chosen is not None and self.file.is_mapped:
            rows: Any = self.file.rows()
            for some in spans(len(self.chosen), rows[:1].nbytes):
                yield np.asarray(rows[self.start + self.chosen[some]])
            return
        first, n_rows = 0, self.stop - self.start
        for block in self.file.blocks(self.start):
            last = min(first + len(block), n_rows)
            if self.chosen is None:
                yield block[: last - first]
            else:
                begin, end = np.searchsorted(self.chosen, (first, last))
                if begin < end:
                    yield block[self.chosen[begin:end] - first]
            first = last
            if first == n_rows:
                return


class ShardedRows:
    """Rows of several files, one below the other, that are never held all at once.

    Parameters
    ----------
    parts : sequence of Part
        The rows in order.
    width : int
        How many numbers a row has.
    dtype : dtype
        Of the rows.
    engine : callable, default=map
        Does the work on parts, as the builtin `map` does: give that of a pool of processes, or of
        a cluster.

    Attributes
    ----------
    shape : tuple of int
        How many rows, of how many numbers.
    n_zero : int or None
        Rows of zeros only, once it is known that all rows are finite.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from protail.data.tables import ShardedRows, open_features
    >>> folder = Path(tempfile.mkdtemp())
    >>> for number in range(3):
    ...     np.save(folder / f"rows-{number}.npy", np.full((2, 4), number, "float32"))
    >>> rows = open_features(folder, engine=map).rows()
    >>> isinstance(rows, ShardedRows), rows.shape
    (True, (6, 4))
    >>> list(rows.map(lambda blocks: float(sum(block.sum() for block in blocks))))
    [0.0, 8.0, 16.0]
    >>> rows.take([5, 0])[:, 0]
    array([2., 0.], dtype=float32)
    """

    ndim = 2

    def __init__(
        self, parts: Sequence[Part], width: int, dtype: DTypeLike, engine: Engine = map
    ) -> None:
        self.parts, self.dtype, self.engine = tuple(parts), np.dtype(dtype), engine
        self._ends = np.cumsum([part.n_rows for part in self.parts], dtype=np.int64)
        self.shape = (int(self._ends[-1]) if self.parts else 0, width)
        self.n_zero: int | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Gather all rows, in a temporary file where they are many."""
        return gather(self.blocks(), self.shape, dtype or self.dtype)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Walk through all rows, here."""
        return (block for part in self.parts for block in part.blocks(self.dtype))

    def map(self, work: Callable[..., Any], *along: NDArray[Any]) -> Iterator[Any]:
        """Do something to each part, wherever the engine does it, and give the results in order.

        Parameters
        ----------
        work : callable
            Gets the blocks of a part and, of each array in ``along``, what belongs to its rows.
        *along : ndarray
            One entry for each row.

        Yields
        ------
        object
            What ``work`` gives for each part.
        """
        places = zip(self._ends - [part.n_rows for part in self.parts], self._ends, strict=True)
        cut = ([each[begin:end] for each in along] for begin, end in places)
        yield from self.engine(
            partial(_worked, work, self.dtype), zip(self.parts, cut, strict=True)
        )

    def at(self, index: ArrayLike) -> ShardedRows:
        """Choose rows, by a mask or an ascending index, without reading them."""
        chosen = np.asarray(index)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        ends = np.searchsorted(chosen, self._ends)
        begins = np.concatenate([[0], ends[:-1]])
        first = self._ends - [part.n_rows for part in self.parts]
        parts = [
            part.at(chosen[begin:end] - row)
            for part, begin, end, row in zip(self.parts, begins, ends, first, strict=True)
            if begin < end
        ]
        found = ShardedRows(parts, self.shape[1], self.dtype, self.engine)
        found.n_zero = 0 if self.n_zero == 0 else None
        return found

    def take(self, index: ArrayLike) -> NDArray[Any]:
        """Read the rows of an index, in any order."""
        chosen = np.asarray(index, np.int64)
        order = np.argsort(chosen, kind="stable")
        rows = np.empty((len(chosen), self.shape[1]), self.dtype)
        begin = 0
        for block in self.at(chosen[order]).map(_joined):
            rows[order[begin : begin + len(block)]] = block
            begin += len(block)
        return rows


def _worked(
    work: Callable[..., Any], dtype: DTypeLike, given: tuple[Part, list[NDArray[Any]]]
) -> Any:
    part, along = given
    return work(part.blocks(dtype), *along)


def _joined(blocks: Iterator[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(list(blocks))


def take(rows: Any, index: ArrayLike) -> Any:
    """Take the chosen rows, on disk where they are many.

    Parameters
    ----------
    rows : ndarray or ShardedRows, shape (n_rows, width)
        May be memory mapped.
    index : array-like of int or bool
        Which rows, in which order; or a mask of length n_rows.

    Returns
    -------
    ndarray, shape (n_chosen, width)
        In memory below 256 MiB; otherwise mapped from a temporary file, which goes away with the
        array. Of `ShardedRows` in ascending order none is read: they are `ShardedRows` again.

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
    if isinstance(rows, ShardedRows):
        return rows.at(chosen) if (np.diff(chosen) > 0).all() else rows.take(chosen)
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


def scan(rows: NDArray[Any] | ShardedRows, labels: ArrayLike | None = None) -> Scan:
    """Find rows that are not finite, zero, or there twice.

    Identical means: every number equal, where 0 equals -0 and NaN equals NaN.

    Parameters
    ----------
    rows : ndarray or ShardedRows, shape (n_rows, width)
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
    names = np.zeros(len(rows)) if labels is None else np.asarray(labels)
    if names.shape != rows.shape[:1]:
        raise ValueError(f"labels has shape {names.shape}; expected ({len(rows)},).")
    if isinstance(rows, ShardedRows):
        looked = list(zip(*rows.map(_looked), strict=True))
    else:
        plain = np.asarray(rows)
        blocks = (plain[part] for part in spans(len(plain), plain[:1].nbytes))
        looked = list(zip(_looked(blocks), strict=True))
    finite, digests, zeros = (np.concatenate(each) for each in looked)
    n_non_finite, n_zero = int(len(finite) - np.count_nonzero(finite)), int(zeros.sum())
    if isinstance(rows, ShardedRows) and not n_non_finite:
        rows.n_zero = n_zero
    first = _first_equal(digests)
    again = np.flatnonzero(first != np.arange(len(rows)))
    return Scan(
        finite=finite,
        n_non_finite=n_non_finite,
        n_zero=n_zero,
        duplicate_of=first,
        n_duplicates=len(again),
        n_conflicts=int(np.sum(names[again] != names[first[again]])),
    )


def _looked(blocks: Iterable[NDArray[Any]]) -> tuple[Mask, NDArray[np.uint64], Mask]:
    """Say of each row whether it is finite, what it is known by, and whether it is of zeros."""
    # Digests in place of rows: two different rows of one digest are as good as impossible.
    nothing = np.empty(0, np.bool_)
    found: list[tuple[Any, ...]] = [(nothing, np.empty((0, 2), np.uint64), nothing)]
    for given in blocks:
        block = np.array(given, order="C")
        if block.dtype.kind == "f":  # equal numbers get equal bytes
            block[block == 0] = 0
            block[np.isnan(block)] = np.nan
        joined = b"".join(blake2b(row, digest_size=16).digest() for row in block)
        digests = np.frombuffer(joined, dtype=np.uint64).reshape(-1, 2)
        found.append((np.isfinite(block).all(axis=1), digests, (block == 0).all(axis=1)))
    finite, digests, zeros = (np.concatenate(each) for each in zip(*found, strict=True))
    return finite, digests, zeros


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
    for begin in range(0, len(order), _LISTED_AT_A_TIME):
        some = order[begin : begin + _LISTED_AT_A_TIME]
        triples = zip(some.tolist(), class_of[some].tolist(), sizes[some].tolist(), strict=True)
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

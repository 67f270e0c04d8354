"""Random cycles inside classes: a class gives each of its rows once before any row twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protail.data._random import Bits, random_bits, random_order

Index = NDArray[np.int64]

# Rows shuffled in one sort: few enough for the cache (and for random_order), enough to hide the
# overhead of a call.
_CHUNK = 1 << 15


class RowsByClass:
    """Group row numbers by class; classes without rows are left out.

    Parameters
    ----------
    codes : ndarray of int64, shape (n_rows,)
        The class code of every row.

    Attributes
    ----------
    rows : ndarray of int64, shape (n_rows,)
        Row numbers, class after class.
    sizes, starts : ndarray of int64, shape (n_groups,)
        How many rows each class that has any has, and where they start in ``rows``.

    Examples
    --------
    >>> groups = RowsByClass(np.array([3, 0, 3]))
    >>> groups.rows, groups.sizes, groups.starts
    (array([1, 0, 2]), array([1, 2]), array([0, 1]))
    """

    def __init__(self, codes: Index) -> None:
        counts = np.bincount(codes)
        self.rows = _stable_order(codes)
        self.sizes: Index = counts[counts > 0].astype(np.int64)
        self.starts: Index = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return self.sizes.size


class CycleReader:
    """Hand out rows of classes, each class walking through its own endless random cycles.

    Which row a class gives at its t-th draw depends on the key, the class and t alone.

    Parameters
    ----------
    groups : RowsByClass
        The rows.
    key : ndarray of uint64, shape (1,)
        The random stream.
    drawn : ndarray of int64, shape (n_groups,)
        How many rows each class has given before.

    Examples
    --------
    >>> from protail.data._random import stream_key
    >>> groups = RowsByClass(np.array([0, 0, 1]))
    >>> reader = CycleReader(groups, stream_key(0), np.zeros(2, dtype=np.int64))
    >>> rows = reader.take(np.array([0, 1, 0, 1]))
    >>> rows[[1, 3]], sorted(rows[[0, 2]].tolist())
    (array([2, 2]), [0, 1])
    """

    def __init__(self, groups: RowsByClass, key: Bits, drawn: Index) -> None:
        self._groups = groups
        self._key = key
        self._drawn = drawn.copy()
        # The unfinished cycle of a class, in its order, lies where the class lies in groups.rows.
        self._held = np.empty_like(groups.rows)
        self._held_cycle = np.full(len(groups), -1, dtype=np.int64)

    def take(self, classes: Index) -> Index:
        """Give the next row of each class in ``classes``, in that order."""
        order = _stable_order(classes)
        ordered = classes[order]
        first_of = np.flatnonzero(np.diff(ordered, prepend=-1))
        present = ordered[first_of]
        wanted = np.diff(first_of, append=classes.size)

        size, drawn = self._groups.sizes[present], self._drawn[present]
        cycle, done = np.divmod(drawn, size)
        last_cycle = (drawn + wanted - 1) // size
        is_held = self._held_cycle[present] == cycle
        n_fresh = last_cycle - cycle + 1 - is_held
        fresh = self._shuffled(present, cycle + is_held, n_fresh)
        fresh_start = np.cumsum(n_fresh * size) - n_fresh * size

        # Places count from the first fresh row of the class; below 0 lies the held cycle.
        place = np.arange(classes.size) + np.repeat(done - is_held * size - first_of, wanted)
        held_end = np.repeat(self._groups.starts[present] + size, wanted)
        from_held = place < 0
        taken = np.empty_like(order)
        taken[from_held] = self._held[(held_end + place)[from_held]]
        from_fresh = ~from_held
        taken[from_fresh] = fresh[(np.repeat(fresh_start, wanted) + place)[from_fresh]]

        self._drawn[present] += wanted
        unfinished = (n_fresh > 0) & ((drawn + wanted) % size > 0)
        self._hold(present, last_cycle, fresh, fresh_start + (n_fresh - 1) * size, unfinished)
        rows = np.empty_like(taken)
        rows[order] = taken
        return rows

    def _shuffled(self, classes: Index, cycle: Index, n_cycles: Index) -> Index:
        """Shuffle ``n_cycles`` cycles of every class, from ``cycle`` on, and lay them in a row."""
        owner = np.repeat(classes, n_cycles)
        number = np.repeat(cycle, n_cycles) + _counts_up(n_cycles)
        keys = random_bits(random_bits(self._key, owner), number)
        sizes, starts = self._groups.sizes[owner], self._groups.starts[owner]
        shuffled = np.empty(int(sizes.sum()), dtype=np.int64)
        filled = 0
        for part in _parts(sizes):
            n = sizes[part]
            within = _counts_up(n)
            rows = self._groups.rows[np.repeat(starts[part], n) + within]
            segment = np.repeat(np.arange(n.size, dtype=np.uint64), n)
            order = random_order(segment, random_bits(np.repeat(keys[part], n), within))
            shuffled[filled : filled + rows.size] = rows[order]
            filled += rows.size
        return shuffled

    def _hold(
        self, classes: Index, cycle: Index, fresh: Index, begins: Index, which: NDArray[np.bool_]
    ) -> None:
        """Keep the cycles that the classes of ``which`` have begun and not finished."""
        classes = classes[which]
        n = self._groups.sizes[classes]
        within = _counts_up(n)
        self._held[np.repeat(self._groups.starts[classes], n) + within] = fresh[
            np.repeat(begins[which], n) + within
        ]
        self._held_cycle[classes] = cycle[which]


def _stable_order(codes: Index) -> Index:
    """Give the places of ``codes`` in ascending order of code, then of place.

    numpy sorts 16-bit numbers by counting, which is several times faster than comparing.
    """
    order: Index = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    top = int(codes.max(initial=0))
    for shift in range(16, top.bit_length(), 16):
        digit = ((codes >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def _counts_up(lengths: Index) -> Index:
    """Count 0, 1, ... anew for every length: [2, 3] gives 0 1 0 1 2."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) - np.repeat(ends - lengths, lengths)


def _parts(sizes: Index) -> Iterator[slice]:
    """Cut a list of sizes into slices of about ``_CHUNK`` in all, or of a single larger one."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < sizes.size:
        before = int(ends[begin] - sizes[begin])
        end = max(begin + 1, int(np.searchsorted(ends, before + _CHUNK, side="right")))
        yield slice(begin, end)
        begin = end

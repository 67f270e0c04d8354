"""Random bits as a pure function of a key and a place, and random cycles made of them.

Nothing here has a state, so a stream can be entered anywhere and gives the same bits for every
numpy version: the generator is SplitMix64 (Steele, Lea, Flood 2014), jumped to the place asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
Index = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

# Rows shuffled in one sort: few enough for the cache (and for random_order), enough to hide the
# overhead of a call.
_CHUNK = 1 << 15


def _mix(state: Bits) -> Bits:
    """Scramble ``state`` in place."""
    state ^= state >> np.uint64(30)
    state *= _FIRST
    state ^= state >> np.uint64(27)
    state *= _SECOND
    state ^= state >> np.uint64(31)
    return state


def stream_key(*parts: int) -> Bits:
    """Make the key of a random stream, shape (1,), from a few whole numbers.

    Examples
    --------
    >>> from protail.data import stream_key
    >>> stream_key(0, 1) == stream_key(1, 0)
    array([False])
    """
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = _mix((key + _GOLDEN) ^ np.uint64(part & 0xFFFF_FFFF_FFFF_FFFF))
    return key


def random_bits(key: Bits, places: Index | Bits) -> Bits:
    """Give the 64 random bits that stream ``key`` has at each of ``places``; both broadcast."""
    return _mix((places.astype(np.uint64) + np.uint64(1)) * _GOLDEN + key)


def random_uniform(key: Bits, places: Index) -> NDArray[np.float64]:
    """Give the number in [0, 1) that stream ``key`` has at each of ``places``."""
    return (random_bits(key, places) >> np.uint64(11)) * np.float64(2.0**-53)


def random_order(groups: Bits | int, bits: Bits) -> Index:
    """Shuffle places inside their groups: sort by group, then by random bits (overwritten)."""
    # Group, random bits and place travel in one number: sorting those is faster than an argsort,
    # and the order is total, so every machine finds the same one. How many random bits fit depends
    # only on the size, and up to 65,536 elements not even on that: a group comes out the same
    # whatever it is shuffled together with. Groups are below 65,536, and 0 for larger sizes.
    size = bits.shape[-1]
    place_bits = max(16, (size - 1).bit_length())
    kept_bits = 32 if place_bits == 16 else 64 - place_bits
    bits >>= np.uint64(64 - kept_bits)
    bits <<= np.uint64(place_bits)
    bits |= np.asarray(groups, dtype=np.uint64) << np.uint64(min(63, place_bits + kept_bits))
    bits |= np.arange(size, dtype=np.uint64)
    bits.sort(axis=-1)
    bits &= np.uint64((1 << place_bits) - 1)
    return bits.view(np.int64)


class RowsByClass:
    """Row numbers, class after class; ``sizes`` and ``starts`` of the classes that have rows."""

    def __init__(self, codes: Index) -> None:
        counts = np.bincount(codes)
        self.rows = _stable_order(codes)
        self.sizes: Index = counts[counts > 0].astype(np.int64)
        self.starts: Index = np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return self.sizes.size


def next_rows(groups: RowsByClass, key: Bits, drawn: Index, classes: Index) -> Index:
    """Give the next row of each class in ``classes``, and count it in ``drawn``.

    A class gives each of its rows once, in random order, before any of them twice. Which row it
    gives at its t-th draw depends on the key, the class and t alone.
    """
    counts = np.bincount(classes, minlength=len(groups))
    present = np.flatnonzero(counts)
    wanted, size = counts[present], groups.sizes[present]
    cycle, done = np.divmod(drawn[present], size)
    n_cycles = (done + wanted - 1) // size + 1
    shuffled = _cycles(groups, key, present, cycle, n_cycles)
    begins = np.cumsum(n_cycles * size) - n_cycles * size + done
    drawn += counts
    rows = np.empty_like(classes)
    rows[_stable_order(classes)] = shuffled[np.repeat(begins, wanted) + _counts_up(wanted)]
    return rows


def _cycles(groups: RowsByClass, key: Bits, classes: Index, cycle: Index, n_cycles: Index) -> Index:
    """Shuffle ``n_cycles`` cycles of every class, from ``cycle`` on, and lay them in a row."""
    owner = np.repeat(classes, n_cycles)
    number = np.repeat(cycle, n_cycles) + _counts_up(n_cycles)
    keys = random_bits(random_bits(key, owner), number)
    sizes, starts = groups.sizes[owner], groups.starts[owner]
    shuffled = []
    for part in _parts(sizes):
        n = sizes[part]
        within = _counts_up(n)
        segment = np.repeat(np.arange(n.size, dtype=np.uint64), n)
        order = random_order(segment, random_bits(np.repeat(keys[part], n), within))
        shuffled.append(groups.rows[np.repeat(starts[part], n) + within][order])
    return np.concatenate(shuffled)


def _stable_order(codes: Index) -> Index:
    """Give the places of ``codes`` in ascending order of code, then of place."""
    # numpy sorts 16-bit numbers by counting, which is several times faster than comparing.
    small = codes.max(initial=0) < 1 << 16
    return np.argsort(codes.astype(np.uint16) if small else codes, kind="stable")


def _counts_up(lengths: Index) -> Index:
    """Count 0, 1, ... from 0 again for every length: [2, 3] gives 0 1 0 1 2."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _parts(sizes: Index) -> Iterator[slice]:
    """Cut a list of sizes into slices of about ``_CHUNK`` in all, or of a single larger one."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < sizes.size:
        before = int(ends[begin] - sizes[begin])
        end = max(begin + 1, int(np.searchsorted(ends, before + _CHUNK, side="right")))
        yield slice(begin, end)
        begin = end

"""Random numbers as a pure function of a key and a place.

Nothing here has a state, so a stream can be entered anywhere and gives the same bits for every
numpy version: the generator is SplitMix64 (Steele, Lea, Flood 2014), jumped to the place asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(state: Bits) -> Bits:
    """Scramble ``state`` in place."""
    state ^= state >> np.uint64(30)
    state *= _FIRST
    state ^= state >> np.uint64(27)
    state *= _SECOND
    state ^= state >> np.uint64(31)
    return state


def stream_key(*parts: int) -> Bits:
    """Make the key of a stream, shape (1,), from a few whole numbers.

    Examples
    --------
    >>> stream_key(0, 1) == stream_key(1, 0)
    array([False])
    """
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = _mix((key + _GOLDEN) ^ np.uint64(part & 0xFFFF_FFFF_FFFF_FFFF))
    return key


def random_bits(key: Bits, places: NDArray[np.int64] | Bits) -> Bits:
    """Give the 64 random bits that stream ``key`` has at each of ``places``.

    Keys and places broadcast.

    Examples
    --------
    >>> key = stream_key(7)
    >>> bool(random_bits(key, np.arange(5))[3] == random_bits(key, np.array([3]))[0])
    True
    """
    return _mix((places.astype(np.uint64) + np.uint64(1)) * _GOLDEN + key)


def random_uniform(key: Bits, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give the number in [0, 1) that stream ``key`` has at each of ``places``.

    Examples
    --------
    >>> draws = random_uniform(stream_key(7), np.arange(1000))
    >>> bool(draws.min() >= 0 and draws.max() < 1)
    True
    """
    return (random_bits(key, places) >> np.uint64(11)) * np.float64(2.0**-53)


def random_order(groups: Bits, bits: Bits) -> NDArray[np.int64]:
    """Shuffle inside groups: sort by group first and by random bits second.

    Group, random bits and place travel in one number: sorting those is faster than an argsort,
    and the order is total, so every machine finds the same one. How many random bits fit depends
    on nothing but the size, and up to 65,536 elements not even on that: a group comes out the
    same whatever it is shuffled together with.

    Parameters
    ----------
    groups : ndarray of uint64
        Group of every element, below 65,536; all 0 where there are more than 65,536 elements.
    bits : ndarray of uint64, shape (..., n_elements)
        Random bits of every element; overwritten.

    Returns
    -------
    ndarray of int64, shape (..., n_elements)
        The places of the elements in their new order.

    Examples
    --------
    >>> groups = np.array([0, 0, 0, 1, 1], dtype=np.uint64)
    >>> order = random_order(groups, random_bits(stream_key(1), np.arange(5)))
    >>> sorted(order[:3].tolist()), sorted(order[3:].tolist())
    ([0, 1, 2], [3, 4])
    """
    size = bits.shape[-1]
    place_bits = max(16, (size - 1).bit_length())
    kept_bits = 32 if place_bits == 16 else 64 - place_bits
    bits >>= np.uint64(64 - kept_bits)
    bits <<= np.uint64(place_bits)
    bits |= groups << np.uint64(min(63, place_bits + kept_bits))
    bits |= np.arange(size, dtype=np.uint64)
    bits.sort(axis=-1)
    bits &= np.uint64((1 << place_bits) - 1)
    return bits.view(np.int64)

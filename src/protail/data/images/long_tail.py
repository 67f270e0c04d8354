"""Long-tailed subsets of balanced data: how many images of each class, and which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail._messages import counted, unknown_name
from protail.profile import class_codes

KINDS = ("exp", "step")
SELECTIONS = ("shuffled", "first")

# Around a whole number, floating point does not know which side it is on.
_DOUBT = 1e-6


def long_tailed_counts(
    n_max: int, n_classes: int, imbalance: float, kind: str = "exp"
) -> NDArray[np.int64]:
    """Compute how many images each class of a long-tailed subset keeps.

    Parameters
    ----------
    n_max : int
        Images of the largest class, the first one.
    n_classes : int
        How many classes there are.
    imbalance : float
        The largest count over the smallest, at least 1; 1 keeps the data balanced.
    kind : {"exp", "step"}, default="exp"
        "exp": ``floor(n_max * imbalance ** (-c / (n_classes - 1)))`` for class c, exactly. "step":
        ``n_max`` for the first half of the classes, ``floor(n_max / imbalance)`` for the others
        (the larger half where their number is odd).

    Returns
    -------
    ndarray of int64, shape (n_classes,)
        The counts, in class order; none is 0.

    Examples
    --------
    >>> from protail.data.images import long_tailed_counts
    >>> long_tailed_counts(5000, 10, 100)
    array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
    >>> long_tailed_counts(500, 4, 10, kind="step")
    array([500, 500,  50,  50])
    """
    if kind not in KINDS:
        raise ValueError(unknown_name("kind", kind, KINDS))
    if n_max < 1 or n_classes < 1:
        raise ValueError(f"n_max={n_max!r}, n_classes={n_classes!r}; expected 1 or more of both.")
    if not (math.isfinite(imbalance) and 1 <= imbalance <= n_max):
        raise ValueError(
            f"imbalance={imbalance!r}; expected a ratio from 1 (balanced) to {n_max}, the size of "
            "the largest class, so that every class keeps an image."
        )
    ratio = Fraction(imbalance)
    if kind == "step":
        head = n_classes // 2 if n_classes > 1 else 1
        counts = [n_max] * head + [math.floor(n_max / ratio)] * (n_classes - head)
    else:
        counts = [
            _decayed(n_max, ratio, Fraction(c, max(n_classes - 1, 1))) for c in range(n_classes)
        ]
    return np.array(counts, dtype=np.int64)


def _decayed(n_max: int, ratio: Fraction, exponent: Fraction) -> int:
    """Compute ``floor(n_max / ratio ** exponent)``, in whole numbers where floats are in doubt."""
    estimate = n_max * math.exp(-float(exponent) * math.log(ratio))
    nearest = round(estimate)
    if abs(estimate - nearest) > _DOUBT * max(nearest, 1):
        return math.floor(estimate)
    part, whole = exponent.numerator, exponent.denominator
    reached = nearest**whole * ratio**part <= n_max**whole
    return nearest if reached else nearest - 1


def long_tailed_index(
    labels: ArrayLike,
    counts: Sequence[int] | NDArray[Any],
    selection: str = "shuffled",
    seed: int = 0,
) -> NDArray[np.int64]:
    """Choose which images of each class a long-tailed subset keeps.

    Subsets nest: the shuffle does not depend on the counts, because the whole class is shuffled
    before it is cut, so fewer images are always the first of more.

    Parameters
    ----------
    labels : array-like of int, shape (n,)
        The class of every image, in the order of the original files.
    counts : sequence of int, shape (n_classes,)
        How many to keep of each class.
    selection : {"shuffled", "first"}, default="shuffled"
        "shuffled": numpy's legacy generator is seeded once, shuffles the images of each class, in
        class order, and the first ones are kept. "first": the first ones in file order.
    seed : int, default=0
        For "shuffled".

    Returns
    -------
    ndarray of int64
        Positions, class by class, each class in the order in which it was shuffled.

    Examples
    --------
    >>> from protail.data.images import long_tailed_index
    >>> long_tailed_index([1, 0, 0, 1, 0], [2, 1], selection="first")
    array([1, 2, 0])
    >>> long_tailed_index([1, 0, 0, 1, 0], [2, 1])
    array([4, 2, 0])
    """
    if selection not in SELECTIONS:
        raise ValueError(unknown_name("selection", selection, SELECTIONS))
    wanted = np.asarray(counts)
    codes = class_codes(labels, len(wanted))
    there = np.bincount(codes, minlength=len(wanted))
    short = np.flatnonzero(there < wanted)
    if short.size:
        first = short[0]
        raise ValueError(
            f"counts asks for {counted(wanted[first], 'image')} of class {first}, which has "
            f"{there[first]:,}; expected no more than there are. Ask for a higher imbalance."
        )
    generator = np.random.RandomState(seed)
    kept: list[NDArray[np.intp]] = []
    for members in np.split(np.argsort(codes, kind="stable"), np.cumsum(there)[:-1]):
        if selection == "shuffled":
            generator.shuffle(members)
        kept.append(members[: wanted[len(kept)]])
    return np.concatenate(kept).astype(np.int64)


def subset_description(
    *, imbalance: float, kind: str, selection: str, seed: int, n_max: int
) -> dict[str, Any]:
    """Describe a long-tailed subset in values that JSON can hold; one in file order has no seed."""
    ratio = float(imbalance)
    return {
        "imbalance": int(ratio) if ratio.is_integer() else ratio,
        "kind": kind,
        "selection": selection,
        "seed": None if selection == "first" else int(seed),
        "n_max": int(n_max),
    }

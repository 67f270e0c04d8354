"""Set rows of every class aside, and identical rows together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Index = NDArray[np.int64]


def split(
    labels: ArrayLike, *, share: float = 0.2, groups: ArrayLike | None = None, seed: int = 0
) -> tuple[Index, Index]:
    """Split rows into a part to train on and a part held out, class by class.

    Of a class with n rows, ``round(share * n)`` are held out, but at least one where it has two
    and never all. Rows of one group stay together, so a class may get fewer than that where its
    groups are large, and the smallest group where none fits. A group whose rows carry different
    labels counts for each of their classes.

    Parameters
    ----------
    labels : array-like, shape (n_rows,)
        Whole numbers or names.
    share : float, default=0.2
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
    >>> from protail.data.features import split
    >>> train, held_out = split(["ant"] * 8 + ["bee"] * 2 + ["cat"], share=0.25)
    >>> len(train), len(held_out)
    (8, 3)
    """
    names = np.asarray(labels)
    if names.ndim != 1 or names.size == 0:
        raise ValueError(f"labels has shape {names.shape}; expected (n_rows,), at least one row.")
    if not (math.isfinite(share) and 0 < share < 1):
        raise ValueError(f"share={share!r}; expected a number above 0 and below 1.")
    classes = np.unique(names, return_inverse=True)[1].astype(np.int64)
    group_of = _group_codes(groups, len(names))
    held = _held_out_groups(classes, group_of, share, np.random.default_rng(seed))
    mask = held[group_of]
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _group_codes(groups: ArrayLike | None, n_rows: int) -> Index:
    if groups is None:
        return np.arange(n_rows, dtype=np.int64)
    given = np.asarray(groups)
    if given.shape != (n_rows,):
        raise ValueError(f"groups has shape {given.shape}; expected ({n_rows},), as labels.")
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def _held_out_groups(
    classes: Index, group_of: Index, share: float, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Say of each group whether it is held out."""
    n_groups = int(group_of.max()) + 1
    sizes = np.bincount(group_of)
    class_of = np.empty(n_groups, dtype=np.int64)
    class_of[group_of] = classes
    of_one_class = np.ones(n_groups, dtype=np.bool_)
    of_one_class[group_of[classes != class_of[group_of]]] = False
    counts = np.bincount(classes)
    most = np.maximum(counts - 1, 0)
    quota = np.minimum(np.maximum(np.rint(share * counts).astype(np.int64), 1), most)

    # Candidates class by class, in random order within the class.
    order = np.lexsort((random.random(n_groups), class_of))
    order = order[of_one_class[order]]
    held = np.zeros(n_groups, dtype=np.bool_)
    left = quota.copy()
    _hold_mixed_groups(held, left, classes, group_of, ~of_one_class, share, random)
    while True:
        order = order[sizes[order] <= left[class_of[order]]]
        if not order.size:
            break
        chosen = order[_running_sums(sizes[order], class_of[order]) <= left[class_of[order]]]
        held[chosen] = True
        left -= np.bincount(class_of[chosen], sizes[chosen], len(left)).astype(np.int64)
        order = order[~held[order]]
    held[_smallest_where_none(class_of, sizes, of_one_class, left == quota, most)] = True
    return held


def _hold_mixed_groups(
    held: NDArray[np.bool_],
    left: Index,
    classes: Index,
    group_of: Index,
    mixed: NDArray[np.bool_],
    share: float,
    random: np.random.Generator,
) -> None:
    """Hold out a share of the groups of several classes, as far as each class can spare rows.

    Left in training, they would make a classifier look better than it is: rows that contradict
    each other are the ones it cannot get right.
    """
    chosen = mixed & (random.random(len(mixed)) < share)
    rows = np.flatnonzero(chosen[group_of])
    rows = rows[np.argsort(group_of[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(group_of[rows], prepend=-1))
    for members in np.split(rows, begins[1:]) if len(rows) else []:
        found, n_rows = np.unique(classes[members], return_counts=True)
        if (n_rows <= left[found]).all():
            held[group_of[members[0]]] = True
            left[found] -= n_rows


def _running_sums(sizes: Index, class_of: Index) -> Index:
    """Sum sizes up from the beginning of each class; classes are sorted."""
    total = np.cumsum(sizes)
    begins = np.flatnonzero(np.diff(class_of, prepend=-1))
    before = total[begins] - sizes[begins]
    return total - np.repeat(before, np.diff(begins, append=len(sizes)))


def _smallest_where_none(
    class_of: Index,
    sizes: Index,
    of_one_class: NDArray[np.bool_],
    empty: NDArray[np.bool_],
    most: Index,
) -> Index:
    """Give the smallest group of each class that got none, unless it is the whole class."""
    able = np.flatnonzero(of_one_class & empty[class_of] & (sizes <= most[class_of]))
    able = able[np.lexsort((sizes[able], class_of[able]))]
    return able[np.flatnonzero(np.diff(class_of[able], prepend=-1))]

"""Rows kept back: which ones, and what their logits say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Fold = tuple[NDArray[np.int64], NDArray[np.int64]]

# Up to this many rows every row is held out once, in three folds; above, one part of them is.
_FOLDED_ROWS = 20_000
_FOLDS = 3
_PARTS = 5
_MOST_HELD_OUT = 8192
# The scale is sought within this factor of the one at which logits span the usual units.
_USUAL_SPAN = 8.0
_LARGEST_FACTOR = 32.0
# A row that a classifier gets wrong for sure shall not outweigh all others.
_SMALLEST_PROBABILITY = 0.01


def held_out_folds(
    labels: NDArray[np.int64], rng: np.random.Generator, *, one_part: bool = False
) -> Iterator[Fold]:
    """Divide rows into those to train on and those to hold out, class by class.

    Parameters
    ----------
    labels : ndarray of int
        Class codes. A class always keeps a row to train on.
    rng : numpy.random.Generator
        Chooses them.
    one_part : bool
        One division (a fifth held out) instead of three folds.

    Yields
    ------
    tuple of ndarray
        Indices to train on and to hold out.
    """
    one_part = one_part or len(labels) > _FOLDED_ROWS
    n_folds = _PARTS if one_part else _FOLDS
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[by_class]]
    # Each class starts at another fold, so that small classes do not all fall into the first.
    fold = (place + rng.integers(n_folds, size=len(counts))[labels[by_class]]) % n_folds
    fold[counts[labels[by_class]] < 2] = -1
    for number in range(1 if one_part else n_folds):
        out = by_class[fold == number]
        if len(out) > _MOST_HELD_OUT:
            out = rng.choice(out, _MOST_HELD_OUT, replace=False)
        if len(out):
            yield np.setdiff1d(np.arange(len(labels)), out), np.sort(out)


def likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean log-probability of the own class, a class weighing as the root of its rows.

    Between rows weighing the same (the tail says nothing) and classes weighing the same (a
    single row decides).
    """
    probability = torch.softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
    weights = torch.bincount(labels)[labels].to(logits).rsqrt()
    return float((weights * (probability + _SMALLEST_PROBABILITY).log()).sum() / weights.sum())


def calibrated_scale(logits: Tensor, labels: Tensor) -> float:
    """Find the factor on the logits that makes held-out labels most likely, classes alike."""
    finite = logits.isfinite()
    middle = logits.masked_fill(~finite, 0).sum(1) / finite.sum(1)
    span = float((logits.amax(1) - middle).mean())
    if not span > 0 or bool((labels == labels[0]).all()):
        return 1.0
    weights = torch.bincount(labels)[labels].to(logits).reciprocal()
    weights /= weights.sum()
    own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)

    def surprise(log_scale: float) -> float:
        scale = float(np.exp(log_scale))
        return float((weights * (torch.logsumexp(logits * scale, 1) - own * scale)).sum())

    usual = np.log(_USUAL_SPAN / span)
    low, high = usual - np.log(_LARGEST_FACTOR), usual + np.log(_LARGEST_FACTOR)
    while high - low > 1e-3:  # convex in the scale, so unimodal in its logarithm
        third = (high - low) / 3
        if surprise(low + third) <= surprise(high - third):
            high -= third
        else:
            low += third
    return float(np.exp((low + high) / 2))

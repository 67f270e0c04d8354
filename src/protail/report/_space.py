"""Where prototypes and feature rows are, so that plain distances say what the head sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Prototypes, lengths by name, and rows where there are any.
Placed = tuple[Array, dict[str, Array], Array | None]

# Rows that a map can show.
_MOST_ROWS = 1000
# Directions in which prototypes hardly differ, relative to the one in which they do most.
_FLAT = 1e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class Space:
    """Hold prototypes and some examples in a space where Euclidean distance decides.

    Attributes
    ----------
    prototypes : ndarray of shape (n_classes, n_channels)
        NaN for a class that has none.
    norms : dict of str to ndarray of shape (n_classes,)
        Their lengths, and those of what they may be compared with, by name.
    rows : ndarray of int
        Which of the held-out examples are in it.
    positions : ndarray of shape (len(rows), n_channels)
        Where these are.
    """

    prototypes: Array
    norms: dict[str, Array]
    rows: Array
    positions: Array

    def nearest(self) -> tuple[Array, Array]:
        """Give the nearest other prototype of each class, and how far it is."""
        placed: Array = np.isfinite(self.prototypes).all(axis=1)  # type: ignore[assignment]
        found, far = np.full(len(placed), -1), np.full(len(placed), np.nan)
        codes = np.flatnonzero(placed)
        if len(codes) < 2:
            return found, far
        points = self.prototypes[codes].astype(np.float64)
        square = (points**2).sum(1)
        for start in range(0, len(codes), 1024):
            part = slice(start, start + 1024)
            gaps = square[part, None] + square - 2 * points[part] @ points.T
            gaps[np.arange(len(gaps)), np.arange(len(codes))[part]] = np.inf
            best = gaps.argmin(1)
            found[codes[part]] = codes[best]
            far[codes[part]] = np.sqrt(gaps[np.arange(len(gaps)), best].clip(min=0))
        return found, far


def space_of(head: Any, features: Array | None, counts: Array) -> Space | None:
    """Place the prototypes of a head, and some rows; None for a head that has no such thing."""
    shown = np.arange(0)
    rows = None
    if features is not None:
        n = len(features)
        shown = np.arange(n)
        if n > _MOST_ROWS:
            shown = np.sort(np.random.default_rng(0).choice(n, _MOST_ROWS, replace=False))
        rows = np.asarray(features[shown], np.float32)
    found = _placed(head, rows, counts > 0)
    if found is None:
        return None
    prototypes, norms, positions = found
    if positions is None:
        positions = np.empty((0, prototypes.shape[1]))
    return Space(prototypes=prototypes, norms=norms, rows=shown, positions=positions)


def _placed(head: Any, rows: Array | None, seen: Array) -> Placed | None:
    if hasattr(head, "choices_"):
        return (_published if head.choices_["method"] == "paper" else _whitened)(head, rows, seen)
    for name in ("prototypes", "weight"):
        vectors = getattr(head, name, None)
        if vectors is not None and getattr(vectors, "ndim", 0) == 2:
            vectors = vectors.detach().float().cpu().numpy()
            norms = {"prototypes" if name == "prototypes" else "weights": _norms(vectors)}
            if name == "weight" or getattr(head, "distance", "") == "cosine":
                # Only directions count: lengths are the bias of a softmax.
                return unit(vectors), norms, None if rows is None else unit(rows)
            if rows is not None and getattr(head, "normalize", None):
                rows = unit(rows) * head.normalize
            return vectors, norms, rows
    return None


def _published(head: Any, rows: Array | None, seen: Array) -> Placed | None:
    """Place rows as the paper's head does, channel temperatures as units of length."""
    norms = {"prototypes": _norms(head.prototypes_), "class means": _norms(head.class_means_)}
    prototypes = np.where(seen[:, None], head.prototypes_, np.nan)
    if rows is not None:
        radius = head.normalize_
        rows = rows * head.feature_scale_ if radius is None else unit(rows) * radius
    if head.choices_["distance"] == "cosine":
        return unit(prototypes), norms, None if rows is None else unit(rows)
    if head.temperature_ is not None and len(head.temperature_) == 1:
        units = np.sqrt(head.temperature_)
        return prototypes / units, norms, None if rows is None else rows / units
    return prototypes, norms, rows


def _whitened(head: Any, rows: Array | None, seen: Array) -> Placed | None:
    """Place prototypes in the whitened space, and rows by their distances from all of these."""
    covariance = np.asarray(head.covariance_, np.float64)
    variance = np.trace(covariance) / len(covariance)
    added = max(head.choices_["ridge"] * variance, 1e-12)
    try:
        lower = np.linalg.cholesky(covariance + added * np.eye(len(covariance)))
    except np.linalg.LinAlgError:
        return None
    prototypes, means = (
        np.linalg.solve(lower, np.asarray(each, np.float64).T).T
        for each in (head.prototypes_, head.class_means_)
    )
    norms = {"prototypes": _norms(prototypes), "class means": _norms(means)}
    norms = {name: np.where(seen, each, np.nan) for name, each in norms.items()}
    known = prototypes[seen]
    middle = known.mean(0)
    left, sizes, right = np.linalg.svd(known - middle, full_matrices=False)
    kept = sizes > _FLAT * sizes[0] if len(sizes) else np.zeros(0, bool)
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    placed = np.full((len(seen), len(sizes)), np.nan)
    placed[seen] = (known - middle) @ right.T
    if rows is None:
        return placed, norms, None
    # -1/2 |x - c|^2 + 1/2 |c|^2 is linear in c: what all prototypes say of x places it among them.
    away = np.asarray(head.distances(rows), np.float64)[:, seen]
    score = -0.5 * (away**2 - ((known - middle) ** 2).sum(1))
    return placed, norms, (score - score.mean(1, keepdims=True)) @ left / sizes


def _norms(vectors: Array) -> Array:
    norms: Array = np.linalg.norm(np.asarray(vectors, np.float64), axis=1)
    return norms


def unit(vectors: Array) -> Array:
    """Scale rows to length 1, those whose squares overflow too; zero rows stay zero."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = vectors / np.where(largest > 0, largest, 1)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Array = vectors / np.where(length > 0, length, 1)
    return scaled

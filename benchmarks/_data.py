"""Data sets of the benchmark: stored features where they are at hand, small ones, generated ones.

Every data set is a list of splits into training and test rows, all of them float32.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler, normalize

FEATURE_FILES = {
    "resnet34": "cifar100-lt-100_resnet34.npz",
    "resnet32": "cifar100-lt-100_resnet32.npz",
}
N_SPLITS = 5
SYNTHETIC = "synthetic"
# Spread of the class means beside rows of spread 1: nearest centroid gets about 70 % right.
_SPREAD = 0.25
_QUICK_SPREAD = 0.35
_IMBALANCE = 100
_TEST_ROWS_PER_CLASS = 10


class Split(NamedTuple):
    """Rows to fit on and rows to score, with class codes from 0."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


Loader = Callable[[], list[Split]]


def data_sets(quick: bool, say: Callable[[str], None]) -> Iterator[tuple[str, Loader]]:
    """Name every data set that is at hand, with what loads it; say which ones are not."""
    if quick:
        yield "digits 100", lambda: [long_tailed_digits(100, 0)]
        yield SYNTHETIC, lambda: [gaussian_classes(1_000, 32, 20, _QUICK_SPREAD)]
        return
    folder = os.environ.get("PROTAIL_SHARED")
    for name, file in FEATURE_FILES.items():
        path = Path(folder or ".", "data", "features", file)
        if folder and path.exists():
            yield f"{name} raw", lambda path=path: [stored_features(path)]
            yield f"{name} L2", lambda path=path: [unit_length(stored_features(path))]
        else:
            say(f"skipped: {name} (set PROTAIL_SHARED to a folder that holds data/features/{file})")
    seeds = range(N_SPLITS)
    for imbalance in (10, 50, 100):
        name = f"digits {imbalance}"
        yield name, lambda i=imbalance: [long_tailed_digits(i, seed) for seed in seeds]
    yield "wine", lambda: [standardised(load_wine, seed) for seed in seeds]
    yield "cancer", lambda: [standardised(load_breast_cancer, seed) for seed in seeds]
    yield SYNTHETIC, lambda: [gaussian_classes(100_000, 512, 1_000, _SPREAD)]


def stored_features(path: Path) -> Split:
    """Read a file of features."""
    with np.load(path) as arrays:
        return Split(
            arrays["x_train"].astype(np.float32),
            arrays["y_train"].astype(np.int64),
            arrays["x_test"].astype(np.float32),
            arrays["y_test"].astype(np.int64),
        )


def unit_length(split: Split) -> Split:
    """Scale every row to length 1."""
    return split._replace(x_train=normalize(split.x_train), x_test=normalize(split.x_test))


def long_tailed_digits(imbalance: float, seed: int) -> Split:
    """Split 60/40 by class; class k of 10 keeps its share of an exponential fall."""
    split = _split(*load_digits(return_X_y=True), seed)
    counts = long_tail(10, np.bincount(split.y_train).min(), imbalance)
    rng = np.random.default_rng(seed)
    kept = [
        rng.permutation(np.flatnonzero(split.y_train == label))[:count]
        for label, count in enumerate(counts)
    ]
    index = np.sort(np.concatenate(kept))
    return split._replace(x_train=split.x_train[index], y_train=split.y_train[index])


def standardised(load: Callable[..., tuple[np.ndarray, np.ndarray]], seed: int) -> Split:
    """Split 60/40 by class; every column has mean 0 and spread 1 in the training part."""
    split = _split(*load(return_X_y=True), seed)
    scaler = StandardScaler().fit(split.x_train)
    return split._replace(
        x_train=scaler.transform(split.x_train), x_test=scaler.transform(split.x_test)
    )


def _split(x: np.ndarray, y: np.ndarray, seed: int) -> Split:
    x_train, x_test, y_train, y_test = train_test_split(
        x.astype(np.float32), y, test_size=0.4, stratify=y, random_state=seed
    )
    return Split(x_train, y_train, x_test, y_test)


def long_tail(n_classes: int, largest: float, imbalance: float) -> np.ndarray:
    """Count rows by class: an exponential from ``largest`` down to ``largest / imbalance``."""
    falling = largest * imbalance ** (-np.arange(n_classes) / (n_classes - 1))
    return np.maximum(1, np.round(falling)).astype(np.int64)


def long_tailed_labels(n_rows: int, n_classes: int) -> np.ndarray:
    """Give ``n_rows`` class codes in class order, their counts falling by a factor of 100."""
    shape = long_tail(n_classes, 1e6, _IMBALANCE)
    ends = np.round(np.cumsum(shape) / shape.sum() * n_rows).astype(np.int64)
    return np.repeat(np.arange(n_classes), np.diff(ends, prepend=0))


def gaussian_classes(n_rows: int, n_channels: int, n_classes: int, spread: float) -> Split:
    """Draw rows of spread 1 around class means that are too near each other to be told apart."""
    rng = np.random.default_rng(0)
    means = spread * rng.standard_normal((n_classes, n_channels), dtype=np.float32)
    y_train = rng.permutation(long_tailed_labels(n_rows, n_classes))
    y_test = np.repeat(np.arange(n_classes), _TEST_ROWS_PER_CLASS)
    return Split(rows_around(means, y_train, rng), y_train, rows_around(means, y_test, rng), y_test)


def rows_around(means: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one row of spread 1 around the mean of each label."""
    rows = rng.standard_normal((len(labels), means.shape[1]), dtype=np.float32)
    rows += means[labels]
    return rows

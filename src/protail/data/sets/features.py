"""Data sets whose images have been through a frozen backbone already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.sets._errors import DataSetError
from protail.data.sets._feature_arrays import MIRRORED, PARTS, STREAM, Arrays
from protail.data.sets.images import DataSet
from protail.profile import ClassProfile, class_codes


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet:
    """Hold labelled rows: what a frozen backbone made of images.

    Parameters
    ----------
    rows : ndarray of float32, shape (n, n_features)
        The features of every image.
    labels : ndarray of int, shape (n,)
        Their class codes.
    n_classes : int, optional
        Classes without rows included; by default the largest label plus one.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets import FeatureSet
    >>> FeatureSet(np.eye(3), [0, 0, 1]).profile.counts
    array([2, 1])
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    n_classes: int | None = None

    def __post_init__(self) -> None:
        labels = class_codes(self.labels, self.n_classes)
        with np.errstate(over="ignore"):
            # Writable, as torch wants them.
            rows = np.require(self.rows, np.float32, ["C", "W"])
        if rows.ndim != 2 or rows.shape[1] == 0 or len(rows) != len(labels):
            raise ValueError(
                f"rows have shape {rows.shape}; expected ({len(labels)}, n_features), a row for "
                "each label."
            )
        finite = np.isfinite(rows).all(1)
        if not finite.all():
            raise ValueError(
                f"{np.sum(~finite):,} rows have numbers that are not finite in float32, the first "
                f"is row {np.argmin(finite)}; expected finite ones. Drop or correct them."
            )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def profile(self) -> ClassProfile:
        """The rows of every class."""
        return ClassProfile.from_labels(self.labels, self.n_classes)

    def __repr__(self) -> str:
        return f"FeatureSet({len(self)} rows of {self.rows.shape[1]} features)"


@dataclass(frozen=True, eq=False, repr=False)
class FeatureData:
    """Hold features to learn a classifier from, and to judge it on.

    Parameters
    ----------
    name : str
        What it is called by.
    classes : tuple of str
        The name of every class.
    train, test : FeatureSet
        Features of images as they are.
    mirrored : ndarray, shape (n_test, n_features), optional
        Features of the mirrored test images.
    stream : FeatureSet, optional
        What stage 2 learns from, in its order: features of images drawn by a sampler and
        augmented. Without it, stage 2 draws from ``train``.
    description : dict
        How it was made, in values that JSON can hold: a part of a run's record.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets import FeatureData, FeatureSet
    >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
    >>> FeatureData("insects", ("ant", "bee"), rows, rows)
    FeatureData(insects: 3 train, 3 test, 2 classes, 3 features)
    """

    name: str
    classes: tuple[str, ...]
    train: FeatureSet
    test: FeatureSet
    mirrored: NDArray[np.float32] | None = None
    stream: FeatureSet | None = None
    description: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        for part, rows in self.parts.items():
            with said_of(part):
                checked = replace(rows, n_classes=len(self.classes))
            object.__setattr__(self, part, checked)
            if rows.rows.shape[1] != self.n_features:
                raise DataSetError(
                    f"{part} has {rows.rows.shape[1]} features and train {self.n_features}; "
                    "expected as many, from one backbone."
                )
        if self.mirrored is not None:
            with said_of("mirrored"):
                mirrored = FeatureSet(self.mirrored, self.test.labels).rows
                if mirrored.shape[1] != self.n_features:
                    raise ValueError(
                        f"rows have {mirrored.shape[1]} features; expected {self.n_features}."
                    )
            object.__setattr__(self, "mirrored", mirrored)

    @property
    def n_features(self) -> int:
        """Width of a row."""
        return int(self.train.rows.shape[1])

    @property
    def parts(self) -> dict[str, FeatureSet]:
        """The labelled parts there are, by name."""
        parts = {"train": self.train, "stream": self.stream, "test": self.test}
        return {name: rows for name, rows in parts.items() if rows is not None}

    def fingerprint(self) -> str:
        """Digest what the data set holds.

        Returns
        -------
        str
            SHA-256, in hexadecimal digits, over the numbers of all parts.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.data.sets import FeatureData, FeatureSet
        >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
        >>> FeatureData("insects", ("ant", "bee"), rows, rows).fingerprint()[:8]
        '577f4f7b'
        """
        digest = hashlib.sha256()
        for name, array in named_arrays(self).items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.astype("<f4" if name.startswith("x_") else "<i8").data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        sizes = [f"{len(rows)} {part}" for part, rows in self.parts.items()]
        sizes += [f"{len(self.classes)} classes", f"{self.n_features} features"]
        return f"FeatureData({self.name}: {', '.join(sizes)})"


def require_images(data: DataSet | FeatureData, purpose: str) -> DataSet:
    """Raise where a data set holds features only.

    Parameters
    ----------
    data : DataSet or FeatureData
        What `load_dataset` gave.
    purpose : str
        What images are needed to do.

    Returns
    -------
    DataSet
        The same, where it holds images.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets import FeatureData, FeatureSet
    >>> from protail.data.sets.features import require_images
    >>> rows = FeatureSet(np.eye(2), [0, 1])
    >>> require_images(FeatureData("insects", ("ant", "bee"), rows, rows), "train a backbone")
    Traceback (most recent call last):
    protail.data.sets._errors.DataSetError: insects holds features and no images; expected ...
    """
    if isinstance(data, FeatureData):
        raise DataSetError(
            f"{data.name} holds features and no images; expected images to {purpose}. Name the "
            "data set that they were computed from."
        )
    return data


def named_arrays(data: FeatureData) -> Arrays:
    """Name rows and labels as files do."""
    arrays: Arrays = {}
    for part, (rows, labels) in {**PARTS, "stream": STREAM}.items():
        if part in data.parts:
            arrays |= {rows: data.parts[part].rows, labels: data.parts[part].labels}
    return arrays if data.mirrored is None else {**arrays, MIRRORED: data.mirrored}


@contextmanager
def said_of(what: str) -> Iterator[None]:
    """Put what an error is about before it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise DataSetError(f"{what}: {error}") from error

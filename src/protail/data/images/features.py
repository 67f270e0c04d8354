"""Data sets of features: what a frozen backbone made of images, in memory and in files."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from protail._files import new_file
from protail._messages import unknown_name
from protail.data.images.image_set import DataSet, DataSetError, check_version, reading
from protail.data.images.registry import FEATURE_SUFFIXES, register_dataset
from protail.profile import ClassProfile, class_codes

BUNDLED_FEATURES = "cifar100-lt-features"

_Arrays = dict[str, NDArray[Any]]
# Names of rows and labels of each part, in npz and safetensors files alike.
_PARTS = {
    "train": ("x_train", "y_train"),
    "test": ("x_test", "y_test"),
    "stream": ("x_stream", "y_stream"),
}
_MIRRORED = "x_test_mirror"
_FORMAT, _VERSION, _HEAD = "protail-features", 1, "protail"
_HEAD_TYPES = {"name": str, "classes": list, "description": dict, "dtype": str}
_DTYPES = ("float16", "float32", "uint8")
# Rows in a byte a number: of each channel the least value, and the step to the next of 256 levels.
_SCALE = ("minimum", "step")
_LEVELS = 255
# Of an npy array: numpy parses none that is longer.
_LONGEST_HEAD = 10_000
# A label beyond this is no class code but a mistake, such as a date.
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet:
    """Hold labelled rows of features: what a frozen backbone made of images.

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
    >>> from protail.data.images import FeatureSet
    >>> FeatureSet(np.eye(3), [0, 0, 1]).profile.counts
    array([2, 1])
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    n_classes: int | None = None

    def __post_init__(self) -> None:
        labels = class_codes(self.labels, self.n_classes)
        rows = np.asarray(self.rows)
        if rows.dtype.kind not in "biufO":
            raise TypeError(f"rows have dtype {rows.dtype}; expected numbers.")
        if rows.ndim != 2 or rows.shape[1] == 0 or len(rows) != len(labels):
            raise ValueError(
                f"rows have shape {rows.shape}; expected ({len(labels)}, n_features), a row for "
                "each label."
            )
        with np.errstate(over="ignore"):
            # Writable, as torch wants them.
            rows = np.require(rows, np.float32, ["C", "W"])
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
    """Hold features in parts: what a classifier is trained and tested on.

    Parameters
    ----------
    name : str
        What it is called by.
    classes : tuple of str
        The name of every class.
    train, test : FeatureSet
        Features of images as they are.
    flipped : ndarray, shape (n_test, n_features), optional
        Features of the test images flipped left to right.
    stream : FeatureSet, optional
        What stage 2 learns from, in its order: features of images that a sampler has drawn and
        that were augmented. Without it, stage 2 draws from ``train``.
    description : dict
        How it was made, in values that JSON can hold: a part of a run's record.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import FeatureData, FeatureSet
    >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
    >>> FeatureData("insects", ("ant", "bee"), rows, rows)
    FeatureData(insects: 3 train, 3 test, 2 classes, 3 features)
    """

    name: str
    classes: tuple[str, ...]
    train: FeatureSet
    test: FeatureSet
    flipped: NDArray[np.float32] | None = None
    stream: FeatureSet | None = None
    description: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        for part, rows in self.parts.items():
            with _said_of(part):
                checked = replace(rows, n_classes=len(self.classes))
            object.__setattr__(self, part, checked)
            if rows.rows.shape[1] != self.n_features:
                raise DataSetError(
                    f"{part} has {rows.rows.shape[1]} features and train {self.n_features}; "
                    "expected as many, from one backbone."
                )
        if self.flipped is not None:
            with _said_of("flipped"):
                flipped = FeatureSet(self.flipped, self.test.labels).rows
                if flipped.shape[1] != self.n_features:
                    raise ValueError(
                        f"rows have {flipped.shape[1]} features; expected {self.n_features}."
                    )
            object.__setattr__(self, "flipped", flipped)

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
        >>> from protail.data.images import FeatureData, FeatureSet
        >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
        >>> FeatureData("insects", ("ant", "bee"), rows, rows).fingerprint()[:8]
        '577f4f7b'
        """
        digest = hashlib.sha256()
        for name, array in _named_arrays(self).items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.astype("<f4" if name.startswith("x_") else "<i8").data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        sizes = [f"{len(rows)} {part}" for part, rows in self.parts.items()]
        sizes += [f"{len(self.classes)} classes", f"{self.n_features} features"]
        return f"FeatureData({self.name}: {', '.join(sizes)})"


def require_images(data: DataSet | FeatureData, purpose: str) -> DataSet:
    """Return a data set of images as it is; raise where it holds features only.

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
    >>> from protail.data.images import FeatureData, FeatureSet, require_images
    >>> rows = FeatureSet(np.eye(2), [0, 1])
    >>> require_images(FeatureData("insects", ("ant", "bee"), rows, rows), "train a backbone")
    Traceback (most recent call last):
    protail.data.images.image_set.DataSetError: insects holds features and no images; expected ...
    """
    if isinstance(data, FeatureData):
        raise DataSetError(
            f"{data.name} holds features and no images; expected images to {purpose}. Name the "
            "data set that they were computed from."
        )
    return data


def save_features(
    path: str | os.PathLike[str],
    data: FeatureData,
    dtype: str = "float16",
    *,
    overwrite: bool = False,
) -> None:
    """Write features to one safetensors file that `load_dataset` reads.

    Parameters
    ----------
    path : path-like
        The file to write; its name ends in ``.safetensors``.
    data : FeatureData
        What to write.
    dtype : {"float16", "float32", "uint8"}
        What numbers are kept in. As "uint8" each channel is rounded to 256 even steps from its
        least to its greatest value: a quarter of the size, off by half a step at most.
    overwrite : bool, default=False
        Whether a file that is already there may be replaced.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from protail.data.images import FeatureData, FeatureSet, load_dataset, save_features
    >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
    >>> file = tempfile.mkdtemp() + "/insects.safetensors"
    >>> save_features(file, FeatureData("insects", ("ant", "bee"), rows, rows), "uint8")
    >>> load_dataset(file)
    FeatureData(insects: 3 train, 3 test, 2 classes, 3 features)
    """
    if dtype not in _DTYPES:
        raise ValueError(unknown_name("dtype", dtype, _DTYPES))
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"path={str(path)!r} will not do; expected a name with .safetensors.")
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": data.name,
        "description": data.description,
        "classes": list(data.classes),
        "dtype": dtype,
    }
    arrays = _named_arrays(data)
    rows = {name: array for name, array in arrays.items() if name.startswith("x_")}
    labels = {name: array.astype("<i4") for name, array in arrays.items() if name not in rows}
    # One entry: the library writes several in an order that changes from run to run.
    about = {_HEAD: json.dumps(head, allow_nan=False)}
    with new_file(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(save({**_packed(rows, dtype), **labels}, about))


@register_dataset("features")
def load_features(root: str | os.PathLike[str] | None) -> FeatureData:
    """Features of a frozen backbone, in an .npz or .safetensors file: stage 2 only."""
    place = Path(root or "features")
    if not place.is_file() or place.suffix not in FEATURE_SUFFIXES:
        raise DataSetError(
            f"{place}: it is no file of features; expected one that ends in "
            f"{' or '.join(FEATURE_SUFFIXES)}. Name it in place of 'features' (root=, --data-root)."
        )
    arrays, head = _read_arrays(place)
    with _said_of(str(place)):
        parts = {}
        for part, (rows, labels) in _PARTS.items():
            if rows in arrays:
                with _said_of(part):
                    parts[part] = FeatureSet(arrays[rows], arrays[labels])
        return FeatureData(
            name=head.get("name", place.stem),
            classes=tuple(map(str, head["classes"])) if head else _numbered(parts),
            flipped=arrays.get(_MIRRORED),
            description=head.get("description", {}),
            **parts,
        )


def bundled_features() -> Path:
    """Give the file of the bundled features; ``benchmarks/make_bundle.py`` makes it."""
    return Path(__file__).with_name(f"{BUNDLED_FEATURES}.safetensors")


@register_dataset(BUNDLED_FEATURES)
def load_bundled_features(root: str | os.PathLike[str] | None) -> FeatureData:
    """CIFAR-100-LT 100 through a trained ResNet-32: comes with the package, stage 2 only."""
    if root is not None:
        raise DataSetError(
            f"{BUNDLED_FEATURES} comes with the package, and root={os.fspath(root)!r} has no part "
            "in it; expected none. Leave it out (root=, --data-root)."
        )
    return load_features(bundled_features())


def _numbered(parts: dict[str, FeatureSet]) -> tuple[str, ...]:
    """Name classes by their codes, where a file has no names."""
    largest = max(int(part.labels.max()) for part in parts.values())
    if largest >= max(_MOST_CLASSES, sum(map(len, parts.values()))):
        raise ValueError(
            f"labels run up to {largest}; expected class codes 0, 1, 2, ... Number the classes "
            "with numpy.unique(labels, return_inverse=True)."
        )
    return tuple(map(str, range(largest + 1)))


def _read_arrays(place: Path) -> tuple[_Arrays, dict[str, Any]]:
    """Read arrays by their names in `_PARTS`, rows in float32, and the head of a safetensors file.

    Nothing is unpickled.
    """
    wanted = [name for pair in _PARTS.values() for name in pair] + [_MIRRORED, *_SCALE]
    expected = (
        f"a whole {place.suffix} file of numbers. Python objects are never unpickled; where it is "
        "cut short or damaged, write or copy it again."
    )
    head: dict[str, Any] = {}
    with reading(place, expected):
        if place.suffix == ".npz":
            _check_heads(place)
            with np.load(place, allow_pickle=False) as file:
                _check_names(place, file.files)
                arrays = {name: file[name] for name in wanted if name in file.files}
        else:
            with safe_open(place, framework="numpy") as file:
                names = list(file.keys())
                head = _checked_head(place, file.metadata() or {})
                _check_names(place, names)
                arrays = {name: file.get_tensor(name) for name in wanted if name in names}
        if head.get("dtype") == "uint8":
            _restore(place, arrays)
    return arrays, head


def _check_heads(place: Path) -> None:
    """Raise for an array whose head numpy would refuse, after it has unpacked gigabytes of it."""
    with zipfile.ZipFile(place) as file:
        for name in file.namelist():
            with file.open(name) as array:
                start = array.read(12)
            length = int.from_bytes(start[8:12], "little")
            if start[6:7] > b"\x01" and length > _LONGEST_HEAD:
                raise ValueError(f"{name} has a head of {length:,} bytes")


def _check_names(place: Path, found: list[str]) -> None:
    """Raise unless a file has all the arrays that it needs."""
    needed = [*_PARTS["train"], *_PARTS["test"]]
    optional = _PARTS["stream"]
    asked = needed if set(optional).isdisjoint(found) else [*needed, *optional]
    if missing := [name for name in asked if name not in found]:
        raise DataSetError(
            f"{place}: it has no array {' or '.join(missing)} (found: {', '.join(found)}); "
            f"expected {', '.join(needed)} and, if you like, {' and '.join(optional)}, "
            f"{_MIRRORED}. Save them under these names."
        )


def _checked_head(place: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read what `save_features` wrote about the arrays."""
    expected = "one that protail.data.images.save_features wrote. Write it with that, or as npz."
    with reading(place, expected):
        head: dict[str, Any] = json.loads(metadata[_HEAD])
        check_version(place, head, _FORMAT, _VERSION)
        for key, kind in _HEAD_TYPES.items():
            if not isinstance(head[key], kind):
                raise TypeError(f"{key} is {head[key]!r}")
    return head


def _packed(rows: _Arrays, dtype: str) -> _Arrays:
    """Convert rows to a shorter type; as bytes, each channel to 256 even steps over all parts."""
    if dtype != "uint8":
        with np.errstate(over="ignore"):
            kind = np.dtype(dtype).newbyteorder("<")
            packed = {name: array.astype(kind) for name, array in rows.items()}
        for name, array in packed.items():
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{name} has numbers that {dtype} cannot hold; expected them up to "
                    f"{np.finfo(dtype).max:g}. Choose dtype='float32'."
                )
        return packed
    low = np.min([array.min(0) for array in rows.values()], 0)
    high = np.max([array.max(0) for array in rows.values()], 0)
    step = ((high.astype(np.float64) - low) / _LEVELS).astype(np.float32)
    a_step = np.where(step > 0, step, 1)
    packed = {"minimum": low.astype("<f4"), "step": step.astype("<f4")}
    for name, array in rows.items():
        levels = np.rint((array - low) / a_step)
        packed[name] = np.clip(levels, 0, _LEVELS).astype(np.uint8)
    return packed


def _restore(place: Path, arrays: _Arrays) -> None:
    """Turn levels back into values."""
    width = arrays["x_train"].shape[-1]
    for name in _SCALE:
        values = arrays.get(name, np.empty(0, np.float32))
        if values.shape != (width,) or values.dtype != np.float32 or not np.isfinite(values).all():
            raise DataSetError(
                f"{place}: array {name} is {values.dtype} of shape {values.shape}; expected "
                f"{width} finite numbers in float32 beside rows of bytes. Write it again."
            )
    for name, array in arrays.items():
        # Rows of another width are reported by the data set.
        if name.startswith("x_") and array.shape[-1] == width:
            arrays[name] = array * arrays["step"] + arrays["minimum"]


def _named_arrays(data: FeatureData) -> _Arrays:
    """Name rows and labels as files do."""
    arrays: _Arrays = {}
    for part, (rows, labels) in _PARTS.items():
        if part in data.parts:
            arrays |= {rows: data.parts[part].rows, labels: data.parts[part].labels}
    return arrays if data.flipped is None else {**arrays, _MIRRORED: data.flipped}


@contextmanager
def _said_of(what: str) -> Iterator[None]:
    """Begin the text of an error with what it is about."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise DataSetError(f"{what}: {error}") from error

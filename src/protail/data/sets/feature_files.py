"""Files of features: written by `save_features`, read by the name of the file."""

from __future__ import annotations

import os
from pathlib import Path

from protail._files import new_file
from protail._messages import unknown_name
from protail.data.sets._errors import DataSetError
from protail.data.sets._feature_arrays import (
    MIRRORED,
    PARTS,
    STREAM,
    Arrays,
    read_arrays,
    write_arrays,
)
from protail.data.sets.features import FeatureData, FeatureSet, named_arrays, said_of
from protail.data.sets.registry import FEATURE_SUFFIXES, register_dataset

_DTYPES = ("float16", "float32", "uint8")
# A label beyond this is no class code but a mistake, such as a date.
_MOST_CLASSES = 1_000_000


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
    >>> from protail.data.sets import FeatureData, FeatureSet, load_dataset, save_features
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
        "name": data.name,
        "description": data.description,
        "classes": list(data.classes),
        "dtype": dtype,
    }
    with new_file(path, overwrite=overwrite) as temporary:
        write_arrays(temporary, named_arrays(data), head)


@register_dataset("features")
def load_features(root: str | os.PathLike[str] | None) -> FeatureData:
    """Features of a frozen backbone, in an .npz or .safetensors file: stage 2 only."""
    if root is None:
        raise DataSetError(
            "features: no file is named; expected an .npz or .safetensors file. Name it in place "
            "of 'features', or with root=, --data-root."
        )
    place = Path(root)
    if not place.is_file() or place.suffix not in FEATURE_SUFFIXES:
        raise DataSetError(
            f"{place}: it is no file of features; expected one that ends in "
            f"{' or '.join(FEATURE_SUFFIXES)}. Check the path (root=, --data-root)."
        )
    arrays, head = read_arrays(place)
    with said_of(str(place)):
        parts = {
            part: _part(arrays, part, names)
            for part, names in {**PARTS, "stream": STREAM}.items()
            if names[0] in arrays
        }
        return FeatureData(
            name=head.get("name", place.stem),
            classes=tuple(map(str, head["classes"])) if head else _numbered(parts),
            mirrored=arrays.get(MIRRORED),
            description=head.get("description", {}),
            **parts,
        )


def _part(arrays: Arrays, part: str, names: tuple[str, str]) -> FeatureSet:
    rows, labels = names
    with said_of(part):
        return FeatureSet(arrays[rows], arrays[labels])


def _numbered(parts: dict[str, FeatureSet]) -> tuple[str, ...]:
    largest = max(int(part.labels.max()) for part in parts.values())
    if largest >= max(_MOST_CLASSES, sum(map(len, parts.values()))):
        raise ValueError(
            f"labels run up to {largest}; expected class codes 0, 1, 2, ... Number the classes "
            "with numpy.unique(labels, return_inverse=True)."
        )
    return tuple(map(str, range(largest + 1)))

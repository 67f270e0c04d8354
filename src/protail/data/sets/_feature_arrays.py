"""Files of features: arrays with fixed names, and how rows are kept in a byte a number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from protail.data.features import FeatureFileError
from protail.data.features._errors import reading
from protail.data.features._headers import npz_arrays, safetensors_arrays
from protail.data.features._stored import StoredArray
from protail.data.sets._errors import DataSetError

Rows = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]

# Names of rows and labels of each part, in npz and safetensors files alike.
PARTS = {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")}
STREAM = ("x_stream", "y_stream")
MIRRORED = "x_test_mirror"

_FORMAT, _VERSION = "protail-features", 1
_HEAD = "protail"
_SCALE = ("minimum", "step")
_LEVELS = 255
_BLOCK = 65536
_HEADS = {".npz": npz_arrays, ".safetensors": safetensors_arrays}


def read_arrays(place: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read rows and labels of a file, and what its head says; nothing is unpickled.

    Parameters
    ----------
    place : Path
        An npz file, or a safetensors file that `write_arrays` wrote.

    Returns
    -------
    arrays : dict of str to ndarray
        By the names that `PARTS`, `STREAM` and `MIRRORED` have for them; others are left out.
    head : dict
        What `write_arrays` was given; empty for npz files.
    """
    kind = place.suffix.removeprefix(".")
    try:
        with reading(place, kind):
            stored = {array.name: array for array in _HEADS[place.suffix](place)}
            metadata = _metadata(place) if kind == "safetensors" else {}
        head = _checked_head(place, metadata) if kind == "safetensors" else {}
        _check_names(place, stored)
        scale: Arrays = {}
        if head.get("dtype") == "uint8":
            scale = {name: _read(place, kind, stored, name, 1) for name in _SCALE}
        names = [name for name in (*_names(), MIRRORED) if name in stored]
        arrays = {name: _read(place, kind, stored, name, 2 - (name[0] == "y")) for name in names}
    except FeatureFileError as error:
        raise DataSetError(str(error)) from error
    return (_restored(place, arrays, scale) if scale else arrays), head


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], head: dict[str, Any]) -> None:
    """Write rows and labels to a safetensors file.

    Parameters
    ----------
    path : Path
        The file.
    arrays : mapping of str to ndarray
        By the names that `read_arrays` gives back.
    head : dict
        What to say about them, in JSON; its ``dtype`` is what rows are written in.
    """
    rows = {name: array for name, array in arrays.items() if name.startswith("x_")}
    labels = {name: array.astype("<i4") for name, array in arrays.items() if name not in rows}
    packed = _in_bytes(rows) if head["dtype"] == "uint8" else _as_floats(rows, head["dtype"])
    # One entry: the library writes several in an order that changes from run to run.
    about = {_HEAD: json.dumps({"format": _FORMAT, "version": _VERSION, **head}, allow_nan=False)}
    path.write_bytes(save({**packed, **labels}, about))


def _names() -> list[str]:
    return [name for pair in (*PARTS.values(), STREAM) for name in pair]


def _check_names(place: Path, stored: Mapping[str, StoredArray]) -> None:
    needed = [name for pair in PARTS.values() for name in pair]
    if not set(STREAM).isdisjoint(stored):
        needed += STREAM
    missing = [name for name in needed if name not in stored]
    if missing:
        raise DataSetError(
            f"{place}: it has no array {' or '.join(missing)} (found: {', '.join(stored)}); "
            f"expected {', '.join(_names()[:4])} and, if you like, {' and '.join(STREAM)}, "
            f"{MIRRORED}. Save them under these names."
        )


def _read(
    place: Path, kind: str, stored: Mapping[str, StoredArray], name: str, n_axes: int
) -> NDArray[Any]:
    array = stored.get(name)
    if array is None:
        raise DataSetError(f"{place}: it has no array {name}; expected it beside rows of bytes.")
    fine = array.dtype is not None and not array.dtype.hasobject and len(array.shape) == n_axes
    if not fine or (n_axes == 2 and not array.is_numeric):
        shape = "(n, width)" if n_axes == 2 else "(n,)"
        raise DataSetError(
            f"{place}: array {array} will not do; expected plain numbers of shape {shape}. "
            "Python objects are never unpickled: save it again as numbers."
        )
    with reading(place, kind):
        if n_axes == 1:
            return array.whole(place)
        rows = np.empty(array.shape, np.float32)
        begin = 0
        for block in array.blocks(place, 0, _BLOCK):
            rows[begin : begin + len(block)] = block
            begin += len(block)
        return rows


def _metadata(place: Path) -> dict[str, str]:
    with safe_open(place, framework="numpy") as file:
        return dict(file.metadata() or {})


def _checked_head(place: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        head = json.loads(metadata[_HEAD])
        if head["format"] != _FORMAT:
            raise ValueError(head["format"])
        version = int(head["version"])
        if version <= _VERSION:
            wanted = {"name": str, "classes": list, "description": dict, "dtype": str}
            for key, kind in wanted.items():
                if not isinstance(head[key], kind):
                    raise TypeError(key)
    except (LookupError, ValueError, TypeError) as error:
        raise DataSetError(
            f"{place}: its head is not that of a file of features; expected one that "
            "protail.data.sets.save_features wrote. Write it with that, or as npz."
        ) from error
    if version > _VERSION:
        raise DataSetError(
            f"{place}: it is a file of features of version {version}; expected {_VERSION} or "
            "older. Update protail, or write it again."
        )
    return dict(head)


def _as_floats(rows: Mapping[str, Rows], dtype: str) -> Arrays:
    with np.errstate(over="ignore"):
        packed = {name: array.astype(f"<{np.dtype(dtype).str[1:]}") for name, array in rows.items()}
    for name, array in packed.items():
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} has numbers that {dtype} cannot hold; expected them up to "
                f"{np.finfo(dtype).max:g}. Choose dtype='float32'."
            )
    return packed


def _in_bytes(rows: Mapping[str, Rows]) -> Arrays:
    """Round each channel to 256 even steps from its least to its greatest value in any part."""
    low = np.min([array.min(0) for array in rows.values()], 0)
    high = np.max([array.max(0) for array in rows.values()], 0)
    step = ((high.astype(np.float64) - low) / _LEVELS).astype(np.float32)
    a_step = np.where(step > 0, step, 1)
    packed: Arrays = {"minimum": low.astype("<f4"), "step": step.astype("<f4")}
    for name, array in rows.items():
        levels = np.rint((array - low) / a_step)
        packed[name] = np.clip(levels, 0, _LEVELS).astype(np.uint8)
    return packed


def _restored(place: Path, arrays: Arrays, scale: Arrays) -> Arrays:
    width = arrays["x_train"].shape[1]
    for name, values in scale.items():
        if values.shape != (width,) or values.dtype != np.float32 or not np.isfinite(values).all():
            raise DataSetError(
                f"{place}: array {name} is {values.dtype} of shape {values.shape}; expected "
                f"{width} finite numbers in float32. Write it again."
            )
    for name, array in arrays.items():
        if name.startswith("x_"):
            if array.shape[1] != width:
                continue  # whoever puts the parts together says it
            array *= scale["step"]
            array += scale["minimum"]
    return arrays

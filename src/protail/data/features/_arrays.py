"""Files of arrays: npy, npz and safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._columns import Wanted, listed_columns
from protail.data.features._errors import FeatureFileError, listed, problem, reading
from protail.data.features._file import FeatureFile, Layout
from protail.data.features._headers import npy_arrays, npz_arrays, safetensors_arrays
from protail.data.features._labels import checked_labels, label_type_error
from protail.data.features._names import (
    FEATURE_NAMES,
    LABEL_NAMES,
    check_named,
    first_of,
    no_labels_error,
)
from protail.data.features._stored import StoredArray, unreadable

_HEADERS = {".npy": npy_arrays, ".npz": npz_arrays, ".safetensors": safetensors_arrays}


class ArrayFile(FeatureFile):
    """Read features and labels that are arrays with names."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        wanted.check_no_columns(path)
        suffix = path.suffix.lower()
        self.kind = suffix.removeprefix(".")
        with reading(path, self.kind):
            arrays = {array.name: array for array in _HEADERS[suffix](path)}
        self._array = _choose_features(path, arrays, wanted.features)
        self._label_array = _choose_labels(path, arrays, wanted.labels)
        self._kept = [arrays[name] for name in listed_columns(path, "keep", wanted.keep, arrays)]
        for array in self._kept:
            _check_kept(path, array, self._array)
        used = (self._array, self._label_array, *self._kept)
        layout = Layout(
            width=self._array.shape[1],
            dtype=self._array.row_dtype,
            ignored=[name for name, array in arrays.items() if array not in used],
            has_labels=self._label_array is not None,
            kept={array.name: _kept_type(array) for array in self._kept},
        )
        super().__init__(path, layout)
        if self._label_array is None and wanted.need_labels:
            raise no_labels_error(path, [str(array) for array in arrays.values()])
        if self._label_array is not None and (wanted.need_labels or wanted.labels is not None):
            self._check_labels(self._label_array)

    @property
    def n_rows(self) -> int:
        return self._array.shape[0]

    def rows(self) -> NDArray[Any]:
        if not self._array.is_mapped:
            return super().rows()
        with reading(self.path, self.kind):
            return self._array.mapped(self.path)

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        return self._array.blocks(self.path, start, size)

    def _read_labels(self) -> NDArray[Any]:
        assert self._label_array is not None
        self._check_labels(self._label_array)
        return checked_labels(self.path, self._label_array.whole(self.path))

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        columns = [array.whole(self.path)[start:] for array in self._kept]
        texts = [np.strings.decode(c, "utf-8") if c.dtype.kind == "S" else c for c in columns]
        yield from zip(*(text.tolist() for text in texts), strict=True)

    def _check_labels(self, array: StoredArray) -> None:
        # Not done where labels only happen to be there: who wants rows alone may have them.
        if array.shape != self._array.shape[:1]:
            raise problem(
                self.path,
                f"labels {array} do not go with features {self._array}",
                f"labels of shape ({self._array.shape[0]},)",
                "Save one label for each row, or name others with labels= / --labels.",
            )
        if array.dtype is None or array.dtype.kind not in "biufSU" or array.type_name == "bfloat16":
            raise label_type_error(self.path, array.type_name)


def _check_kept(path: Path, array: StoredArray, features: StoredArray) -> None:
    if array.shape != features.shape[:1] or array.dtype is None or array.dtype.kind not in "biufSU":
        raise problem(
            path,
            f"array {array} cannot be carried along with features {features}",
            f"one value for each of the {features.shape[0]} rows, a number or text",
            "Leave it out of keep= / --keep.",
        )


def _kept_type(array: StoredArray) -> str:
    assert array.dtype is not None
    kinds = {"b": "bool_", "i": "int64", "u": "uint64", "f": "float64"}
    return kinds.get(array.dtype.kind, "string")


def _choose_features(path: Path, arrays: dict[str, StoredArray], wanted: str | None) -> StoredArray:
    if wanted is None:
        wanted = _usual_features(path, arrays)
    check_named(path, "features", wanted, arrays)
    array = arrays[wanted]
    if not array.is_numeric:
        raise unreadable(path, array)
    if len(array.shape) != 2:
        raise problem(
            path,
            f"array {array} has {len(array.shape)} dimensions",
            "2: one row an example",
            "Reshape it, or name another one with features= / --features.",
        )
    if 0 in array.shape:
        missing = "rows" if array.shape[0] == 0 else "columns"
        raise problem(
            path, f"array {array} has no {missing}", "at least one", "Write the features again."
        )
    return array


def _usual_features(path: Path, arrays: dict[str, StoredArray]) -> str:
    if len(arrays) == 1:
        return next(iter(arrays))
    tables = [name for name, array in arrays.items() if array.is_numeric and len(array.shape) == 2]
    usual = first_of(FEATURE_NAMES, tables or arrays)
    if usual is None and len(tables) == 1:
        usual = tables[0]
    if usual is None:
        raise _unclear(path, arrays, len(tables))
    return usual


def _unclear(path: Path, arrays: dict[str, StoredArray], n_tables: int) -> FeatureFileError:
    found = listed(map(str, arrays.values()))
    return problem(
        path,
        f"{n_tables or 'none'} of its arrays could be the features (found: {found})",
        f"one 2-d array of numbers, or one called {', '.join(FEATURE_NAMES)}",
        "Name yours with features= / --features.",
    )


def _choose_labels(
    path: Path, arrays: dict[str, StoredArray], wanted: str | None
) -> StoredArray | None:
    if wanted is not None:
        check_named(path, "labels", wanted, arrays)
        return arrays[wanted]
    flat = [name for name, array in arrays.items() if len(array.shape) == 1]
    usual = first_of(LABEL_NAMES, flat)
    return None if usual is None else arrays[usual]

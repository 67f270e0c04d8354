"""Files of arrays: npy, npz and safetensors.

numpy and safetensors load arrays whole; here they are mapped or read in blocks, and their heads
are checked before anything is read.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from safetensors import safe_open

from protail._files import check_mapped
from protail._messages import first_few
from protail.data.tables import _columns
from protail.data.tables.feature_file import LISTED, FaultError, FeatureFile, Wanted, reading
from protail.data.tables.rows import BLOCK_BYTES, ShardedRows, gather, rows_a_block
from protail.data.tables.shards import here

_FLOATS = ("float16", "float32", "float64")
_SAFETENSORS_TYPES = {"BOOL": "?", "F16": "<f2", "F32": "<f4", "F64": "<f8"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)
}
# Of the head of an npy array; numpy itself parses none that is longer.
_LONGEST_HEADER = 10_000 + 12
# numpy has no such numbers: their bytes are read as whole numbers, the upper half of a float32.
_BFLOAT16 = "bf16"


@dataclass
class StoredArray:
    """An array by what the head of its file says; one of more bytes than there are is an error.

    Its first number lies at ``offset`` in the file, or in the zip member once that is decompressed.
    The checksum of a member is compared before any number of it is given, or before the last ones
    are where it is compressed.
    """

    name: str
    type_name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    available: InitVar[int]
    offset: int
    fortran: bool = False
    member: str | None = None
    compressed: bool = False

    def __post_init__(self, available: int) -> None:
        """Raise when the shape asks for more bytes than there are."""
        self._is_checked = self.member is None
        if self.dtype.hasobject:
            return
        needed = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or needed > max(0, available):
            raise FaultError(
                f"array {self} needs {needed:,} bytes; expected no more than the "
                f"{max(0, available):,} that are there. It is damaged: write or copy it again."
            )

    def __str__(self) -> str:
        """Write name, type and shape, as in ``'X' float32 (3, 2)``."""
        return f"{self.name!r} {self.type_name} {self.shape}"

    @property
    def is_numeric(self) -> bool:
        """Whether it can be read as features."""
        return self.type_name in _FLOATS or self.dtype.kind in "iub"

    @property
    def can_be_labels(self) -> bool:
        """Whether it holds numbers or text, as labels and what is kept do."""
        return self.dtype.kind in "biufSU" and self.type_name != _BFLOAT16

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The type its rows are given in."""
        return np.dtype(self.type_name if self.type_name in _FLOATS else "float32")

    def mapped(self, path: Path) -> NDArray[Any]:
        """Map the bytes of the file, as stored."""
        self._check_sum(path)
        rows = np.memmap(path, self.dtype, "r", self.offset, self._stored)
        return rows.T if self.fortran else rows

    def blocks(self, path: Path, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield fresh blocks of ``size`` rows of a 2-d array, as floats."""
        if self.compressed and not self.fortran:
            yield from map(self._floats, self._decompressed(path, start, size))
            return
        if self.compressed:  # columns: rows can only be had once all of them are there
            columns_a_block = rows_a_block(self.shape[0] * self.dtype.itemsize)
            columns = self._decompressed(path, 0, columns_a_block)
            rows = gather(columns, (self.shape[1], self.shape[0]), self.dtype).T
        elif self.fortran:
            rows = self.mapped(path)
        else:
            yield from self._read(path, start, size)
            return
        for first in range(start, self.shape[0], size):
            check_mapped(rows)
            yield self._floats(np.asarray(rows[first : first + size]))

    def whole(self, path: Path) -> NDArray[Any]:
        """Read a 1-d array, bytes as text."""
        if self.compressed:
            values = np.concatenate([*self._decompressed(path, 0, BLOCK_BYTES)])
        else:
            values = np.array(self.mapped(path))
        return np.strings.decode(values, "utf-8") if values.dtype.kind == "S" else values

    @property
    def _stored(self) -> tuple[int, ...]:
        """The shape as it lies in the file, row after row."""
        return self.shape[::-1] if self.fortran else self.shape

    def _check_sum(self, path: Path) -> None:
        """Compare the checksum of a member once; zipfile does so at its end."""
        if not self._is_checked:
            with zipfile.ZipFile(path) as archive, archive.open(str(self.member)) as stream:
                while stream.read(BLOCK_BYTES):
                    pass
            self._is_checked = True

    def _read(self, path: Path, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield rows, read and not mapped: a file that becomes shorter is then an error."""
        self._check_sum(path)
        with path.open("rb", buffering=0) as file:
            for first in range(start, self.shape[0], size):
                raw = np.empty((min(size, self.shape[0] - first), self.shape[1]), self.dtype)
                file.seek(self.offset + first * raw[:1].nbytes)
                if file.readinto(raw.data.cast("B")) < raw.nbytes:
                    raise FaultError(
                        f"it ends before row {first + len(raw)} of array {self}; expected that "
                        "nobody cuts it short meanwhile. Write or copy it again."
                    )
                is_given = raw.dtype == self.row_dtype and self.type_name != _BFLOAT16
                yield raw if is_given else self._floats(raw)

    def _decompressed(self, path: Path, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield blocks of the array as it lies in the member."""
        total, *others = self._stored
        row_bytes = math.prod(others) * self.dtype.itemsize
        with zipfile.ZipFile(path) as archive, archive.open(str(self.member)) as stream:
            stream.seek(self.offset + start * row_bytes)
            for first in range(start, total, size):
                n_rows = min(size, total - first)
                raw = stream.read(n_rows * row_bytes)
                if first + n_rows == total:
                    stream.read(1)  # at the very end the checksum is compared
                yield np.frombuffer(raw, self.dtype).reshape(n_rows, *others)

    def _floats(self, raw: NDArray[Any]) -> NDArray[Any]:
        if self.type_name == _BFLOAT16:
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.array(raw, dtype=self.row_dtype, order="C")


def npy_arrays(path: Path) -> list[StoredArray]:
    """Read the head of an npy file."""
    with path.open("rb") as stream:
        shape, fortran, dtype = _npy_header(stream)
        offset = stream.tell()
    available = path.stat().st_size - offset
    return [StoredArray(path.stem, dtype.name, dtype, shape, available, offset, fortran)]


def npz_arrays(path: Path) -> list[StoredArray]:
    """Read the heads of all arrays in an npz file."""
    arrays = []
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        for info in archive.infolist():
            name, ending = info.filename[:-4], info.filename[-4:]
            if ending != ".npy":
                continue
            with archive.open(info) as stream:
                shape, fortran, dtype = _npy_header(stream)
                header = offset = stream.tell()
            compressed = info.compress_type != zipfile.ZIP_STORED
            if not compressed:  # where a member's bytes begin only its local header knows
                raw.seek(info.header_offset + 26)
                offset += info.header_offset + 30 + sum(struct.unpack("<HH", raw.read(4)))
            size = (info.file_size if compressed else info.compress_size) - header
            place = size, offset, fortran, info.filename, compressed
            arrays.append(StoredArray(name, dtype.name, dtype, shape, *place))
    return arrays


def safetensors_arrays(path: Path) -> list[StoredArray]:
    """Read the head of a safetensors file."""
    # The library checks that offsets, shapes and size agree; it has no way to map an array.
    with safe_open(path, framework="numpy"):
        pass
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    arrays = []
    for name, entry in header.items():
        code, (begin, end) = entry["dtype"], entry["data_offsets"]
        dtype = np.dtype(_SAFETENSORS_TYPES.get(code, "<u2" if code == "BF16" else "V"))
        type_name = dtype.name if code in _SAFETENSORS_TYPES else code.lower()
        shape, offset = tuple(entry["shape"]), 8 + length + begin
        arrays.append(StoredArray(name, type_name, dtype, shape, end - begin, offset))
    return arrays


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # numpy would read a header of any length, and unpack gigabytes of it out of a small file.
    head = io.BytesIO(stream.read(_LONGEST_HEADER))
    version = npy_format.read_magic(head)
    if version == (1, 0):
        found = npy_format.read_array_header_1_0(head)
    elif version == (2, 0):
        found = npy_format.read_array_header_2_0(head)
    else:
        raise ValueError(f"npy format {version} is for structured arrays")
    stream.seek(head.tell())
    return found


_HEADS = {".npy": npy_arrays, ".npz": npz_arrays, ".safetensors": safetensors_arrays}


class ArrayFile(FeatureFile):
    """Read features and labels that are arrays with names."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        super().__init__(path)
        wanted.check_no_columns()
        arrays = {array.name: array for array in _HEADS[path.suffix.lower()](here(path))}
        self._array = _choose_features(arrays, wanted.features)
        flat = [name for name, array in arrays.items() if len(array.shape) == 1]
        name = _columns.choose_label(wanted, arrays, flat, arrays.values())
        label = None if name is None else arrays[name]
        self._kept = [arrays[name] for name in _columns.find_columns("keep", wanted.keep, arrays)]
        self.n_rows, self.width = self._array.shape
        self.dtype = self._array.row_dtype
        self.is_mapped = not self._array.compressed and self._array.dtype == self.dtype
        used = (self._array, label, *self._kept)
        self.ignored = [name for name, array in arrays.items() if array not in used]
        self.kept = {array.name: self._kept_type(array) for array in self._kept}
        if label is not None:
            self._read_labels = partial(read_labels, label, path, self.n_rows)
            # Not where labels only happen to be there: who wants rows alone may have them.
            if wanted.need_labels or wanted.labels is not None:
                _check_label(label, self.n_rows)

    def cuts(self) -> list[int]:
        """Cut mapped rows into parts of 64 MiB: what of a file was looked at counts as memory."""
        if self._array.compressed or self._array.fortran:
            return super().cuts()
        step = 4 * rows_a_block(self.width * self._array.dtype.itemsize)
        return [*range(0, self.n_rows, step), self.n_rows]

    def rows(self) -> NDArray[Any] | ShardedRows:
        if not self.is_mapped:
            return super().rows()
        with reading(self.path):
            return self._array.mapped(here(self.path))

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        return self._array.blocks(here(self.path), start, size)

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        columns = (array.whole(here(self.path))[start:].tolist() for array in self._kept)
        yield from zip(*columns, strict=True)

    def _kept_type(self, array: StoredArray) -> str:
        if array.shape != (self.n_rows,) or not array.can_be_labels:
            raise FaultError(
                f"array {array} cannot be carried along; expected one value for each of the "
                f"{self.n_rows} rows, a number or text. Leave it out of keep= / --keep."
            )
        kinds = {"b": "bool_", "i": "int64", "u": "uint64", "f": "float64"}
        return kinds.get(array.dtype.kind, "string")


def read_labels(array: StoredArray, path: Path, n_rows: int) -> NDArray[Any]:
    """Read an array of labels, one for each row."""
    _check_label(array, n_rows)
    return _columns.checked_labels(array.whole(here(path)))


def _check_label(array: StoredArray, n_rows: int) -> None:
    if array.shape != (n_rows,):
        raise FaultError(
            f"labels {array} do not go with {n_rows} rows of features; expected labels of shape "
            f"({n_rows},). Save one label for each row, or name others with labels= / --labels."
        )
    if not array.can_be_labels:
        raise _columns.wrong_label_type(array.type_name)


def _choose_features(arrays: dict[str, StoredArray], wanted: str | None) -> StoredArray:
    if wanted is None:
        wanted = _usual_features(arrays)
    _columns.check_named("features", wanted, arrays)
    array = arrays[wanted]
    if not array.is_numeric:
        raise _no_numbers(array)
    if len(array.shape) != 2 or 0 in array.shape:
        raise FaultError(
            f"array {array} has no rows of numbers; expected 2 dimensions, a row for each example. "
            "Reshape it, or name another one with features= / --features."
        )
    return array


def _usual_features(arrays: dict[str, StoredArray]) -> str:
    tables = [name for name, array in arrays.items() if array.is_numeric and len(array.shape) == 2]
    for candidates in (list(arrays), tables):
        if len(candidates) == 1:
            return candidates[0]
    usual = _columns.first_of(_columns.FEATURE_NAMES, tables or arrays)
    if usual is None:
        raise FaultError(
            f"{len(tables) or 'none'} of its arrays could be the features (found: "
            f"{first_few(arrays.values(), LISTED)}); expected one 2-d array of numbers, or one "
            f"called {', '.join(_columns.FEATURE_NAMES)}. Name yours with features= / --features."
        )
    return usual


def _no_numbers(array: StoredArray) -> FaultError:
    why = " (Python objects are never unpickled here)" if array.dtype.hasobject else ""
    return FaultError(
        f"array {array} holds no plain numbers{why}; expected float16, bfloat16, float32, float64 "
        "or whole numbers. Save it again as float32, or name another one with features= / "
        "--features."
    )

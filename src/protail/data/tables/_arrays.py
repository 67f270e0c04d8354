"""Files of arrays: npy, npz and safetensors.

numpy and safetensors load arrays whole; here they are mapped or read in blocks, and their heads
are checked before anything is read.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protail.data.tables import _columns
from protail.data.tables._file import FaultError, FeatureFile, Wanted, listed, reading
from protail.data.tables._rows import BLOCK_BYTES, gather, rows_a_block

_FLOATS = ("float16", "float32", "float64")
_SAFETENSORS_TYPES = {
    code: np.dtype(f"<{code[0].lower()}{size}")
    for size in (1, 2, 4, 8)
    for code in (f"I{8 * size}", f"U{8 * size}", f"F{8 * size}")
    if code != "F8"
} | {"BOOL": np.dtype("?"), "BF16": np.dtype("<u2")}


@dataclass
class StoredArray:
    """Describe an array by what the head of its file says.

    Parameters
    ----------
    name : str
        Its name in the file.
    type_name : str
        Its type in words, for messages; "bfloat16" is the one numpy does not know.
    dtype : numpy.dtype or None
        How its bytes are read; None where they cannot be.
    shape : tuple of int
        Its shape.
    available : int
        How many bytes there are for it; fewer than its shape needs are an error.
    offset : int
        Where its first number lies: in the file, or in the zip member once decompressed.
    fortran : bool
        Whether columns, not rows, are contiguous.
    member : str or None
        The zip member it lies in. Its checksum is compared before any number of it is given,
        where it is compressed before the last ones are.
    compressed : bool
        Whether that member is compressed.
    """

    name: str
    type_name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    available: InitVar[int]
    offset: int
    fortran: bool = False
    member: str | None = None
    compressed: bool = False

    def __post_init__(self, available: int) -> None:
        """Raise when the shape asks for more bytes than there are."""
        self._is_checked = self.member is None
        if self.dtype is None or self.dtype.hasobject:
            return
        needed = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or needed > max(0, available):
            raise FaultError(
                f"array {self} needs {needed:,} bytes and {max(0, available):,} are there; "
                "expected an array as large as its shape says. It may be cut short or damaged: "
                "write or copy it again."
            )

    def __str__(self) -> str:
        """Write name, type and shape, as in ``'X' float32 (3, 2)``."""
        return f"{self.name!r} {self.type_name} {self.shape}"

    @property
    def is_numeric(self) -> bool:
        """Whether it can be read as features."""
        known = (*_FLOATS, "bfloat16")
        return self.type_name in known or (self.dtype is not None and self.dtype.kind in "iub")

    @property
    def can_be_labels(self) -> bool:
        """Whether it holds numbers or text, as labels and what is kept do."""
        plain = self.dtype is not None and self.dtype.kind in "biufSU"
        return plain and self.type_name != "bfloat16"

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The type its rows are given in."""
        return np.dtype(self.type_name if self.type_name in _FLOATS else "float32")

    def mapped(self, path: Path) -> NDArray[Any]:
        """Map the bytes of the file, as stored."""
        if not self._is_checked:
            self._check_sum(path)
        dtype = self._readable()
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        return np.memmap(path, dtype, "r", self.offset, self.shape, order)

    def blocks(self, path: Path, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield fresh blocks of ``size`` rows of a 2-d array, as floats."""
        if self.compressed and not self.fortran:
            yield from map(self._floats, self._decompressed(path, self.shape, start, size))
            return
        if self.compressed:  # columns: rows can only be had once all of them are there
            across = self.shape[1], self.shape[0]
            size_across = rows_a_block(across[1] * self._readable().itemsize)
            columns = self._decompressed(path, across, 0, size_across)
            rows = gather(columns, across, self._readable()).T
        else:
            rows = self.mapped(path)
        for first in range(start, self.shape[0], size):
            yield self._floats(np.asarray(rows[first : first + size]))

    def whole(self, path: Path) -> NDArray[Any]:
        """Read a 1-d array."""
        if not self.compressed:
            return np.array(self.mapped(path))
        with zipfile.ZipFile(path) as archive:
            content = archive.read(str(self.member))
        return np.frombuffer(content, self._readable(), self.shape[0], self.offset)

    def _check_sum(self, path: Path) -> None:
        """Read a zip member through, for zipfile to compare its checksum at the end."""
        try:
            with zipfile.ZipFile(path) as archive, archive.open(str(self.member)) as stream:
                while stream.read(BLOCK_BYTES):
                    pass
        except zipfile.BadZipFile as error:
            raise FaultError(
                f"array {self} does not agree with its checksum; expected an array as it was "
                "written. The file is damaged: write or copy it again."
            ) from error
        self._is_checked = True

    def _decompressed(
        self, path: Path, shape: tuple[int, ...], start: int, size: int
    ) -> Iterator[NDArray[Any]]:
        """Yield blocks of an array of this shape, as it lies in the member."""
        row_bytes = shape[1] * self._readable().itemsize
        with zipfile.ZipFile(path) as archive, archive.open(str(self.member)) as stream:
            stream.seek(self.offset + start * row_bytes)
            for first in range(start, shape[0], size):
                n_rows = min(size, shape[0] - first)
                raw = stream.read(n_rows * row_bytes)
                if first + n_rows == shape[0]:
                    stream.read(1)  # at the very end the checksum is compared
                yield np.frombuffer(raw, self._readable()).reshape(n_rows, shape[1])

    def _floats(self, raw: NDArray[Any]) -> NDArray[Any]:
        if self.type_name == "bfloat16":
            # The upper half of a float32.
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.array(raw, dtype=self.row_dtype, order="C")

    def _readable(self) -> np.dtype[Any]:
        if self.dtype is None or self.dtype.hasobject:
            raise _no_numbers(self)
        return self.dtype


def npy_arrays(path: Path) -> list[StoredArray]:
    """Read the head of an npy file."""
    with path.open("rb") as stream:
        shape, fortran, dtype = _npy_header(stream)
        offset = stream.tell()
    available = path.stat().st_size - offset
    return [StoredArray(path.stem, dtype.name, dtype, shape, available, offset, fortran)]


def npz_arrays(path: Path) -> list[StoredArray]:
    """Read the heads of all arrays in an npz file."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return [_npz_array(archive, info, raw) for info in members]


def safetensors_arrays(path: Path) -> list[StoredArray]:
    """Read the head of a safetensors file."""
    try:
        # The library checks that offsets, shapes and size agree; it has no way to map an array.
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    arrays = []
    for name, entry in header.items():
        code, (begin, end) = entry["dtype"], entry["data_offsets"]
        dtype = _SAFETENSORS_TYPES.get(code)
        type_name = code.lower() if dtype is None else dtype.name
        type_name = "bfloat16" if code == "BF16" else type_name
        shape, offset = tuple(entry["shape"]), 8 + length + begin
        arrays.append(StoredArray(name, type_name, dtype, shape, end - begin, offset))
    return arrays


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy_format.read_array_header_2_0(stream)
    raise ValueError(f"npy format {version} is for structured arrays")


def _npz_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, raw: IO[bytes]) -> StoredArray:
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_header(stream)
        header = offset = stream.tell()
    name = info.filename.removesuffix(".npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FaultError(
            f"array {name!r} is compressed in way {info.compress_type}; expected stored or "
            "deflated arrays, as numpy writes them. Write it again with numpy.savez."
        )
    compressed = info.compress_type == zipfile.ZIP_DEFLATED
    size = info.file_size if compressed else info.compress_size
    if not compressed:  # where a member's bytes begin only its local header knows
        raw.seek(info.header_offset + 26)
        offset += info.header_offset + 30 + sum(struct.unpack("<HH", raw.read(4)))
    place = size - header, offset, fortran, info.filename, compressed
    return StoredArray(name, dtype.name, dtype, shape, *place)


_HEADS = {".npy": npy_arrays, ".npz": npz_arrays, ".safetensors": safetensors_arrays}


class ArrayFile(FeatureFile):
    """Read features and labels that are arrays with names."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        super().__init__(path)
        wanted.check_no_columns()
        arrays = {array.name: array for array in _HEADS[path.suffix.lower()](path)}
        self._array = _choose_features(arrays, wanted.features)
        self._label = _choose_labels(arrays, wanted.labels)
        self._kept = [arrays[name] for name in _columns.find_columns("keep", wanted.keep, arrays)]
        self.width = self._array.shape[1]
        self.dtype = self._array.row_dtype
        used = (self._array, self._label, *self._kept)
        self.ignored = [name for name, array in arrays.items() if array not in used]
        self.has_labels = self._label is not None
        self.kept = {array.name: self._kept_type(array) for array in self._kept}
        if self._label is None and wanted.need_labels:
            raise _columns.no_labels(map(str, arrays.values()))
        # Not where labels only happen to be there: who wants rows alone may have them.
        if self._label is not None and (wanted.need_labels or wanted.labels is not None):
            _check_label(self._label, self.n_rows)

    def _count(self) -> int:
        return self._array.shape[0]

    def rows(self) -> NDArray[Any]:
        if self._array.compressed or self._array.dtype != self.dtype:
            return super().rows()
        with reading(self.path):
            return self._array.mapped(self.path)

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        return self._array.blocks(self.path, start, size)

    def _read_labels(self) -> NDArray[Any]:
        assert self._label is not None
        _check_label(self._label, self.n_rows)
        return _columns.checked_labels(self._label.whole(self.path))

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        columns = [array.whole(self.path)[start:] for array in self._kept]
        texts = [np.strings.decode(c, "utf-8") if c.dtype.kind == "S" else c for c in columns]
        yield from zip(*(text.tolist() for text in texts), strict=True)

    def _kept_type(self, array: StoredArray) -> str:
        if array.shape != (self.n_rows,) or array.dtype is None or not array.can_be_labels:
            raise FaultError(
                f"array {array} cannot be carried along with features {self._array}; expected one "
                f"value for each of the {self.n_rows} rows, a number or text. Leave it out of "
                "keep= / --keep."
            )
        kinds = {"b": "bool_", "i": "int64", "u": "uint64", "f": "float64"}
        return kinds.get(array.dtype.kind, "string")


def read_labels(path: Path, n_rows: int) -> NDArray[Any]:
    """Read an npy file of labels."""
    (array,) = npy_arrays(path)
    _check_label(array, n_rows)
    return _columns.checked_labels(array.whole(path))


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
    if len(array.shape) != 2:
        raise FaultError(
            f"array {array} has {len(array.shape)} dimensions; expected 2: one row an example. "
            "Reshape it, or name another one with features= / --features."
        )
    if 0 in array.shape:
        missing = "rows" if array.shape[0] == 0 else "columns"
        raise FaultError(
            f"array {array} has no {missing}; expected at least one. Write the features again."
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
            f"{listed(map(str, arrays.values()))}); expected one 2-d array of numbers, or one "
            f"called {', '.join(_columns.FEATURE_NAMES)}. Name yours with features= / --features."
        )
    return usual


def _choose_labels(arrays: dict[str, StoredArray], wanted: str | None) -> StoredArray | None:
    if wanted is None:
        flat = [name for name, array in arrays.items() if len(array.shape) == 1]
        wanted = _columns.first_of(_columns.LABEL_NAMES, flat)
    else:
        _columns.check_named("labels", wanted, arrays)
    return None if wanted is None else arrays[wanted]


def _no_numbers(array: StoredArray) -> FaultError:
    objects = array.dtype is not None and array.dtype.hasobject
    why = " (Python objects are never unpickled here)" if objects else ""
    return FaultError(
        f"array {array} holds no plain numbers{why}; expected float16, bfloat16, float32, float64 "
        "or whole numbers. Save it again as float32, or name another one with features= / "
        "--features."
    )

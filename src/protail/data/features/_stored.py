"""One array inside a file: where its bytes lie and how to read them without unpickling."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._errors import FeatureFileError, problem
from protail.data.features._spool import BLOCK_BYTES, gather, rows_a_block

_FLOATS = ("float16", "float32", "float64")


@dataclass
class StoredMember:
    """A zip member that lies in its file as it is: where, and what its checksum is to be.

    Parameters
    ----------
    begin, size : int
        Its bytes in the file.
    crc : int
        Their CRC-32, as the directory of the zip file says.
    """

    begin: int
    size: int
    crc: int
    is_checked: bool = False

    def is_whole(self, path: Path) -> bool:
        """Read the member through, once; the next time it is known to be whole."""
        if not self.is_checked:
            crc, left = 0, self.size
            with path.open("rb") as file:
                file.seek(self.begin)
                while left and (block := file.read(min(left, BLOCK_BYTES))):
                    crc, left = zlib.crc32(block, crc), left - len(block)
            self.is_checked = crc == self.crc and not left
        return self.is_checked


@dataclass(frozen=True)
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
    offset : int
        Where its first number lies: in the file, or in the zip member once decompressed.
    fortran : bool
        Whether columns, not rows, are contiguous.
    member : str or None
        The compressed zip member it lies in; None where it lies in the file as it is.
    stored : StoredMember or None
        The zip member it lies in as it is; checked before any of its numbers is given.
    """

    name: str
    type_name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    offset: int
    fortran: bool = False
    member: str | None = None
    stored: StoredMember | None = None

    def __str__(self) -> str:
        """Write name, type and shape, as in ``'X' float32 (3, 2)``."""
        return f"{self.name!r} {self.type_name} {self.shape}"

    @property
    def is_numeric(self) -> bool:
        """Whether it can be read as features."""
        return self.type_name in (*_FLOATS, "bfloat16") or (
            self.dtype is not None and self.dtype.kind in "iub"
        )

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The type its rows are given in."""
        return np.dtype(self.type_name if self.type_name in _FLOATS else "float32")

    @property
    def is_mapped(self) -> bool:
        """Whether its rows are in the file just as they are given."""
        return self.member is None and self.dtype == self.row_dtype

    def check_fits(self, path: Path, available: int) -> None:
        """Raise when the shape asks for more bytes than there are."""
        if self.dtype is None or self.dtype.hasobject:
            return
        needed = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or needed > max(0, available):
            raise problem(
                path,
                f"array {self} needs {needed:,} bytes and {max(0, available):,} are there",
                "an array as large as its shape says",
                "It may be cut short or damaged: write or copy it again.",
            )

    def mapped(self, path: Path) -> NDArray[Any]:
        """Map the bytes of the file, as stored."""
        if self.stored is not None and not self.stored.is_whole(path):
            raise problem(
                path,
                f"array {self} does not agree with its checksum",
                "an array as it was written",
                "The file is damaged: write or copy it again.",
            )
        return np.memmap(
            path,
            self._readable(path),
            mode="r",
            offset=self.offset,
            shape=self.shape,
            order="F" if self.fortran else "C",
        )

    def blocks(self, path: Path, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield fresh blocks of ``size`` rows of a 2-d array, as floats."""
        if self.member is None:
            rows = self.mapped(path)
        elif self.fortran:
            rows = self._transposed(path)
        else:
            for raw in self._decompressed(path, start, size):
                yield self._floats(raw)
            return
        for first in range(start, self.shape[0], size):
            yield self._floats(np.asarray(rows[first : first + size]))

    def whole(self, path: Path) -> NDArray[Any]:
        """Read a 1-d array."""
        if self.member is None:
            return np.array(self.mapped(path))
        itemsize = self._readable(path).itemsize
        parts = list(self._decompressed(path, 0, rows_a_block(itemsize)))
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def _transposed(self, path: Path) -> NDArray[Any]:
        """Read compressed columns; rows can only be had once all of them are there."""
        n_rows, width = self.shape
        columns = StoredArray(
            self.name, self.type_name, self.dtype, (width, n_rows), self.offset, member=self.member
        )
        size = rows_a_block(n_rows * self._readable(path).itemsize)
        parts = columns._decompressed(path, 0, size)
        return gather(parts, (width, n_rows), self._readable(path)).T

    def _decompressed(self, path: Path, start: int, size: int) -> Iterator[NDArray[Any]]:
        dtype, tail = self._readable(path), self.shape[1:]
        row_bytes = math.prod(tail) * dtype.itemsize
        with zipfile.ZipFile(path) as archive, archive.open(str(self.member)) as stream:
            stream.seek(self.offset + start * row_bytes)
            for first in range(start, self.shape[0], size):
                n_rows = min(size, self.shape[0] - first)
                raw = stream.read(n_rows * row_bytes)
                if len(raw) < n_rows * row_bytes:
                    raise EOFError(f"array {self} ends early")
                if first + n_rows == self.shape[0]:
                    stream.read(1)  # at the very end the checksum is compared
                yield np.frombuffer(raw, dtype).reshape(n_rows, *tail)

    def _floats(self, raw: NDArray[Any]) -> NDArray[Any]:
        if self.type_name == "bfloat16":
            # The upper half of a float32.
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.array(raw, dtype=self.row_dtype, order="C")

    def _readable(self, path: Path) -> np.dtype[Any]:
        if self.dtype is None or self.dtype.hasobject:
            raise unreadable(path, self)
        return self.dtype


def unreadable(path: Path, array: StoredArray) -> FeatureFileError:
    """Say that an array's type will not do."""
    objects = array.dtype is not None and array.dtype.hasobject
    why = " (Python objects are never unpickled here)" if objects else ""
    return problem(
        path,
        f"array {array} holds no plain numbers{why}",
        "float16, bfloat16, float32, float64 or whole numbers",
        "Save it again as float32, or name another one with features= / --features.",
    )

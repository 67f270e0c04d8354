"""What the heads of npy, npz and safetensors files say about their arrays."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from safetensors import SafetensorError, safe_open

from protail.data.features._errors import problem
from protail.data.features._stored import StoredArray, StoredMember

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_SAFETENSORS_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}


def npy_arrays(path: Path) -> list[StoredArray]:
    """Read the head of an npy file."""
    with path.open("rb") as stream:
        shape, fortran, dtype = _npy_header(stream)
        array = StoredArray(path.stem, dtype.name, dtype, shape, stream.tell(), fortran)
    array.check_fits(path, path.stat().st_size - array.offset)
    return [array]


def npz_arrays(path: Path) -> list[StoredArray]:
    """Read the heads of all arrays in an npz file."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return [_member(path, archive, info, raw) for info in members]


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
    return [_tensor(path, name, entry, 8 + length) for name, entry in header.items()]


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy_format.read_array_header_2_0(stream)
    raise ValueError(f"npy format {version} is for structured arrays")


def _member(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, raw: IO[bytes]
) -> StoredArray:
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_header(stream)
        header = stream.tell()
    name = info.filename.removesuffix(".npy")
    if info.compress_type == zipfile.ZIP_STORED:
        begin = _data_offset(raw, info)
        stored = StoredMember(begin, info.compress_size, info.CRC)
        offset = begin + header
        array = StoredArray(name, dtype.name, dtype, shape, offset, fortran, stored=stored)
        end = min(path.stat().st_size, begin + info.compress_size)
        array.check_fits(path, end - array.offset)
        return array
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise problem(
            path,
            f"array {name!r} is compressed in way {info.compress_type}",
            "stored or deflated arrays, as numpy writes them",
            "Write it again with numpy.savez.",
        )
    array = StoredArray(name, dtype.name, dtype, shape, header, fortran, info.filename)
    array.check_fits(path, info.file_size - header)
    return array


def _data_offset(raw: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Find where a member's bytes begin; only its local header knows."""
    raw.seek(info.header_offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no member begins where {info.filename!r} should")
    return info.header_offset + _LOCAL_HEADER.size + int(name_length) + int(extra_length)


def _tensor(path: Path, name: str, entry: dict[str, Any], base: int) -> StoredArray:
    code = str(entry["dtype"])
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    type_name, dtype = code.lower(), None
    if code == "BF16":
        type_name, dtype = "bfloat16", np.dtype("<u2")
    elif code in _SAFETENSORS_TYPES:
        type_name = _SAFETENSORS_TYPES[code]
        dtype = np.dtype(type_name).newbyteorder("<")
    array = StoredArray(name, type_name, dtype, shape, base + begin)
    array.check_fits(path, min(path.stat().st_size, base + end) - array.offset)
    return array

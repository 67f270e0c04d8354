"""The two files of a saved model: a JSON that people can read, and the arrays.

Both are checked twice: here by checksum, and value by value where they are used. So damage is
found wherever it is, and a file that was made on purpose to do harm finds no way in: no path in
it is followed, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protail._messages import upgrade_advice
from protail.estimator._fields import Fields, FlawError

FORMAT = "protail-prototype-classifier"
VERSION = 1
MODEL, WEIGHTS, CARD = "model.json", "weights.safetensors", "README.md"

Contents = dict[str, Any]
Tensors = dict[str, NDArray[Any]]

_DTYPES = {"F64": np.float64, "I64": np.int64, "F32": np.float32}
_SIGNATURE = re.compile(rb',\n  "checksum": "([0-9a-f]{64})"\n\}\n\Z')
_ENVELOPE = ("format", "format_version", "protail_version", "weights", "checksum")


class ModelFileError(ValueError):
    """Say what is wrong with a saved model, in which file, and what to do.

    Examples
    --------
    >>> from protail import PrototypeClassifier
    >>> from protail.estimator import ModelFileError
    >>> try:
    ...     PrototypeClassifier.load("no-such-model")
    ... except ModelFileError as error:
    ...     print(error)
    no-such-model: there is no such folder; expected a folder that save() has
    made. Check the path.
    """


def write_files(folder: Path, contents: Contents, tensors: Tensors) -> None:
    """Write both files into a folder that is there."""
    from protail import __version__

    weights = _write_weights(folder / WEIGHTS, tensors)
    head = {"format": FORMAT, "format_version": VERSION, "protail_version": __version__}
    (folder / MODEL).write_bytes(signed({**head, **contents, "weights": weights}))


def read_files(folder: Path, names: tuple[str, ...]) -> tuple[Contents, Tensors]:
    """Read both files; ``names`` are the keys the JSON has beside those of every model."""
    _check_folder(folder)
    document = _read_document(folder)
    Fields(document, [*_ENVELOPE[:3], *names, *_ENVELOPE[3:]], MODEL).text("protail_version")
    tensors = _read_weights(folder, document["weights"])
    return {name: document[name] for name in names}, tensors


def is_model(folder: Path) -> bool:
    """Say whether a folder holds a model of ours, be it damaged; OSError where nobody can say."""
    try:
        with (folder / MODEL).open("rb") as file:
            return FORMAT.encode() in file.read(200)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def signed(document: Contents) -> bytes:
    """Render the JSON, with a checksum of all text before it as the last key.

    The text is signed, not what it means: so there is no byte that may change unnoticed.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    # A lone surrogate, as in file names that are no UTF-8, becomes a JSON escape.
    body = text.removesuffix("\n}").encode("utf-8", "backslashreplace")
    return body + b',\n  "checksum": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def _check_folder(folder: Path) -> None:
    try:
        if folder.is_dir():
            return
        found = "this is a file" if folder.exists() else "there is no such folder"
    except (OSError, ValueError) as error:
        raise FlawError("", f"cannot be read: {error}.", "Check the path.") from error
    raise FlawError("", f"{found}; expected a folder that save() has made.", "Check the path.")


def _read_document(folder: Path) -> Contents:
    raw = _read_text(folder)
    try:
        document = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_without_repeated_keys,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise FlawError(MODEL, f"is not valid JSON ({error}).") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FlawError(
            MODEL, f"is not of format {FORMAT!r}.", "Expected a model that protail has saved."
        )
    _check_version(document.get("format_version"))
    signature = _SIGNATURE.search(raw)
    if not signature:
        raise FlawError(MODEL, "does not end with its checksum.")
    if hashlib.sha256(raw[: signature.start()]).hexdigest().encode() != signature[1]:
        raise FlawError(MODEL, "does not agree with its checksum.")
    return document


def _read_text(folder: Path) -> bytes:
    path = _regular_file(folder, MODEL)
    try:
        with path.open("rb") as file:
            first = file.read(1)
            # Gigabytes of something else need not be read to see that they are no JSON.
            raw = first + file.read() if first == b"{" else first
    except OSError as error:
        raise FlawError(MODEL, f"cannot be read: {error.strerror}.") from error
    if not raw.startswith(b"{"):
        raise FlawError(
            MODEL, f"is {'something else' if raw else 'empty'}; expected a JSON object."
        )
    # Some tools change line ends on their way to Windows.
    return raw.replace(b"\r\n", b"\n")


def _regular_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not os.path.isfile(path):
        problem = "is not a file." if os.path.lexists(path) else "is missing."
        raise FlawError(name, problem, "Expected a folder that save() has made: get a whole copy.")
    return path


def _check_version(version: object) -> None:
    if type(version) is not int or version < 1:
        raise FlawError(
            MODEL, f"'format_version' is {version!r}; expected a whole number from 1 on."
        )
    if version > VERSION:
        raise FlawError(
            MODEL,
            f"made by a newer protail (format {version}; this one reads up to {VERSION}).",
            f"{upgrade_advice()}.",
        )


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> Contents:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _write_weights(path: Path, tensors: Tensors) -> Contents:
    """Write safetensors straight from the arrays, and describe the file.

    Not left to the library, whose older versions copy all arrays first and which tells a full
    disk as an error of its own.
    """
    codes = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
    header: Contents = {}
    end = 0
    # Wide numbers first, so that each array starts at a multiple of its item size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": codes[array.dtype], "shape": list(array.shape)}
        header[name]["data_offsets"] = [start, end]
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        start_of_file: list[bytes | memoryview] = [struct.pack("<Q", len(text)), text]
        for block in start_of_file + [_little_endian_bytes(array) for _, array in ordered]:
            file.write(block)
            digest.update(block)
    table = {name: {k: header[name][k] for k in ("dtype", "shape")} for name in tensors}
    size = 8 + len(text) + end
    return {"file": WEIGHTS, "bytes": size, "sha256": digest.hexdigest(), "tensors": table}


def _little_endian_bytes(array: NDArray[Any]) -> memoryview:
    contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return contiguous.reshape(-1).view(np.uint8).data


def _read_weights(folder: Path, entry: object) -> Tensors:
    fields = Fields(entry, ("file", "bytes", "sha256", "tensors"), MODEL, "weights")
    fields.one_of("file", [WEIGHTS])  # never a path: files elsewhere are nobody's to name
    expected = _tensor_table(fields["tensors"])
    path = _regular_file(folder, WEIGHTS)
    try:
        if path.stat().st_size != fields.whole("bytes"):
            found = path.stat().st_size
            raise FlawError(WEIGHTS, f"has {found} bytes; expected {fields['bytes']}.")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != fields.text("sha256"):
            raise FlawError(WEIGHTS, f"does not agree with its checksum in {MODEL}.")
        return _read_arrays(path, expected)
    except SafetensorError as error:
        raise FlawError(WEIGHTS, f"is no valid safetensors file ({error}).") from error
    except OSError as error:
        raise FlawError(WEIGHTS, f"cannot be read: {error.strerror or error}.") from error


def _read_arrays(path: Path, expected: Contents) -> Tensors:
    with safe_open(str(path), framework="pt", device="cpu") as file:
        found = {
            name: {"dtype": part.get_dtype(), "shape": list(part.get_shape())}
            for name in file.keys()  # noqa: SIM118 - it is no dict
            for part in [file.get_slice(name)]
        }
        if found != expected:
            wrong = sorted(
                name for name in {*found, *expected} if found.get(name) != expected.get(name)
            )[0]
            raise FlawError(
                WEIGHTS,
                f"has {wrong!r} as {found.get(wrong)}; expected {expected.get(wrong)}, as {MODEL} "
                "says.",
            )
        # The file is mapped: a clone is the only copy, and lies where torch likes its arrays.
        return {name: file.get_tensor(name).clone().numpy() for name in expected}


def _tensor_table(table: object) -> Contents:
    names = sorted(table) if isinstance(table, dict) else []
    fields = Fields(table, names, MODEL, "weights.tensors")
    for name in names:
        entry = Fields(fields[name], ("dtype", "shape"), MODEL, f"weights.tensors.{name}")
        entry.one_of("dtype", list(_DTYPES))
        entry.list_of("shape", int)
    return {name: fields[name] for name in names}

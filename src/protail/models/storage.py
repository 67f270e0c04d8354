"""Folders of saved models: one JSON that people can read, and one safetensors file.

Both are checked twice: here by checksum, and value by value where they are used. So damage is
found wherever it is, and a file made on purpose to do harm finds no way in: no path in it is
followed, and nothing is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import reprlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from protail._messages import imported, upgrade_advice, why

MODEL, WEIGHTS, CARD = "model.json", "weights.safetensors", "README.md"

Contents = dict[str, Any]
Tensors = dict[str, Tensor]

_SIGNATURE = re.compile(rb',\n  "checksum": "([0-9a-f]{64})"\n\}\n\Z')
_ENVELOPE = ("format", "format_version", "protail_version", "weights", "checksum")
_DTYPE = re.compile(r"(?:[<>|])(?:(b)1|([iu])[1248]|(f)[248]|(U)([1-9]\d{0,8})|(O))")
_TYPES = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}
# Strings may have room to spare, but no file makes an array that is much larger than itself.
_MOST_SPARE_ROOM = 2**24
# How the writer of safetensors tells a full disk, say.
_OS_ERROR = re.compile(r"os error (\d+)")


class ModelFileError(ValueError):
    """Say what is wrong with a saved model, in which file, and what to do.

    Examples
    --------
    >>> from protail import PrototypeClassifier
    >>> from protail.models import ModelFileError
    >>> try:
    ...     PrototypeClassifier.load("no-such-model")
    ... except ModelFileError as error:
    ...     print(error)
    no-such-model: there is no such folder; expected a folder that save() has
    made. Check the path.
    """


class FlawError(Exception):
    """Something in a model's file that cannot be right; `flaws_told` makes a kind error of it."""

    def __init__(self, file: str, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.file = file
        self.problem = problem
        self.advice = advice or (
            "The model is damaged or was changed by hand: get a fresh copy, or save it again."
        )


@contextmanager
def flaws_told(folder: Path) -> Iterator[None]:
    """Raise a `ModelFileError` that names the file for a `FlawError`."""
    try:
        yield
    except FlawError as flaw:
        raise ModelFileError(f"{folder / flaw.file}: {flaw.problem} {flaw.advice}") from flaw


def write_files(
    folder: Path, format_name: str, version: int, contents: Contents, tensors: Mapping[str, Tensor]
) -> None:
    """Write both files into a folder that is there."""
    from protail import __version__

    header = {"format": format_name, "format_version": version, "protail_version": __version__}
    try:
        save_file(dict(tensors), folder / WEIGHTS, metadata={"format": format_name})
    except SafetensorError as error:
        told = _OS_ERROR.search(str(error))
        code = int(told[1]) if told else errno.EIO
        raise OSError(code, os.strerror(code)) from error
    weights = describe_weights(folder / WEIGHTS)
    (folder / MODEL).write_bytes(signed({**header, **contents, "weights": weights}))
    # safetensors writes a file that nobody else may read.
    shutil.copymode(folder / MODEL, folder / WEIGHTS)


def describe_weights(path: Path) -> Contents:
    """Give what the JSON says of the file of weights beside it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with safe_open(str(path), framework="pt", device="cpu") as tensors:
        table = _table_of(tensors)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest, "tensors": table}


def read_files(
    folder: Path, formats: Mapping[str, tuple[int, tuple[str, ...]]]
) -> tuple[str, Contents, Tensors]:
    """Read both files of a model.

    ``formats`` has, by name of the format, the newest version that can be read and the keys that
    the JSON has beside those of every model. Gives the name of the format, the values of these
    keys, and the tensors.
    """
    _check_folder(folder)
    document = _read_document(folder, formats)
    name = document["format"]
    keys = formats[name][1]
    Fields(document, [*_ENVELOPE[:3], *keys, *_ENVELOPE[3:]], MODEL).text("protail_version")
    tensors = _read_weights(folder, document["weights"])
    return name, {key: document[key] for key in keys}, tensors


def model_format(folder: Path) -> str | None:
    """Give the format of the model in a folder, be it damaged; OSError where nobody can say."""
    try:
        if not (folder / MODEL).is_file():
            return None
        with (folder / MODEL).open("rb") as file:
            found = re.match(rb'\{\s*"format":\s*"(protail-[a-z-]+)"', file.read(200))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    return found[1].decode() if found else None


def download(name: str, **hub_arguments: Any) -> Path:
    """Fetch a model from the Hugging Face Hub; both files are of the same commit."""
    valid = ("revision", "token", "cache_dir", "force_download", "local_files_only")
    for argument in hub_arguments:
        if argument not in valid:
            raise TypeError(
                f"{argument!r} is no argument of from_pretrained; expected "
                f"{', '.join(valid[:-1])} or {valid[-1]}."
            )
    try:
        found = _hub().snapshot_download(name, allow_patterns=[MODEL, WEIGHTS], **hub_arguments)
    except OSError as error:  # the Hub's errors name no folder, and come in ninety lines
        raise FileNotFoundError(
            f"{name}: there is no such folder, and the Hugging Face Hub did not give it "
            f"({why(error)}); expected a saved model. Check the path or the name."
        ) from None
    return Path(found)


def upload(
    repo_id: str,
    write: Callable[[Path], None],
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    branch: str | None = None,
    commit_message: str = "Push a model of protail",
    **upload_arguments: Any,
) -> str:
    """Share what ``write`` puts into a folder on the Hub; give the address of the commit."""
    api = _hub().HfApi(token=token)
    made = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if branch is not None:
        api.create_branch(made, branch=branch, exist_ok=True)
    with TemporaryDirectory() as temporary:
        write(Path(temporary, "model"))
        return str(
            api.upload_folder(
                repo_id=made,
                folder_path=Path(temporary, "model"),
                revision=branch,
                commit_message=commit_message,
                **upload_arguments,
            )
        )


def _hub() -> Any:
    return imported("huggingface_hub", "sharing models", "huggingface_hub", "hub")


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


def _read_document(folder: Path, formats: Mapping[str, tuple[int, tuple[str, ...]]]) -> Contents:
    raw = _read_text(_regular_file(folder, MODEL))
    try:
        document = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_without_repeated_keys,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise FlawError(MODEL, f"is not valid JSON ({error}).") from error
    name = document.get("format") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in formats:
        raise FlawError(
            MODEL,
            f"is not of format {' or '.join(map(repr, formats))}.",
            "Expected a model that protail has saved.",
        )
    _check_version(document.get("format_version"), formats[name][0])
    signature = _SIGNATURE.search(raw)
    if not signature:
        raise FlawError(MODEL, "does not end with its checksum.")
    if hashlib.sha256(raw[: signature.start()]).hexdigest().encode() != signature[1]:
        raise FlawError(MODEL, "does not agree with its checksum.")
    return cast(Contents, document)


def _read_text(path: Path) -> bytes:
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


def _check_version(version: object, newest: int) -> None:
    if type(version) is not int or version < 1:
        raise FlawError(
            MODEL, f"'format_version' is {version!r}; expected a whole number from 1 on."
        )
    if version > newest:
        raise FlawError(
            MODEL,
            f"made by a newer protail (format {version}; this one reads up to {newest}).",
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


def _read_weights(folder: Path, entry: object) -> Tensors:
    fields = Fields(entry, ("file", "bytes", "sha256", "tensors"), MODEL, "weights")
    fields.one_of("file", [WEIGHTS])  # never a path: files elsewhere are nobody's to name
    path = _regular_file(folder, WEIGHTS)
    try:
        if (size := path.stat().st_size) != fields.whole("bytes"):
            raise FlawError(WEIGHTS, f"has {size} bytes; expected {fields['bytes']}.")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != fields.text("sha256"):
            raise FlawError(WEIGHTS, f"does not agree with its checksum in {MODEL}.")
        return _read_arrays(path, fields["tensors"])
    except SafetensorError as error:
        raise FlawError(WEIGHTS, f"is no valid safetensors file ({error}).") from error
    except OSError as error:
        raise FlawError(WEIGHTS, f"cannot be read: {error.strerror or error}.") from error


def _read_arrays(path: Path, expected: object) -> Tensors:
    with safe_open(str(path), framework="pt", device="cpu") as file:
        found = _table_of(file)
        if found != expected:
            given = expected if isinstance(expected, dict) else {}
            wrong = [name for name in {*found, *given} if found.get(name) != given.get(name)]
            raise FlawError(WEIGHTS, f"{MODEL} says otherwise of {min(wrong, default='it')!r}.")
        # The file is mapped: a clone is the only copy, and lies where torch likes its arrays.
        return {name: file.get_tensor(name).clone() for name in sorted(found)}


def _table_of(file: Any) -> Contents:
    """Dtype and shape of every tensor of an open safetensors file."""
    parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    return {
        name: {"dtype": part.get_dtype(), "shape": list(part.get_shape())}
        for name, part in parts.items()
    }


class Fields:
    """A JSON object whose keys are known.

    Parameters
    ----------
    found : object
        What came.
    names : collection of str
        The keys it must have; it may have no others.
    file, where : str
        The file it is in, and its own key there.
    """

    def __init__(self, found: object, names: Collection[str], file: str, where: str = "") -> None:
        self._file = file
        self._where = where
        if not isinstance(found, dict):
            raise FlawError(
                file, f"{where or 'it'} is {reprlib.repr(found)}; expected a JSON object."
            )
        if wrong := sorted(set(found) ^ set(names)):
            kind = "unknown" if wrong[0] in found else "missing"
            raise FlawError(
                file, f"{kind} {self._path(wrong[0])}; expected the keys {', '.join(names)}."
            )
        self._found: dict[str, Any] = found

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def wrong(self, name: str, expected: str) -> FlawError:
        """Make the error for a value that is not what was expected."""
        return FlawError(
            self._file, f"{self._path(name)} is {reprlib.repr(self[name])}; expected {expected}."
        )

    def number(
        self, name: str, *, least: float = -inf, above: float = -inf, most: float = inf
    ) -> float:
        """Take a finite number."""
        value = self[name]
        is_finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
        if is_finite and least <= value <= most and value > above:
            return float(value)
        limits = [("at most", most), ("at least", least), ("above", above)]
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit))
        raise self.wrong(name, f"a finite number {words}".strip())

    def number_or_none(self, name: str, **limits: float) -> float | None:
        """Take a finite number or null."""
        return None if self[name] is None else self.number(name, **limits)

    def whole(self, name: str, *, least: int = 0) -> int:
        """Take a whole number that 64 bits can hold."""
        value = self[name]
        if type(value) is int and least <= value < 2**63:
            return value
        raise self.wrong(name, f"a whole number of at least {least}")

    def truth(self, name: str) -> bool:
        """Take true or false."""
        if isinstance(self[name], bool):
            return bool(self[name])
        raise self.wrong(name, "true or false")

    def text(self, name: str) -> str:
        """Take a string."""
        if isinstance(self[name], str):
            return str(self[name])
        raise self.wrong(name, "a string")

    def one_of(self, name: str, valid: Collection[str | None]) -> Any:
        """Take one of a few values."""
        # A list or an object could not be looked up in a set.
        if isinstance(self[name], (str, type(None))) and self[name] in valid:
            return self[name]
        raise self.wrong(name, "one of " + ", ".join(map(repr, valid)))

    def list_of(self, name: str, kind: type) -> list[Any]:
        """Take a list whose entries are all of one type."""
        value = self[name]
        if isinstance(value, list) and all(type(entry) is kind for entry in value):
            return value
        raise self.wrong(name, f"a list of {kind.__name__} only")

    def _path(self, name: str) -> str:
        return repr(f"{self._where}.{name}" if self._where else name)


def labels_to_json(labels: NDArray[Any]) -> dict[str, Any]:
    """Describe labels so that `labels_from_json` gives the same array."""
    dtype, values = labels.dtype.str, labels.tolist()
    known = _DTYPE.fullmatch(dtype)
    if not known or not all(isinstance(value, _TYPES[_kind(known)]) for value in values):
        raise ValueError(
            f"classes_ has dtype {labels.dtype} with labels such as {values[0]!r}; expected text, "
            "whole numbers, booleans or floats, which JSON can hold. Fit with such labels."
        )
    if _kind(known) in "UO":
        values = [plain_text(value, "classes_") for value in values]
    if _kind(known) == "U" and _has_too_much_room(int(known[5]), values):
        dtype = f"{dtype[0]}U{max(map(len, values))}"
    return {"dtype": dtype, "values": values}


def labels_from_json(found: object, file: str, *, is_sorted: bool = True) -> NDArray[Any]:
    """Restore labels; raise a `FlawError` unless they are distinct and fit their dtype."""
    fields = Fields(found, ("dtype", "values"), file, "classes")
    known = _DTYPE.fullmatch(fields.text("dtype"))
    if not known:
        raise fields.wrong("dtype", "a numpy dtype for labels, such as '<i8', '<U5' or '|O'")
    values = fields.list_of("values", _TYPES[_kind(known)])
    ordered = values if is_sorted else sorted(values)
    if len(values) < 2 or not all(one < other for one, other in pairwise(ordered)):
        kind = "sorted, " if is_sorted else ""
        raise fields.wrong("values", f"at least two labels, {kind}none of them twice")
    if _kind(known) == "U" and _has_too_much_room(int(known[5]), values):
        raise fields.wrong("dtype", "no more room than the labels need")
    with np.errstate(over="ignore"), suppress(OverflowError, TypeError, ValueError):
        labels = np.array(values, dtype=known[0])
        if labels.tolist() == values:
            return labels
    raise fields.wrong("values", f"labels that dtype {known[0]} can hold")


def plain_text(value: str, what: str) -> str:
    """Turn any kind of str into a plain one; refuse the one kind of text JSON cannot keep."""
    text = str(value)
    if text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") != text:
        raise ValueError(
            f"{what} has {text!r}, which holds the two halves of one character; expected whole "
            "characters. Decode that text as UTF-16 first."
        )
    return text


def _kind(known: re.Match[str]) -> str:
    return next(group for group in known.groups() if group)


def _has_too_much_room(width: int, values: list[str]) -> bool:
    return width * len(values) > _MOST_SPARE_ROOM and width > max(map(len, values))

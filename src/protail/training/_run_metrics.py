"""What a run logs, one JSON line a record."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from protail._files import explained, new_file
from protail.training._run_folder import RunError
from protail.training._run_json import read_object

Line = dict[str, Any]
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class MetricsFile:
    """Append lines; each is in the system's hands before ``append`` returns, or is not there.

    Parameters
    ----------
    path : Path
        The file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise explained(error, path) from error

    def append(self, line: Line) -> None:
        """Write one line, whole or not at all."""
        end = self._file.seek(0, os.SEEK_END)
        rest = memoryview(json.dumps(line, allow_nan=False).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise explained(error, self._path) from error

    def flush(self) -> None:
        """Have the lines on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise explained(error, self._path) from error

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def as_line(step: int, epoch: int, numbers: Mapping[str, float]) -> Line:
    """Make the line of a record, in strict JSON: what is no finite number becomes its name."""
    for name, count in {"step": step, "epoch": epoch}.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or count < 0:
            raise ValueError(f"{name} is {count!r}; expected a whole number from 0 on.")
    for name, value in numbers.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(
                f"{name} is a {type(value).__name__}; expected a number. Of a tensor with one "
                "value, .item() gives it."
            )
    return {name: _written(v) for name, v in {"step": step, "epoch": epoch, **numbers}.items()}


def read_lines(path: Path) -> list[Line]:
    """Read the records; a last line without its end is not there yet."""
    return [_parsed(raw, path, number) for number, raw in enumerate(_whole_lines(path), start=1)]


def keep_lines(path: Path, last_step: float) -> None:
    """Drop the records behind a step, and what was torn when the process died."""
    steps = [line["step"] for line in read_lines(path)]
    kept = [raw for raw, step in zip(_whole_lines(path), steps, strict=True) if step <= last_step]
    with new_file(path, overwrite=True) as temporary:
        temporary.write_bytes(b"".join(kept))


def _whole_lines(path: Path) -> list[bytes]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return [raw + b"\n" for raw in text.split(b"\n")[:-1]]


def _parsed(raw: bytes, path: Path, number: int) -> Line:
    try:
        line = read_object(raw)
        if type(line.get("step")) is not int:
            raise ValueError("it has no step")
    except ValueError as error:
        raise RunError(
            f"{path}: line {number} is no record of a run ({error}). Remove that line."
        ) from error
    return {name: _read(value) for name, value in line.items()}


def _written(value: float) -> int | float | str:
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _read(value: Any) -> Any:
    return float(value) if value in _NOT_FINITE else value

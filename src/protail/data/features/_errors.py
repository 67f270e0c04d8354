"""One error for every file that cannot be read, and one sentence pattern for all of them."""

from __future__ import annotations

import csv
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protail._files import OutputError

# What the readers of the formats raise when a file is not what its name says.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    ArithmeticError,
    RuntimeError,
    MemoryError,  # sizes that a damaged head made up
    csv.Error,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_LISTED = 20


class FeatureFileError(ValueError):
    """Say which feature file cannot be read, why, and what to do about it.

    Examples
    --------
    >>> from protail.data.features import FeatureFileError, open_features
    >>> try:
    ...     open_features("photos.zip")
    ... except FeatureFileError as error:
    ...     print(error)
    photos.zip: there is no such file; expected a feature file. Check the path.
    """


def problem(path: Path, came: str, expected: str, remedy: str) -> FeatureFileError:
    """Put an error together: the file, what came, what was expected, what to do."""
    return FeatureFileError(f"{path}: {came}; expected {expected}. {remedy}")


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into a `FeatureFileError`."""
    try:
        yield
    except (FeatureFileError, OutputError):
        raise
    except UnicodeDecodeError as error:
        raise problem(
            path,
            f"byte 0x{error.object[error.start]:02x} does not belong to UTF-8 text",
            f"a {kind} file in UTF-8",
            "Save it again with the encoding UTF-8.",
        ) from error
    except PermissionError as error:
        raise problem(
            path, "there is no permission to read it", "a readable file", "Change its permissions."
        ) from error
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise problem(
            path,
            f"it cannot be read ({reason[:200]})",
            f"a whole {kind} file",
            "It may be cut short or damaged: write or copy it again.",
        ) from error


def check_file(path: Path, expected: str) -> None:
    """Raise unless there is a file with something in it."""
    if not path.exists():
        raise problem(path, "there is no such file", expected, "Check the path.")
    if path.is_dir():
        raise problem(path, "it is a folder", expected, "Name a file inside it.")
    if not path.is_file():
        raise problem(path, "it is a pipe or device", "a file on disk", "Write it to one first.")
    if path.stat().st_size == 0:
        raise problem(path, "it is empty (0 bytes)", expected, "Write or copy it again.")


def listed(names: Iterable[str]) -> str:
    """Name the first few of many."""
    every = list(names)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return (", ".join(every[:_LISTED]) or "nothing") + more

"""One error for every data set that cannot be read, and words that its messages share."""

from __future__ import annotations

from collections.abc import Sequence

from protail._messages import not_installed

_NAMED = 3


class DataSetError(ValueError):
    """Say which data set or file cannot be read, why, and what to do about it.

    Examples
    --------
    >>> from protail.data.sets import DataSetError, load_dataset
    >>> try:
    ...     load_dataset("lost.protail-draw.zip")
    ... except DataSetError as error:
    ...     print(error)
    lost.protail-draw.zip: there is no such file; expected an exported draw. Check the path.
    """


class OtherDrawError(DataSetError):
    """Say that an exported file holds another draw than the one that is wanted.

    Examples
    --------
    >>> from protail.data.sets import DataSetError, OtherDrawError
    >>> issubclass(OtherDrawError, DataSetError)
    True
    """


def first_few(names: Sequence[object]) -> str:
    """Name the first three of many, and say how many there are."""
    shown = ", ".join(str(name) for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def missing_library(name: str, purpose: str) -> ImportError:
    """Say what a library of the extra ``vision`` is needed for."""
    return ImportError(not_installed(purpose, name, "vision"))

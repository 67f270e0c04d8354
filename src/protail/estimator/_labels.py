"""Class labels as JSON and back, dtype and all."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.estimator._fields import Fields

_DTYPE = re.compile(r"(?:[<>|])(?:(b)1|([iu])[1248]|(f)[248]|(U)([1-9]\d{0,8})|(O))")
_TYPES = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}
# Strings may have room to spare, but no file makes an array that is much larger than itself.
_MOST_SPARE_ROOM = 2**24


def labels_to_json(labels: NDArray[Any]) -> dict[str, Any]:
    """Describe labels so that `labels_from_json` gives the same array.

    Parameters
    ----------
    labels : ndarray of shape (n_classes,)
        Text, whole numbers, booleans or floats; an array of objects may hold text only.

    Returns
    -------
    dict
        ``dtype``, as numpy writes it, and ``values``.
    """
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


def labels_from_json(found: object, file: str) -> NDArray[Any]:
    """Restore labels; raise a ``FlawError`` unless they are sorted, distinct and fit their dtype.

    Parameters
    ----------
    found : object
        What `labels_to_json` gave, or anything else.
    file : str
        Where it was found.

    Returns
    -------
    ndarray of shape (n_classes,)
        The labels.
    """
    fields = Fields(found, ("dtype", "values"), file, "classes")
    known = _DTYPE.fullmatch(fields.text("dtype"))
    if not known:
        raise fields.wrong("dtype", "a numpy dtype for labels, such as '<i8', '<U5' or '|O'")
    values = fields.list_of("values", _TYPES[_kind(known)])
    if len(values) < 2 or not all(one < other for one, other in pairwise(values)):
        raise fields.wrong("values", "at least two labels, sorted, none of them twice")
    if _kind(known) == "U" and _has_too_much_room(int(known[5]), values):
        raise fields.wrong("dtype", "no more room than the labels need")
    try:
        with np.errstate(over="ignore"):
            labels = np.array(values, dtype=known[0])
        fits = labels.tolist() == values
    except (OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        raise fields.wrong("values", f"labels that dtype {known[0]} can hold")
    return labels


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

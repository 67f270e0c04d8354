"""What may be a label: whole numbers and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._errors import FeatureFileError, problem

_EXPECTED = "labels that are whole numbers or names"
# A table of fixed-width text holds the longest name once a row.
_LONGEST = 1000
_FLOAT_EXACT = 2**53
# Numbers that are written as Python writes them: 01 and 1 are two names, not one number.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def checked_labels(path: Path, labels: NDArray[Any]) -> NDArray[Any]:
    """Give labels as int64 or str; raise naming the first row that has neither."""
    kind = labels.dtype.kind
    if kind in "bi":
        return labels.astype(np.int64)
    if kind == "u":
        _refuse(path, labels, labels > np.iinfo(np.int64).max, "is too large")
        return labels.astype(np.int64)
    if kind == "f":
        _refuse(path, labels, ~np.isfinite(labels), "is missing or infinite")
        whole = (labels == np.floor(labels)) & (np.abs(labels.astype(np.float64)) <= _FLOAT_EXACT)
        _refuse(path, labels, ~whole, "is not a whole number")
        return labels.astype(np.int64)
    if kind == "S":
        labels = _decoded(path, labels)
    elif kind != "U":
        raise label_type_error(path, str(labels.dtype))
    if labels.dtype.itemsize > 4 * _LONGEST:
        _refuse(path, labels, np.strings.str_len(labels) > _LONGEST, "is too long for a name")
    _refuse(path, labels, labels == "", "is empty")
    return labels.astype(f"=U{max(1, labels.dtype.itemsize // 4)}")


def text_labels(path: Path, labels: Sequence[str]) -> NDArray[Any]:
    """Make an array of names; raise before one long name makes every row long."""
    for row, label in enumerate(labels):
        if not label or len(label) > _LONGEST:
            wrong = "is too long for a name" if label else "is empty"
            raise _error(path, row, label, wrong)
    return np.array(labels, dtype=np.str_)


def labels_of_lines(path: Path, lines: Iterable[tuple[int, str]]) -> NDArray[Any]:
    """Make labels of text, given with the number of its line: whole numbers, or else names."""
    labels = []
    for line, text in lines:
        label = text.strip()
        if not label:
            raise problem(
                path,
                f"the label on line {line} is empty",
                "a label in every row",
                "Correct or remove that line.",
            )
        labels.append(label)
    if all(map(_WHOLE.fullmatch, labels)):
        return np.array(list(map(int, labels)), dtype=np.int64)
    return text_labels(path, labels)


def label_type_error(path: Path, what: str) -> FeatureFileError:
    """Say that labels of this type will not do."""
    if what == "object":
        return problem(
            path,
            "its labels are Python objects, which are never unpickled here",
            _EXPECTED,
            "Save them as text: labels.astype(str).",
        )
    return problem(path, f"its labels are of type {what}", _EXPECTED, "Save them as int or text.")


def _decoded(path: Path, labels: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.strings.decode(labels, "utf-8")
    except UnicodeDecodeError as error:
        raise problem(
            path, "its labels are bytes that are not UTF-8", _EXPECTED, "Save them as text."
        ) from error


def _refuse(path: Path, labels: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise _error(path, row, labels[row].item(), why)


def _error(path: Path, row: int, label: object, why: str) -> FeatureFileError:
    return problem(
        path,
        f"the label of row {row} (the first is 0) {why}: {repr(label)[:60]}",
        _EXPECTED,
        "Correct it, or name other labels with labels= / --labels.",
    )

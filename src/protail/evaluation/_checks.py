"""Checking what users give: labels become class codes, scores become float64."""

from __future__ import annotations

from itertools import repeat
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.options import Range
from protail.profile import ClassProfile, host_array

GROUPS = ("many", "medium", "few")
UNSEEN = -1


def label_list(labels: ArrayLike | torch.Tensor, name: str) -> list[Any]:
    """Turn labels into a list of plain values that are all numbers or all text."""
    # numpy would turn [1, "a"] into text without a word, so a list is looked at as it is.
    if isinstance(labels, list | tuple):
        values = list(labels)
    else:
        array = host_array(labels)
        if array.ndim != 1:
            raise ValueError(
                f"{name} has shape {array.shape}; expected one label after the other, shape (n,)."
            )
        values = array.tolist()
    if not values:
        raise ValueError(f"{name} is empty; expected at least one label.")
    types = set(map(type, values))
    if len({_kind(kind, name) for kind in types}) > 1:
        raise TypeError(
            f"{name} mixes numbers and text; expected labels of one kind. "
            "Turn all of them into text with str."
        )
    if not all(issubclass(kind, str | Integral | np.bool_) for kind in types) and any(
        value != value for value in values
    ):
        raise ValueError(f"{name} contains NaN; expected a label everywhere. Drop those rows.")
    return values


def _kind(kind: type, name: str) -> str:
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, Real | np.bool_):
        return "numbers"
    raise TypeError(
        f"{name} holds values of type {kind.__name__}; expected numbers or text, one label a row."
    )


class ClassCodes:
    """Hold the classes and the codes 0, 1, 2, ... of their labels."""

    def __init__(self, classes: ArrayLike | torch.Tensor) -> None:
        values = label_list(classes, "classes")
        self.labels: NDArray[Any] = np.asarray(values)
        self._kind = _kind(type(values[0]), "classes")
        self._codes = {label: code for code, label in enumerate(values)}
        if len(self._codes) < len(values):
            raise ValueError(
                f"classes has {len(values)} labels but only {len(self._codes)} different ones; "
                "expected every class once, as in classes_ of a fitted classifier."
            )

    def of(self, labels: ArrayLike | torch.Tensor, name: str) -> NDArray[np.int64]:
        """Give the code of every label; UNSEEN where it is none of the classes."""
        values = label_list(labels, name)
        kind = _kind(type(values[0]), name)
        if kind != self._kind:
            raise TypeError(
                f"{name} holds {kind} and classes holds {self._kind}; expected labels of one kind. "
                "Give both as numbers or both as text."
            )
        codes = map(self._codes.get, values, repeat(UNSEEN))
        return np.fromiter(codes, np.int64, len(values))

    def known(self, labels: ArrayLike | torch.Tensor, name: str, rows: int) -> NDArray[np.int64]:
        """Give the codes of predicted labels: one for each row, each one of the classes."""
        codes = self.of(labels, name)
        check_rows(name, codes.size, rows)
        if (codes == UNSEEN).any():
            row = int(np.argmax(codes == UNSEEN))
            raise ValueError(
                f"{name} contains {label_list(labels, name)[row]!r} (row {row}), which is not in "
                "classes; expected only labels the classifier knows. Check that classes is "
                "classes_ of the classifier that predicted."
            )
        return codes


def truth_codes(
    truth: ArrayLike | torch.Tensor, classes: ClassCodes
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Give the code of every true label and which rows are of a known class."""
    codes = classes.of(truth, "truth")
    known = codes != UNSEEN
    if not known.any():
        raise ValueError(
            f"truth has {codes.size} rows and none of them is of a class in classes; expected at "
            "least one. Check that both write their labels the same way."
        )
    return codes, known


def check_rows(name: str, rows: int, expected: int) -> None:
    """Refuse what does not have one value for each row of truth."""
    if rows != expected:
        raise ValueError(
            f"{name} has {rows} rows and truth has {expected}; expected one value for each test "
            "row, in the same order."
        )


def class_groups(
    counts: ArrayLike | torch.Tensor, n_classes: int, many: int, few: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the checked counts and the group of every class: 0 many, 1 medium, 2 few."""
    size = host_array(counts).size
    if size != n_classes:
        raise ValueError(
            f"counts has {size} values and classes has {n_classes}; expected the training rows of "
            "every class, in the order of classes."
        )
    profile = ClassProfile(host_array(counts))
    Range(kind=int).check("many", many)
    Range(kind=int).check("few", few)
    groups = profile.groups(many, few)
    group_of = np.empty(n_classes, dtype=np.int64)
    for index, name in enumerate(GROUPS):
        group_of[groups[name]] = index
    return profile.counts, group_of


def scores(values: ArrayLike | torch.Tensor, name: str) -> NDArray[np.float64]:
    """Turn one score a row into float64; NaN is refused."""
    if isinstance(values, torch.Tensor):
        values = values.detach().double()  # numpy has no bfloat16
    array = host_array(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected one number a row.")
    array = array.astype(np.float64, copy=False)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}; expected one number a row, shape (n,), and at least "
            "one row."
        )
    nan = np.isnan(array)
    if nan.any():
        raise ValueError(
            f"{name} has {nan.sum()} NaN (first: row {np.argmax(nan)}); expected a number "
            "everywhere. Drop those rows."
        )
    return array


def probabilities(values: ArrayLike | torch.Tensor, name: str) -> NDArray[np.float64]:
    """Check probabilities; what a float32 softmax leaves just above 1 counts as 1."""
    array = scores(values, name)
    low, high = float(array.min()), float(array.max())
    if low < -1e-6 or high > 1 + 1e-6:
        raise ValueError(
            f"{name} runs from {low:.6g} to {high:.6g}; expected probabilities from 0 to 1. "
            "Turn logits into probabilities with a softmax, per cent into fractions by / 100."
        )
    return array.clip(0.0, 1.0)


def row_scores(values: ArrayLike | torch.Tensor, name: str, rows: int) -> NDArray[np.float64]:
    """Check one score for each row of truth."""
    array = scores(values, name)
    check_rows(name, array.size, rows)
    return array


def fractions(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide; NaN where the whole is 0."""
    with np.errstate(invalid="ignore"):
        return np.asarray(part / whole, dtype=np.float64)

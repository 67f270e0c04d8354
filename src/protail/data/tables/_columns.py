"""Which columns are features, labels or only carried along, and what may be a label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import first_few, unknown_name
from protail.data.tables.feature_file import LISTED, FaultError, Wanted

FEATURE_NAMES = ("features", "embeddings", "embedding", "X", "x")
LABEL_NAMES = ("labels", "label", "y", "targets", "target", "class")

_LABELS = "expected labels that are whole numbers or names"
# A table of fixed-width text holds the longest name once a row.
_LONGEST = 1000
# So names of that length are taken only where all of them fit into this; short ones always.
_USUAL_BYTES, _USUAL_NAME = 2**30, 64
_FLOAT_EXACT = 2**53
# Numbers that are written as Python writes them: 01 and 1 are two names, not one number.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


# Names of columns: the features in order, the label, and what comes along.
Chosen = tuple[list[str], str | None, list[str]]


def choose(
    numeric: Mapping[str, bool],
    contents: Mapping[str, object],
    wanted: Wanted,
    index: Collection[str] = (),
) -> Chosen:
    """Choose among the columns of a table: whether each holds numbers, and what, in words.

    Those of the index are features only where they are named.
    """
    kept = list(find_columns("keep", wanted.keep, numeric))
    if wanted.columns == ():
        raise FaultError(
            "columns names nothing; expected at least one. Name some, or leave it out."
        )
    columns = find_columns("columns", wanted.columns or (), numeric)
    named = [name for name, alone in columns.items() if alone]
    free = [name for name in numeric if name not in named]
    label = choose_label(wanted, numeric, free, map(repr, numeric))
    if wanted.features is not None:
        wanted.check_no_columns()
        check_named("features", wanted.features, [name for name in numeric if name != label])
        if not numeric[wanted.features]:
            raise _no_numbers(contents, [wanted.features])
        return [wanted.features], label, kept
    excluded = find_columns("exclude", wanted.exclude, numeric)
    taken = dict.fromkeys(kept, "keep") | dict.fromkeys(excluded, "exclude") | {label: "labels"}
    for name in named:
        if name in taken:
            raise FaultError(
                f"column {name!r} is to be a feature, and is named in {taken[name]}; expected one "
                f"of them. Leave it out of {taken[name]}= / --{taken[name]}."
            )
        if not numeric[name]:
            raise _no_numbers(contents, [name])
    among = [n for n in numeric if n not in index] if wanted.columns is None else columns
    features = [name for name in among if numeric[name] and name not in taken]
    if not features:
        raise _no_numbers(contents, [name for name in numeric if name != label])
    return features, label, kept


def choose_label(
    wanted: Wanted, present: Collection[str], usual: Collection[str], in_words: Iterable[object]
) -> str | None:
    """Choose the array or column of labels: the one somebody named, or one called as usual."""
    if wanted.labels is not None:
        check_named("labels", wanted.labels, present)
        return wanted.labels
    label = first_of(LABEL_NAMES, usual)
    if label is None and wanted.need_labels:
        raise no_labels(in_words)
    return label


def find_columns(argument: str, entries: Sequence[str], names: Collection[str]) -> dict[str, bool]:
    """Find the columns that entries name, and say whether by name, not by pattern or range."""
    found: dict[str, bool] = {}
    for entry in entries:
        first, colon, last = (part.strip() for part in entry.partition(":"))
        if entry in names:  # whatever signs it is made of
            fitting = {entry: True}
        elif first in names and last in names:
            in_order = list(names)
            between = in_order[in_order.index(first) : in_order.index(last) + 1]
            if not between:
                raise FaultError(
                    f"{argument}={entry!r}, and {first!r} comes after {last!r}; expected the "
                    "first column before the last one. Turn them round."
                )
            fitting = dict.fromkeys(between, False)
        elif "," in entry:
            parts = [part.strip() for part in entry.split(",") if part.strip()]
            fitting = find_columns(argument, parts, names)
        elif any(sign in entry for sign in "*?["):
            fitting = {name: False for name in names if fnmatchcase(name, entry)}
            if not fitting:
                raise FaultError(
                    f"{argument}={entry!r} fits none of its columns; expected a pattern that fits "
                    f"some. They are called {first_few(map(repr, names), LISTED)}."
                )
        else:
            fitting = {}
            for name in (first, last) if colon else (entry,):
                check_named(argument, name, names)
        for name, alone in fitting.items():
            found[name] = alone or found.get(name, False)
    return found


def first_of(preferred: Iterable[str], present: Collection[str]) -> str | None:
    """Give the first preferred name that is present."""
    return next((name for name in preferred if name in present), None)


def check_named(argument: str, name: str, present: Collection[str]) -> None:
    """Raise unless the array or column somebody named is there."""
    if name not in present:
        raise FaultError(unknown_name(argument, name, present))


def _no_numbers(contents: Mapping[str, object], among: Iterable[str]) -> FaultError:
    found = first_few((f"{name!r}: {contents[name]}" for name in among), LISTED)
    return FaultError(
        f"it has no columns of numbers (found: {found}); expected at least one, in csv files with "
        "a point for decimals, or one of lists of numbers in parquet. Name it with features= / "
        "--features."
    )


def check_distinct(columns: Iterable[str]) -> None:
    """Raise where two columns share a name."""
    twice = [repr(name) for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise FaultError(
            f"columns share a name: {first_few(twice)}; expected one each. Rename them."
        )


def no_labels(present: Iterable[object]) -> FaultError:
    """Say that labels are needed and none were found."""
    return FaultError(
        f"it has no labels (found: {first_few(present, LISTED)}); expected one of "
        f"{', '.join(LABEL_NAMES)}. Name yours with labels= / --labels, or their file with "
        "labels_file= / --labels-file."
    )


def checked_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Give labels as int64 or str; raise naming the first row that has neither."""
    kind = labels.dtype.kind
    if kind == "U":
        return text_labels(labels.tolist())
    if kind == "u":
        _refuse(labels, labels > np.iinfo(np.int64).max, "is too large")
    elif kind == "f":
        whole = (labels == np.floor(labels)) & (np.abs(labels.astype(np.float64)) <= _FLOAT_EXACT)
        _refuse(labels, ~whole, "is not a whole number")
    elif kind not in "bi":
        raise wrong_label_type(str(labels.dtype))
    return labels.astype(np.int64)


def text_labels(labels: Sequence[str], firsts: Sequence[int] = (), n: int = 0) -> NDArray[Any]:
    """Make an array of names; raise before one long name makes every row long.

    Where ``n`` rows share the names, ``firsts`` are the first rows that have each of them.
    """
    usual = _USUAL_BYTES // (4 * max(1, n, len(labels)))
    longest = min(_LONGEST, max(_USUAL_NAME, usual))
    for place, label in enumerate(labels):
        if not label or len(label) > longest:
            row = firsts[place] if n else place
            raise wrong_label(row, label, "is too long for a name" if label else "is empty")
    return np.array(labels, dtype=np.str_)


def labels_of_lines(lines: Iterable[tuple[int, str]]) -> NDArray[Any]:
    """Make labels of text, given with the number of its line: whole numbers, or else names."""
    labels = []
    for line, text in lines:
        label = text.strip()
        if not label:
            raise FaultError(f"the label on line {line} is empty; {_LABELS}. Correct that line.")
        labels.append(label)
    if all(map(_WHOLE.fullmatch, labels)):
        return np.array(list(map(int, labels)), dtype=np.int64)
    return text_labels(labels)


def wrong_label_type(what: str) -> FaultError:
    """Say that labels of this type will not do."""
    if what == "object":
        return FaultError(
            f"its labels are Python objects, which are never unpickled here; {_LABELS}. Save them "
            "as text: labels.astype(str)."
        )
    return FaultError(f"its labels are of type {what}; {_LABELS}. Save them as int or text.")


def _refuse(labels: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise wrong_label(row, labels[row].item(), why)


def wrong_label(row: int, label: object, why: str) -> FaultError:
    """Say which label will not do, and why."""
    return FaultError(
        f"the label of row {row} (the first is 0) {why}: {repr(label)[:60]}; {_LABELS}. Correct "
        "it, or name other labels with labels= / --labels."
    )

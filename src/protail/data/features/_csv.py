"""Csv files: a line of names, then one line a row."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._errors import FeatureFileError, listed, problem, reading
from protail.data.features._file import FeatureFile, Layout
from protail.data.features._labels import text_labels
from protail.data.features._names import (
    LABEL_NAMES,
    check_distinct,
    check_named,
    first_of,
    no_labels_error,
)

_DELIMITERS = (",", ";", "\t")
_LONGEST_HEADER = 16 << 20
_CHUNK = 1 << 20
# Numbers that are written as Python writes them: 01 and 1 are two names, not one number.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


class CsvFile(FeatureFile):
    """Read features and labels that are columns of a csv file."""

    kind = "csv"

    def __init__(
        self, path: Path, features: str | None, labels: str | None, need_labels: bool
    ) -> None:
        with reading(path, self.kind):
            self._delimiter, header = _read_header(path)
            self._n_cells = len(header)
            self.path = path
            first = next(self._records(), None)
        if first is None:
            raise problem(path, "it has no rows", "rows below its header", "Write it again.")
        named = {name: place for place, name in enumerate(header) if name}
        self._label = _choose_label(path, named, labels, need_labels)
        self._columns = _choose_columns(path, named, first[1], features, self._label)
        used = {self._label, *self._columns}
        layout = Layout(
            width=len(self._columns),
            dtype=np.dtype(np.float64),
            names=[header[place] for place in self._columns],
            ignored=[
                name or f"column {place + 1}, without a name"
                for place, name in enumerate(header)
                if place not in used
            ],
            has_labels=self._label is not None,
        )
        super().__init__(path, layout)
        self._counted: int | None = None

    @property
    def n_rows(self) -> int:
        if self._counted is None:
            with reading(self.path, self.kind):
                lines = _lines_without_quotes(self.path)
                self._counted = sum(1 for _ in self._records()) if lines is None else lines - 1
        return self._counted

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row."""
        with self.path.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            filled = (cells for cells in reader if cells)
            next(filled)
            for cells in filled:
                if len(cells) != self._n_cells:
                    raise problem(
                        self.path,
                        f"line {reader.line_num} has {len(cells)} cells",
                        f"{self._n_cells}, as in its header",
                        "Correct that line.",
                    )
                yield reader.line_num, cells

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        records = islice(self._records(), start, None)
        pick = _picker(self._columns)
        while True:
            block = np.empty((size, self.width), self.dtype)
            filled = 0
            for line, cells in islice(records, size):
                block[filled] = self._numbers(line, pick(cells))
                filled += 1
            if filled:
                yield block[:filled]
            if filled < size:
                return

    def _numbers(self, line: int, cells: Sequence[str]) -> NDArray[Any] | list[float]:
        if "_" not in "".join(cells):  # Python reads 1_0 as ten; here it is no number
            with suppress(ValueError):
                return np.fromiter(map(float, cells), self.dtype, self.width)
        return self._careful(line, cells)

    def _careful(self, line: int, cells: Sequence[str]) -> list[float]:
        """Read numbers among which cells may be empty; name the one that is neither."""
        numbers = []
        for place, cell in enumerate(cells):
            number = _number(cell)
            if number is None:
                assert self.names is not None
                raise problem(
                    self.path,
                    f"line {line} has {cell[:60]!r} in column {self.names[place]!r}",
                    "a number, as in the first row",
                    "Correct that cell, or remove the column.",
                )
            numbers.append(number)
        return numbers

    def _read_labels(self) -> NDArray[Any]:
        assert self._label is not None
        labels = []
        for line, cells in self._records():
            label = cells[self._label].strip()
            if not label:
                raise problem(
                    self.path,
                    f"the label on line {line} is empty",
                    "a label in every row",
                    "Correct or remove that line.",
                )
            labels.append(label)
        if all(map(_WHOLE.fullmatch, labels)):
            return np.array(list(map(int, labels)), dtype=np.int64)
        return text_labels(self.path, labels)


def _read_header(path: Path) -> tuple[str, list[str]]:
    """Find the delimiter that cuts the first line into most names."""
    with path.open("rb") as raw:
        first_line = raw.readline(_LONGEST_HEADER + 1)
    if len(first_line) > _LONGEST_HEADER or b"\0" in first_line:
        raise problem(path, "it is no UTF-8 text in lines", "a csv file", "Write it again.")
    cut = {delimiter: _first_cells(path, delimiter) for delimiter in _DELIMITERS}
    delimiter = max(cut, key=lambda delimiter: len(cut[delimiter]))
    header = [name.strip() for name in cut[delimiter]]
    if not header:
        raise problem(path, "it has no header", "column names on the first line", "Add them.")
    _check_header(path, header)
    return delimiter, header


def _first_cells(path: Path, delimiter: str) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as text:
        try:
            return next((c for c in csv.reader(text, delimiter=delimiter, strict=True) if c), [])
        except csv.Error:  # quotes that only another delimiter explains
            return []


def _check_header(path: Path, header: list[str]) -> None:
    counted = [str(place) for place in range(len(header))]  # as pandas names columns
    numeric = [name for name in header if name and _number(name) is not None]
    finite = [name for name in numeric if math.isfinite(float(name))]
    broken = any(not name.isdigit() for name in finite)
    if broken or (len(finite) == len(header) and header != counted):
        raise problem(
            path,
            f"its first line holds numbers ({listed(finite[:3])})",
            "column names on the first line",
            "Add a header.",
        )
    check_distinct(path, filter(None, header))


def _choose_label(
    path: Path, named: dict[str, int], wanted: str | None, need_labels: bool
) -> int | None:
    if wanted is not None:
        check_named(path, "labels", wanted, named)
        return named[wanted]
    label = first_of(LABEL_NAMES, named)
    if label is None and need_labels:
        raise no_labels_error(path, [repr(name) for name in named])
    return None if label is None else named[label]


def _choose_columns(
    path: Path, named: dict[str, int], first: list[str], wanted: str | None, label: int | None
) -> list[int]:
    others = {name: place for name, place in named.items() if place != label}
    if wanted is not None:
        check_named(path, "features", wanted, others)
        others = {wanted: others[wanted]}
    columns = [place for place in others.values() if _number(first[place]) is not None]
    if not columns:
        raise _no_numbers(path, [f"{name!r}: {first[others[name]][:20]!r}" for name in others])
    return columns


def _no_numbers(path: Path, found: list[str]) -> FeatureFileError:
    return problem(
        path,
        f"its first row has no numbers (found: {listed(found)})",
        "at least one column of numbers, with a point for decimals",
        "Name the columns' contents on the first line and write numbers below.",
    )


def _picker(columns: list[int]) -> Callable[[list[str]], Sequence[str]]:
    if len(columns) == 1:
        return lambda cells: (cells[columns[0]],)
    return itemgetter(*columns)


def _number(cell: str) -> float | None:
    """Read a cell: NaN where it is empty, None where it is no number."""
    if not cell.strip():
        return math.nan
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _lines_without_quotes(path: Path) -> int | None:
    """Count lines that are not blank; None where quotes may hide line ends."""
    n_lines, tail = 0, b""
    with path.open("rb") as raw:
        while chunk := raw.read(_CHUNK):
            if b'"' in chunk:
                return None
            lines = (tail + chunk).splitlines()
            tail = b"" if chunk.endswith((b"\n", b"\r")) else lines.pop()
            n_lines += sum(map(bool, lines))
    return n_lines + bool(tail)

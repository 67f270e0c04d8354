"""Csv files: a line of names, then one line a row.

Read with the standard library, so that csv files need no extra, and errors can name the line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import first_few
from protail.data.tables import _columns
from protail.data.tables.feature_file import FaultError, FeatureFile, Wanted, reading
from protail.data.tables.shards import here

_DELIMITERS = (",", ";", "\t")
_LONGEST_HEADER = 16 << 20


class CsvTable:
    """Walk through the lines of a csv file; a name in its header may be empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with here(path).open("rb") as raw:
            first_line = raw.readline(_LONGEST_HEADER + 1)
        if len(first_line) > _LONGEST_HEADER or b"\0" in first_line:
            raise FaultError("it is no UTF-8 text in lines; expected a csv file. Write it again.")
        # The delimiter that cuts the first line into most names.
        cut = {delimiter: self._first_cells(delimiter) for delimiter in _DELIMITERS}
        self._delimiter = max(cut, key=lambda delimiter: len(cut[delimiter]))
        self.header = [name.strip() for name in cut[self._delimiter]]
        self._check_header()
        self.named = {name: place for place, name in enumerate(self.header) if name}

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row."""
        with here(self._path).open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            filled = (cells for cells in reader if cells)
            next(filled)
            for cells in filled:
                if len(cells) != len(self.header):
                    raise FaultError(
                        f"line {reader.line_num} has {len(cells)} cells; expected "
                        f"{len(self.header)}, as in its header. Correct that line."
                    )
                yield reader.line_num, cells

    def count(self) -> int:
        """Count the rows; without quotes they are lines, which takes a tenth of the time."""
        with here(self._path).open(encoding="utf-8-sig") as text:
            n_lines = 0
            for line in text:
                if '"' in line:  # it may hide line ends
                    return sum(1 for _ in self.records())
                n_lines += line != "\n"
        return n_lines - 1

    def labels(self, place: int) -> NDArray[Any]:
        """Read a column of labels."""
        return _columns.labels_of_lines((line, cells[place]) for line, cells in self.records())

    def _first_cells(self, delimiter: str) -> list[str]:
        with here(self._path).open(encoding="utf-8-sig", newline="") as text, suppress(csv.Error):
            return next((c for c in csv.reader(text, delimiter=delimiter, strict=True) if c), [])
        return []  # quotes that only another delimiter explains

    def _check_header(self) -> None:
        if not self.header:
            raise FaultError("it has no header; expected column names on the first line. Add them.")
        numbers = [n for n in self.header if n and _number(n) is not None and isfinite(float(n))]
        counted = [str(place) for place in range(len(self.header))]  # as pandas names columns
        all_numbers = len(numbers) == len(self.header) and self.header != counted
        if all_numbers or not all(map(str.isdigit, numbers)):
            raise FaultError(
                f"its first line holds numbers ({first_few(numbers)}); expected column names on "
                "the first line. Add a header."
            )
        _columns.check_distinct(filter(None, self.header))


class CsvFile(FeatureFile):
    """Read features and labels that are columns of a csv file."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        super().__init__(path)
        self._table = CsvTable(path)
        _, first = next(self._table.records(), (0, None))
        if first is None:
            raise FaultError("it has no rows; expected rows below its header. Write it again.")
        named = self._table.named
        numeric = {name: _number(first[place]) is not None for name, place in named.items()}
        contents = {name: repr(first[place][:20]) for name, place in named.items()}
        features, label, kept = _columns.choose(numeric, contents, wanted)
        self._places = [named[name] for name in features]
        self._kept = [named[name] for name in kept]
        used = {*self._places, *self._kept}
        if label is not None:
            used.add(named[label])
            self._read_labels = partial(self._table.labels, named[label])
        self.width, self.dtype = len(self._places), np.dtype(np.float64)
        self.names, self.columns = features, list(named)
        unused = [each for each in enumerate(self._table.header, 1) if each[0] - 1 not in used]
        self.ignored = [name or f"column {number}, without a name" for number, name in unused]
        self.kept = dict.fromkeys(kept, "string")

    @cached_property
    def n_rows(self) -> int:  # type: ignore[override]
        with reading(self.path):
            return self._table.count()

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        records = islice(self._table.records(), start, None)
        while rows := [self._numbers(*record) for record in islice(records, size)]:
            yield np.array(rows)

    def _numbers(self, line: int, cells: list[str]) -> NDArray[Any]:
        chosen = [cells[place] for place in self._places]
        if "_" not in "".join(chosen):  # Python reads 1_0 as ten; here it is no number
            with suppress(ValueError):
                return np.fromiter(map(float, chosen), self.dtype, self.width)
        for name, cell in zip(self.names or [], chosen, strict=True):
            if _number(cell) is None:
                raise FaultError(
                    f"line {line} has {cell[:60]!r} in column {name!r}; expected a number, as in "
                    "the first row. Correct that cell, or remove the column."
                )
        return np.array(list(map(_number, chosen)), self.dtype)

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        for _, cells in islice(self._table.records(), start, None):
            yield tuple(cells[place] or None for place in self._kept)


def read_labels(path: Path, column: str | None) -> NDArray[Any]:
    """Read a file of labels: the named column, the only one, or the one called as labels are."""
    table = CsvTable(path)
    if column is not None:
        _columns.check_named("labels", column, table.named)
    elif len(table.header) == len(table.named) == 1:
        column = table.header[0]
    else:
        column = _columns.first_of(_columns.LABEL_NAMES, table.named)
    if column is None:
        raise _columns.no_labels(map(repr, table.named))
    return table.labels(table.named[column])


def _number(cell: str) -> float | None:
    """Read a cell: NaN where it is empty, None where it is no number."""
    if not cell.strip():
        return nan
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None

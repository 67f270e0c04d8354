"""Csv files: a line of names, then one line a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._columns import Wanted, choose
from protail.data.features._csv_table import CsvTable, as_number
from protail.data.features._errors import FeatureFileError, listed, problem, reading
from protail.data.features._file import FeatureFile, Layout

_CHUNK = 1 << 20


class CsvFile(FeatureFile):
    """Read features and labels that are columns of a csv file."""

    kind = "csv"

    def __init__(self, path: Path, wanted: Wanted) -> None:
        with reading(path, self.kind):
            self._table = CsvTable(path)
            first = next(self._table.records(), None)
        if first is None:
            raise problem(path, "it has no rows", "rows below its header", "Write it again.")
        header, named = self._table.header, self._table.named
        numeric = {name: as_number(first[1][place]) is not None for name, place in named.items()}
        chosen = choose(path, numeric, wanted)
        if not chosen.features:
            among = [n for n in named if n != chosen.label and wanted.features in (None, n)]
            raise _no_numbers(path, [f"{name!r}: {first[1][named[name]][:20]!r}" for name in among])
        self._label = None if chosen.label is None else named[chosen.label]
        self._columns = [named[name] for name in chosen.features]
        self._kept = [named[name] for name in chosen.kept]
        used = {self._label, *self._columns, *self._kept}
        layout = Layout(
            width=len(self._columns),
            dtype=np.dtype(np.float64),
            names=chosen.features,
            ignored=[
                name or f"column {place + 1}, without a name"
                for place, name in enumerate(header)
                if place not in used
            ],
            has_labels=self._label is not None,
            columns=list(named),
            kept=dict.fromkeys(chosen.kept, "string"),
        )
        super().__init__(path, layout)
        self._counted: int | None = None

    @property
    def n_rows(self) -> int:
        if self._counted is None:
            with reading(self.path, self.kind):
                lines = _lines_without_quotes(self.path)
                rows = sum(1 for _ in self._table.records()) if lines is None else lines - 1
                self._counted = rows
        return self._counted

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        records = islice(self._table.records(), start, None)
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
            number = as_number(cell)
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
        return self._table.labels(self._label)

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        for _, cells in islice(self._table.records(), start, None):
            yield tuple(cells[place] or None for place in self._kept)


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

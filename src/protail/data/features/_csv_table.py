"""The lines of a csv file: a header, then one line a row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from protail.data.features._errors import listed, problem
from protail.data.features._labels import labels_of_lines
from protail.data.features._names import check_distinct

_DELIMITERS = (",", ";", "\t")
_LONGEST_HEADER = 16 << 20


class CsvTable:
    """Walk through the lines of a csv file.

    Attributes
    ----------
    path : Path
        The file.
    header : list of str
        The names of its columns, one for each cell of a line; a name may be empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._delimiter, self.header = _read_header(path)

    @property
    def named(self) -> dict[str, int]:
        """Give the place of each column that has a name."""
        return {name: place for place, name in enumerate(self.header) if name}

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row."""
        with self.path.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            filled = (cells for cells in reader if cells)
            next(filled)
            for cells in filled:
                if len(cells) != len(self.header):
                    raise problem(
                        self.path,
                        f"line {reader.line_num} has {len(cells)} cells",
                        f"{len(self.header)}, as in its header",
                        "Correct that line.",
                    )
                yield reader.line_num, cells

    def labels(self, place: int) -> NDArray[Any]:
        """Read a column of labels."""
        return labels_of_lines(self.path, ((line, row[place]) for line, row in self.records()))


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
    numeric = [name for name in header if name and as_number(name) is not None]
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


def as_number(cell: str) -> float | None:
    """Read a cell: NaN where it is empty, None where it is no number."""
    if not cell.strip():
        return math.nan
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None

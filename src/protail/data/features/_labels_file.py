"""Labels in a file of their own, one for each row of a feature file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from protail.data.features._csv_table import CsvTable
from protail.data.features._errors import check_file, problem, reading
from protail.data.features._headers import npy_arrays
from protail.data.features._labels import checked_labels, label_type_error, labels_of_lines
from protail.data.features._names import LABEL_NAMES, check_named, first_of, no_labels_error

_ENDINGS = (".npy", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class LabelsFile:
    """A file of labels, and which of its columns they are; found out before it is read.

    Parameters
    ----------
    path : Path
        An npy, csv, tsv or txt file.
    column : str or None
        Of a csv file, the column; by default the only one, or the one called as labels are.
    """

    path: Path
    column: str | None

    def __post_init__(self) -> None:
        kind = self.path.suffix.lower()
        if kind not in _ENDINGS:
            raise problem(
                self.path,
                f"its ending {self.path.suffix!r} is unknown",
                f"labels in one of {', '.join(_ENDINGS)}",
                "Convert or rename it.",
            )
        check_file(self.path, "a file of labels")
        if self.column is not None and kind in (".npy", ".txt"):
            raise problem(
                self.path,
                f"labels={self.column!r} was given, and there are no names in such a file",
                "the labels alone",
                "Leave labels= / --labels out.",
            )

    def read(self, features: Path, n_rows: int) -> NDArray[Any]:
        """Read the labels of so many rows."""
        kind = self.path.suffix.lower().removeprefix(".")
        with reading(self.path, kind):
            readers = {"npy": self._of_array, "txt": self._of_lines}
            labels = readers.get(kind, self._of_table)()
        if len(labels) == n_rows:
            return labels
        hint = " Its first line was taken for the name of the column." if "sv" in kind else ""
        raise problem(
            self.path,
            f"it has {len(labels)} labels, and {features} has {n_rows} rows",
            "one label for each row",
            f"Write them again, in the same order.{hint}",
        )

    def _of_array(self) -> NDArray[Any]:
        (array,) = npy_arrays(self.path)
        if len(array.shape) != 1:
            raise problem(
                self.path,
                f"array {array} has {len(array.shape)} dimensions",
                "1: a label for each row",
                "Save the labels alone.",
            )
        if array.dtype is None or array.dtype.kind not in "biufSU":
            raise label_type_error(self.path, array.type_name)
        return checked_labels(self.path, array.whole(self.path))

    def _of_lines(self) -> NDArray[Any]:
        lines = self.path.read_text(encoding="utf-8-sig").rstrip().splitlines()
        return labels_of_lines(self.path, enumerate(lines, 1))

    def _of_table(self) -> NDArray[Any]:
        table = CsvTable(self.path)
        named = table.named
        if self.column is not None:
            check_named(self.path, "labels", self.column, named)
            return table.labels(named[self.column])
        label = next(iter(named)) if len(table.header) == len(named) == 1 else None
        label = label or first_of(LABEL_NAMES, named)
        if label is None:
            raise no_labels_error(self.path, [repr(name) for name in named])
        return table.labels(named[label])

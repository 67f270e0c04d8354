"""Predictions as csv, jsonl or parquet: pieces written one by one, then put together."""

from __future__ import annotations

import csv
import json
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import not_installed, unknown_name

if TYPE_CHECKING:
    from protail.cli._sources import Answers


Array = NDArray[Any]
Along = Sequence[tuple[Any, ...]]


class Format(ABC):
    """One way to write predictions.

    Parameters
    ----------
    k : int
        Classes named for each row.
    classes : ndarray
        The labels, by their place.
    kept : dict of str to str
        What comes along out of the files, with the name of its type in pyarrow.
    """

    def __init__(self, k: int, classes: Array, kept: dict[str, str]) -> None:
        self.k = k
        self.kept = kept
        self.label_dtype = classes.dtype
        self._labels = classes.tolist()

    @abstractmethod
    def write_part(
        self, path: Path, source: str, first_row: int, answers: Answers, along: Along
    ) -> None:
        """Write the predictions of one block of rows."""

    @abstractmethod
    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Make one file of the pieces."""

    @property
    def columns(self) -> list[str]:
        """Name what stands in a row: the likeliest class first, without a number."""
        names = ["file", "row", *self.kept, "label", "probability", "distance", "novelty"]
        for place in range(2, self.k + 1):
            names += [f"label_{place}", f"probability_{place}", f"distance_{place}"]
        return names

    def values(
        self, source: str, first_row: int, answers: Answers, along: Along
    ) -> list[list[Any]]:
        """Give the columns of one block; None where a row has no prediction."""
        answered = answers.answered
        columns: list[list[Any]] = [
            [source] * len(answered),
            list(range(first_row, first_row + len(answered))),
        ]
        for kind, values in zip(self.kept.values(), zip(*along, strict=True), strict=True):
            columns.append([_plain(value, kind) for value in values])
        for place in range(self.k):
            named = [self._labels[code] for code in answers.codes[:, place].tolist()]
            columns.append(_spread(named, answered))
            columns.append(_spread(_numbers(answers.probabilities[:, place]), answered))
            columns.append(_spread(_numbers(answers.distances[:, place]), answered))
            if place == 0:
                columns.append(_spread(_numbers(answers.novelty), answered))
        return columns


def _plain(value: Any, kind: str) -> Any:
    """Give what comes along as what it is in all files: text where it differs."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return None
    return str(value) if kind == "string" else value


def _numbers(values: Array) -> list[float | None]:
    """Give the shortest numbers that mean these; None where a class without rows is far away."""
    shortest = values.astype(str).tolist() if values.dtype == np.float32 else values.tolist()
    return [number if isfinite(number := float(text)) else None for text in shortest]


def _spread(values: list[Any], answered: NDArray[np.bool_]) -> list[Any]:
    if answered.all():
        return values
    following = iter(values)
    return [next(following) if has_answer else None for has_answer in answered.tolist()]


class _Text(Format):
    """Pieces of text, one after the other."""

    def join(self, parts: Sequence[Path], path: Path) -> None:
        with path.open("wb") as whole:
            whole.write(self.header())
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, whole, 2**20)

    def header(self) -> bytes:
        return b""


class _Csv(_Text):
    def header(self) -> bytes:
        return (",".join(self.columns) + "\n").encode()

    def write_part(
        self, path: Path, source: str, first_row: int, answers: Answers, along: Along
    ) -> None:
        with path.open("w", newline="", encoding="utf-8") as piece:
            writer = csv.writer(piece, lineterminator="\n")
            writer.writerows(zip(*self.values(source, first_row, answers, along), strict=True))


class _JsonLines(_Text):
    def write_part(
        self, path: Path, source: str, first_row: int, answers: Answers, along: Along
    ) -> None:
        columns = self.values(source, first_row, answers, along)
        with path.open("w", encoding="utf-8") as piece:
            piece.writelines(self._lines(columns))

    def _lines(self, columns: list[list[Any]]) -> Iterator[str]:
        names = self.columns
        for row in zip(*columns, strict=True):
            record = dict(zip(names, row, strict=True))
            yield json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


class _Parquet(Format):
    def write_part(
        self, path: Path, source: str, first_row: int, answers: Answers, along: Along
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = self.values(source, first_row, answers, along)
        arrays = [
            pa.array(column, type=field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        pq.write_table(pa.Table.from_arrays(arrays, schema=self._schema), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(path, self._schema) as whole:
            for part in parts:
                whole.write_table(pq.read_table(part))

    @property
    def _schema(self) -> Any:
        import pyarrow as pa

        kinds = {"file": pa.string(), "row": pa.int64()}
        kinds |= {name: getattr(pa, kind)() for name, kind in self.kept.items()}
        text = self.label_dtype.kind in "UO"
        label = pa.string() if text else pa.from_numpy_dtype(self.label_dtype)
        return pa.schema(
            [
                (name, kinds.get(name, label if name.startswith("label") else pa.float64()))
                for name in self.columns
            ]
        )


_FORMATS: dict[str, type[Format]] = {".csv": _Csv, ".jsonl": _JsonLines, ".parquet": _Parquet}


def find_format(output: Path, k: int, classes: Array, kept: Sequence[Mapping[str, str]]) -> Format:
    """Choose how to write by the suffix of a file.

    Parameters
    ----------
    output : Path
        The file to write.
    k : int
        Classes named for each row.
    classes : ndarray
        The labels, by their place.
    kept : sequence of mapping of str to str
        What comes along out of each file, with the name of its type in pyarrow.

    Returns
    -------
    Format
        Who writes it.
    """
    suffix = output.suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(unknown_name("suffix of --output", suffix, _FORMATS))
    if suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{not_installed(str(output), 'pyarrow', 'tables')} or choose .csv or .jsonl."
            ) from error
    format = _FORMATS[suffix](k, classes, _common(kept))
    if taken := [name for name, n in Counter(format.columns).items() if n > 1]:
        raise ValueError(
            f"--keep: {taken[0]!r} has a meaning of its own in predictions; expected another name. "
            "Rename it in the file, or do not keep it."
        )
    return format


def _common(kept: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Give the type of what comes along: text where files disagree."""
    found = dict(kept[0])
    for name, kind in (pair for each in kept[1:] for pair in each.items()):
        found[name] = kind if found[name] == kind else "string"
    return found

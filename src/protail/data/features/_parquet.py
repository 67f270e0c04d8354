"""Parquet files: numeric columns, or one column of lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import not_installed
from protail.data.features._columns import Chosen, Wanted, choose
from protail.data.features._errors import FeatureFileError, listed, problem, reading
from protail.data.features._file import FeatureFile, Layout
from protail.data.features._labels import checked_labels, label_type_error, text_labels
from protail.data.features._names import FEATURE_NAMES, check_distinct, first_of
from protail.data.features._spool import gather, rows_a_block, spans


class ParquetFile(FeatureFile):
    """Read features and labels that are columns of a parquet file."""

    kind = "parquet"

    def __init__(self, path: Path, wanted: Wanted) -> None:
        with reading(path, self.kind), _opened(path) as file:
            schema = file.schema_arrow
            self._n_rows = int(file.metadata.num_rows)
            sizes = (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
            self._group_ends = list(accumulate(sizes, initial=0))
            _check_table(path, schema.names, self._n_rows)
            self._chosen, self._is_list = _choose_columns(path, schema, wanted)
            layout = self._layout(path, file)
        super().__init__(path, layout)

    @property
    def n_rows(self) -> int:
        return self._n_rows

    def _layout(self, path: Path, file: Any) -> Layout:
        schema = file.schema_arrow
        self._columns, self._label = self._chosen.features, self._chosen.label
        used = {*self._columns, self._label, *self._chosen.kept}
        kinds = [schema.field(name).type for name in self._columns]
        common: dict[str, Any] = {
            "ignored": [name for name in schema.names if name not in used],
            "has_labels": self._label is not None,
            "columns": list(schema.names),
            "kept": {n: _kept_type(path, n, schema.field(n).type) for n in self._chosen.kept},
        }
        if not self._is_list:
            dtype = np.result_type(*map(_row_dtype, kinds))
            return Layout(len(kinds), dtype, self._columns, **common)
        width = _list_width(path, file, self._columns[0], kinds[0])
        return Layout(width, _row_dtype(kinds[0].value_type), **common)

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        read = self._list_blocks if self._is_list else self._column_blocks
        with _opened(self.path) as file:
            for group, (begin, end) in enumerate(pairwise(self._group_ends)):
                if end > max(start, begin):
                    yield from read(file, group, max(start, begin), size)

    def _column_blocks(
        self, file: Any, group: int, first_row: int, size: int
    ) -> Iterator[NDArray[Any]]:
        # All columns side by side would hold a dictionary and a page each: 1 GiB for 512.
        begin, end = self._group_ends[group : group + 2]
        n_rows = end - begin
        parts = (
            self._columns_of(file, group, self._columns[part], n_rows)
            for part in spans(self.width, rows_a_block(n_rows * self.dtype.itemsize))
        )
        rows = gather(parts, (self.width, n_rows), self.dtype).T
        for part in spans(end - first_row, size):
            offset = first_row - begin
            yield np.array(rows[offset + part.start : offset + part.stop], order="C")

    def _columns_of(self, file: Any, group: int, names: list[str], n_rows: int) -> NDArray[Any]:
        table = file.read_row_group(group, columns=names)
        columns = np.empty((len(names), n_rows), self.dtype)
        for place, name in enumerate(names):
            columns[place] = _numbers(table.column(name))
        return columns

    def _list_blocks(
        self, file: Any, group: int, first_row: int, size: int
    ) -> Iterator[NDArray[Any]]:
        row = self._group_ends[group]
        for batch in file.iter_batches(size, row_groups=[group], columns=self._columns):
            skipped = min(max(0, first_row - row), batch.num_rows)
            if skipped < batch.num_rows:
                yield self._lists(batch.column(self._columns[0])[skipped:], row + skipped)
            row += batch.num_rows

    def _lists(self, column: Any, first_row: int) -> NDArray[Any]:
        lengths = import_module("pyarrow.compute").list_value_length(column).fill_null(-1)
        ragged = lengths.to_numpy(zero_copy_only=False) != self.width
        if ragged.any():
            place = int(ragged.argmax())
            length = lengths[place].as_py()
            what = "is null" if length < 0 else f"has {length} numbers"
            raise self._list_error(first_row + place, what)
        values = column.flatten()
        if values.null_count:
            place = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
            raise self._list_error(first_row + place // self.width, "holds a null")
        numbers = _numbers(values).reshape(-1, self.width)
        return np.array(numbers, dtype=self.dtype)

    def _list_error(self, row: int, what: str) -> FeatureFileError:
        return problem(
            self.path,
            f"row {row} (the first is 0) of column {self._columns[0]!r} {what}",
            f"a list of {self.width} numbers, as in the first row",
            "Correct or remove that row.",
        )

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        names = list(self.kept)
        row = 0
        with _opened(self.path) as file:
            for batch in file.iter_batches(columns=names):
                left = batch[max(0, start - row) :]
                row += len(batch)
                columns = (_plain(left.column(n), self.kept[n]) for n in names)
                yield from zip(*columns, strict=True)

    def _read_labels(self) -> NDArray[Any]:
        with _opened(self.path) as file:
            column = file.read(columns=[self._label]).column(self._label)
        pa = import_module("pyarrow")
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if column.null_count:
            row = int(column.is_null().to_numpy().argmax())
            raise problem(
                self.path,
                f"the label of row {row} (the first is 0) is missing",
                "a label in every row",
                "Correct or remove that row.",
            )
        if _is_text(column.type):
            return text_labels(self.path, column.to_pylist())
        if not _is_number(column.type) or pa.types.is_decimal(column.type):
            raise label_type_error(self.path, str(column.type))
        return checked_labels(self.path, np.asarray(column.to_numpy()))


def _opened(path: Path) -> Any:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise FeatureFileError(
            f"{path}: {not_installed('reading parquet files', 'pyarrow', 'tables')}"
        ) from error
    # Mapped, a large row group is paged in as it is read; otherwise it is first read whole.
    return parquet.ParquetFile(path, memory_map=True)


def _check_table(path: Path, names: list[str], n_rows: int) -> None:
    if n_rows == 0:
        raise problem(path, "it has no rows", "at least one", "Write the features again.")
    check_distinct(path, names)


def _choose_columns(path: Path, schema: Any, wanted: Wanted) -> tuple[Chosen, bool]:
    """Choose columns, and say whether the features are one column of lists."""
    kinds = {name: schema.field(name).type for name in schema.names}
    lists = [name for name, kind in kinds.items() if _is_list(kind)]
    if wanted.features is None and wanted.columns is None:
        usual = first_of(FEATURE_NAMES, [name for name in lists if name != wanted.labels])
    else:
        usual = wanted.features
    if usual in lists:
        wanted.check_no_columns(path)
        chosen = choose(path, dict.fromkeys(kinds, True), replace(wanted, features=usual))
        return chosen, True
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    # What no column is called pandas describes by an object.
    named_index = [name for name in index if isinstance(name, str)]
    numeric = {name: _is_number(kind) for name, kind in kinds.items()}
    chosen = choose(path, numeric, wanted, named_index)
    if not chosen.features:
        among = [n for n in kinds if n != chosen.label and wanted.features in (None, n)]
        raise _no_numbers(path, {name: kinds[name] for name in among})
    return chosen, False


def _kept_type(path: Path, name: str, kind: Any) -> str:
    """Name the type in which a column is carried along: one of few, text for dates and times."""
    types = import_module("pyarrow").types
    if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        raise problem(
            path,
            f"column {name!r} holds {kind} and cannot be carried along",
            "numbers, text or dates",
            "Leave it out of keep= / --keep.",
        )
    if types.is_boolean(kind):
        return "bool_"
    if types.is_unsigned_integer(kind):
        return "uint64"
    if types.is_integer(kind):
        return "int64"
    return "float64" if types.is_floating(kind) else "string"


def _plain(column: Any, kind: str) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if kind != "string":
        return values
    return [value if value is None else str(value) for value in values]


def _no_numbers(path: Path, kinds: dict[str, Any]) -> FeatureFileError:
    found = listed(f"{name!r} {kind}" for name, kind in kinds.items())
    return problem(
        path,
        f"it has no columns of numbers (found: {found})",
        f"numeric columns, or lists of numbers in a column called {', '.join(FEATURE_NAMES)}",
        "Name a column with features= / --features.",
    )


def _list_width(path: Path, file: Any, name: str, kind: Any) -> int:
    width = getattr(kind, "list_size", None)
    if width is None:
        batch = next(file.iter_batches(1, columns=[name]), None)
        first = None if batch is None else batch.column(name)[0].as_py()
        width = 0 if first is None else len(first)
    if width < 1:
        raise problem(
            path, f"the first list in column {name!r} is empty", "numbers", "Correct that row."
        )
    return int(width)


def _is_list(kind: Any) -> bool:
    types = import_module("pyarrow").types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists) and _is_number(kind.value_type)


def _is_number(kind: Any) -> bool:
    types = import_module("pyarrow").types
    integer = types.is_integer(kind) or types.is_boolean(kind)
    return bool(integer or types.is_floating(kind) or types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _row_dtype(kind: Any) -> np.dtype[Any]:
    types = import_module("pyarrow").types
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(kind.to_pandas_dtype() if types.is_floating(kind) else np.float32)


def _numbers(column: Any) -> NDArray[Any]:
    """Give a column as numbers; what is missing becomes NaN."""
    pa = import_module("pyarrow")
    if pa.types.is_decimal(column.type) or pa.types.is_boolean(column.type):
        column = column.cast(pa.float64())
    return np.asarray(column.to_numpy(zero_copy_only=False))

"""Parquet files: numeric columns, or one column of lists."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._errors import FeatureFileError, listed, problem, reading
from protail.data.features._file import FeatureFile, Layout
from protail.data.features._labels import checked_labels, label_type_error, text_labels
from protail.data.features._names import (
    FEATURE_NAMES,
    LABEL_NAMES,
    check_distinct,
    check_named,
    first_of,
    no_labels_error,
)
from protail.data.features._spool import gather, rows_a_block, spans


class ParquetFile(FeatureFile):
    """Read features and labels that are columns of a parquet file."""

    kind = "parquet"

    def __init__(
        self, path: Path, features: str | None, labels: str | None, need_labels: bool
    ) -> None:
        with reading(path, self.kind), _opened(path) as file:
            schema = file.schema_arrow
            self._n_rows = int(file.metadata.num_rows)
            sizes = (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
            self._group_ends = list(accumulate(sizes, initial=0))
            _check_table(path, schema.names, self._n_rows)
            self._label = _choose_label(path, schema.names, labels, need_labels)
            self._columns, self._is_list = _choose_columns(path, schema, features, self._label)
            layout = self._layout(path, file)
        super().__init__(path, layout)

    @property
    def n_rows(self) -> int:
        return self._n_rows

    def _layout(self, path: Path, file: Any) -> Layout:
        schema = file.schema_arrow
        used = {*self._columns, self._label}
        ignored = [name for name in schema.names if name not in used]
        has_labels = self._label is not None
        kinds = [schema.field(name).type for name in self._columns]
        if not self._is_list:
            dtype = np.result_type(*map(_row_dtype, kinds))
            return Layout(len(kinds), dtype, list(self._columns), ignored, has_labels)
        width = _list_width(path, file, self._columns[0], kinds[0])
        return Layout(width, _row_dtype(kinds[0].value_type), None, ignored, has_labels)

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
        raise problem(
            path,
            "pyarrow, which reads parquet files, is not installed",
            "it to be there",
            "Install it: pip install 'protail[tables]'.",
        ) from error
    # Mapped, a large row group is paged in as it is read; otherwise it is first read whole.
    return parquet.ParquetFile(path, memory_map=True)


def _check_table(path: Path, names: list[str], n_rows: int) -> None:
    if n_rows == 0:
        raise problem(path, "it has no rows", "at least one", "Write the features again.")
    check_distinct(path, names)


def _choose_label(
    path: Path, names: list[str], wanted: str | None, need_labels: bool
) -> str | None:
    if wanted is not None:
        check_named(path, "labels", wanted, names)
        return wanted
    label = first_of(LABEL_NAMES, names)
    if label is None and need_labels:
        raise no_labels_error(path, [repr(name) for name in names])
    return label


def _choose_columns(
    path: Path, schema: Any, wanted: str | None, label: str | None
) -> tuple[list[str], bool]:
    """Say which columns hold the features, and whether it is one column of lists."""
    kinds = {name: schema.field(name).type for name in schema.names if name != label}
    lists = [name for name, kind in kinds.items() if _is_list(kind)]
    if wanted is not None:
        check_named(path, "features", wanted, kinds)
        if not (_is_list(kinds[wanted]) or _is_number(kinds[wanted])):
            raise _no_numbers(path, {wanted: kinds[wanted]})
        return [wanted], _is_list(kinds[wanted])
    usual = first_of(FEATURE_NAMES, lists)
    if usual is not None:
        return [usual], True
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    columns = [name for name, kind in kinds.items() if _is_number(kind) and name not in index]
    if not columns:
        raise _no_numbers(path, kinds)
    return columns, False


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

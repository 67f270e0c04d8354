"""Parquet files: numeric columns, or one column of lists. The one module that imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from protail.data.tables import _columns
from protail.data.tables.feature_file import FaultError, FeatureFile, Wanted
from protail.data.tables.rows import gather, rows_a_block, spans
from protail.data.tables.shards import Address


class ParquetFile(FeatureFile):
    """Read features and labels that are columns of a parquet file."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        super().__init__(path)
        with self._opened() as file:
            schema, self.n_rows = file.schema_arrow, file.metadata.num_rows
            if self.n_rows == 0:
                raise FaultError("it has no rows; expected at least one. Write the features again.")
            _columns.check_distinct(schema.names)
            kinds = {name: schema.field(name).type for name in schema.names}
            chosen, self._is_list = _choose_columns(kinds, schema.pandas_metadata or {}, wanted)
            self._features, label, kept = chosen
            if self._is_list:
                kind = kinds[self._features[0]]
                self.width, self.dtype = self._list_width(file), _row_dtype(kind.value_type)
            else:
                self.width, self.names = len(self._features), self._features
                self.dtype = np.result_type(*(_row_dtype(kinds[name]) for name in self._features))
        used = {*self._features, label, *kept}
        self.columns = list(kinds)
        self.ignored = [name for name in kinds if name not in used]
        self.kept = {name: _kept_type(name, kinds[name]) for name in kept}
        if label is not None:
            self._read_labels = partial(self._labels_of, label, kinds[label])

    def _opened(self, **options: Any) -> Any:
        if isinstance(self.path, Address):
            return pq.ParquetFile(self.path.open(), **options)
        # Mapped, a large row group is paged in as it is read; otherwise it is first read whole.
        return pq.ParquetFile(self.path, memory_map=True, **options)

    def cuts(self) -> list[int]:
        """Give the first rows of row groups, small ones taken together, and the end."""
        with self._opened() as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            counts = [group.num_rows for group in groups]
        least, found = rows_a_block(self.width * self.dtype.itemsize), [0]
        for end in np.cumsum(counts).tolist():
            if end - found[-1] >= least or end == self.n_rows:
                found.append(end)
        return found

    def _list_width(self, file: Any) -> int:
        batch = next(file.iter_batches(1, columns=self._features))
        width = len(batch.column(self._features[0])[0].as_py() or ())
        if width < 1:
            raise FaultError(
                f"the first list in column {self._features[0]!r} is empty; expected numbers. "
                "Correct that row."
            )
        return width

    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        read = self._list_blocks if self._is_list else self._column_blocks
        with self._opened() as file:
            first_row = 0
            for group in range(file.num_row_groups):
                n_rows = file.metadata.row_group(group).num_rows
                if start < first_row + n_rows:
                    blocks = read(file, group, range(first_row, first_row + n_rows), size)
                    yield from _without(start - first_row, blocks)
                first_row += n_rows

    def _column_blocks(
        self, file: Any, group: int, rows: range, size: int
    ) -> Iterator[NDArray[Any]]:
        # All columns side by side would hold a dictionary and a page each: 1 GiB for 512. Neither
        # iter_batches nor the scanner of pyarrow.dataset takes fewer at a time.
        def columns(names: list[str]) -> NDArray[Any]:
            table = file.read_row_group(group, columns=names)
            return np.array([_numbers(table.column(name)) for name in names], self.dtype)

        parts = spans(self.width, len(rows) * self.dtype.itemsize)
        across = (columns(self._features[part]) for part in parts)
        values = gather(across, (self.width, len(rows)), self.dtype).T
        for begin in range(0, len(rows), size):
            yield np.array(values[begin : begin + size], order="C")

    def _list_blocks(self, file: Any, group: int, rows: range, size: int) -> Iterator[NDArray[Any]]:
        first_row = rows.start
        for batch in file.iter_batches(size, row_groups=[group], columns=self._features):
            lists = batch.column(0)
            values = lists.flatten()
            lengths = pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False)
            if values.null_count or (lengths != self.width).any():
                raise self._wrong_list(lists, first_row)
            yield np.array(_numbers(values).reshape(-1, self.width), self.dtype)
            first_row += len(batch)

    def _wrong_list(self, lists: Any, first_row: int) -> FaultError:
        """Name the first list that is not like the others."""
        row, numbers = next(
            (row, numbers)
            for row, numbers in enumerate(lists.to_pylist(), first_row)
            if numbers is None or None in numbers or len(numbers) != self.width
        )
        return FaultError(
            f"row {row} (the first is 0) of column {self._features[0]!r} is {str(numbers)[:60]}; "
            f"expected a list of {self.width} numbers, as in the first row. Correct or remove it."
        )

    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        with self._opened() as file:
            for batch in _without(start, file.iter_batches(columns=list(self.kept))):
                columns = (_plain(batch.column(n), kind) for n, kind in self.kept.items())
                yield from zip(*columns, strict=True)

    def _labels_of(self, name: str, kind: Any) -> NDArray[Any]:
        if types.is_dictionary(kind):
            kind = kind.value_type
        is_text = types.is_string(kind) or types.is_large_string(kind)
        if not is_text and (not _is_number(kind) or types.is_decimal(kind)):
            raise _columns.wrong_label_type(str(kind))
        # As a dictionary a name that is repeated a million times stays one.
        shared = [name] if is_text else None
        with self._opened(read_dictionary=shared) as file:
            column = file.read(columns=[name]).column(name)
        if len(column) != self.n_rows:
            raise FaultError(
                f"column {name!r} has {len(column)} rows; expected {self.n_rows}, as its head "
                "says. It is damaged: write or copy it again."
            )
        if column.null_count:
            row = int(column.is_null().to_numpy().argmax())
            raise _columns.wrong_label(row, None, "is missing")
        if not is_text:
            return _columns.checked_labels(np.asarray(column.cast(kind).to_numpy()))
        encoded = column.dictionary_encode().unify_dictionaries()
        codes = np.concatenate([part.indices.to_numpy() for part in encoded.chunks])
        used, firsts, places = np.unique(codes, return_index=True, return_inverse=True)
        names = encoded.chunk(0).dictionary.take(pa.array(used)).to_pylist()
        return _columns.text_labels(names, firsts.tolist(), len(codes))[places]


def _without(n_rows: int, blocks: Iterator[Any]) -> Iterator[Any]:
    """Leave out the first rows of blocks."""
    for block in blocks:
        if len(block) > n_rows:
            yield block[max(0, n_rows) :]
        n_rows -= len(block)


def _choose_columns(
    kinds: dict[str, Any], of_pandas: dict[str, Any], wanted: Wanted
) -> tuple[_columns.Chosen, bool]:
    """Choose columns, and say whether the features are one column of lists."""
    lists = [name for name, kind in kinds.items() if _is_list(kind)]
    usual = wanted.features
    if usual is None and wanted.columns is None:
        others = [name for name in lists if name != wanted.labels]
        usual = _columns.first_of(_columns.FEATURE_NAMES, others)
    if usual in lists:
        numeric = dict.fromkeys(kinds, True)
        return _columns.choose(numeric, kinds, replace(wanted, features=usual)), True
    # An index without a name pandas describes by an object.
    index = [name for name in of_pandas.get("index_columns", []) if isinstance(name, str)]
    numeric = {name: _is_number(kind) for name, kind in kinds.items()}
    return _columns.choose(numeric, kinds, wanted, index), False


def _kept_type(name: str, kind: Any) -> str:
    """Name the type in which a column is carried along: one of few, text for dates and times."""
    if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        raise FaultError(
            f"column {name!r} holds {kind} and cannot be carried along; expected numbers, text or "
            "dates. Leave it out of keep= / --keep."
        )
    if types.is_boolean(kind):
        return "bool_"
    if types.is_integer(kind):
        return "uint64" if types.is_unsigned_integer(kind) else "int64"
    return "float64" if types.is_floating(kind) else "string"


def _plain(column: Any, kind: str) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if kind != "string":
        return values
    return [value if value is None else str(value) for value in values]


def _is_list(kind: Any) -> bool:
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists) and _is_number(kind.value_type)


def _is_number(kind: Any) -> bool:
    integer = types.is_integer(kind) or types.is_boolean(kind)
    return bool(integer or types.is_floating(kind) or types.is_decimal(kind))


def _row_dtype(kind: Any) -> np.dtype[Any]:
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(kind.to_pandas_dtype() if types.is_floating(kind) else np.float32)


def _numbers(column: Any) -> NDArray[Any]:
    """Give a column as numbers; what is missing becomes NaN."""
    if types.is_decimal(column.type) or types.is_boolean(column.type):
        column = column.cast(pa.float64())
    return np.asarray(column.to_numpy(zero_copy_only=False))

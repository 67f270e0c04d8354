"""Every format gives back what was written, whole or in blocks, or says why not."""

import csv
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from protail.data.tables import FeatureFileError, open_features
from protail.data.tables import rows as rows_module

few_settings = settings(max_examples=25)
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


def write_npy(path, rows, labels):
    np.save(path, rows)


def write_npz(path, rows, labels):
    np.savez(path, other=np.arange(3), X=rows, y=labels)


def write_compressed_npz(path, rows, labels):
    np.savez_compressed(path, other=np.arange(3), X=rows, y=labels)


def write_safetensors(path, rows, labels):
    arrays = {"odd": np.zeros(3, np.uint8), "X": np.ascontiguousarray(rows), "y": labels}
    save_file(arrays, path)


def write_parquet_columns(path, rows, labels):
    columns = {f"c{i}": rows[:, i] for i in range(rows.shape[1])}
    table = pa.table({"words": ["a"] * len(rows), **columns, "label": labels})
    pq.write_table(table, path, row_group_size=3)


def write_parquet_lists(path, rows, labels):
    flat = pa.array(np.ascontiguousarray(rows).ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1]).cast(pa.list_(flat.type))
    pq.write_table(pa.table({"id": labels, "embedding": lists, "label": labels}), path)


def write_parquet_fixed_lists(path, rows, labels):
    flat = pa.array(np.ascontiguousarray(rows).ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    pq.write_table(pa.table({"features": lists, "y": labels}), path, row_group_size=4)


def write_csv(path, rows, labels):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["words", *(f"c{i}" for i in range(rows.shape[1])), "label"])
        for row, label in zip(rows, labels, strict=True):
            writer.writerow(["a\nb", *map(float, row), label])


WRITERS = {
    "a.npy": write_npy,
    "a.npz": write_npz,
    "compressed.npz": write_compressed_npz,
    "a.safetensors": write_safetensors,
    "columns.parquet": write_parquet_columns,
    "lists.parquet": write_parquet_lists,
    "fixed.parquet": write_parquet_fixed_lists,
    "a.csv": write_csv,
}
TEXT = [name for name in WRITERS if name not in ("a.npy", "a.safetensors")]
MAPPED = ["a.npy", "a.npz", "a.safetensors"]
every_format = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("features")


def tables(dtypes=tuple(DTYPES)):
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)
    return st.sampled_from(dtypes).flatmap(lambda dtype: hnp.arrays(dtype, shapes))


def expected_dtype(name, rows):
    if name == "a.csv":
        return np.dtype("float64")
    return rows.dtype if rows.dtype.kind == "f" else np.dtype("float32")


def same(a, b):
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


@every_format
@given(rows=tables(), start=st.integers(0, 12), size=st.integers(1, 13), fortran=st.booleans())
@few_settings
def test_round_trip(name, folder, rows, start, size, fortran):
    rows = np.asfortranarray(rows) if fortran else rows
    labels = np.arange(len(rows)) % 3 - 1
    WRITERS[name](folder / name, rows, labels)
    file = open_features(folder / name)
    expected = rows.astype(expected_dtype(name, rows))
    assert (file.n_rows, file.width, file.dtype) == (*rows.shape, expected.dtype)
    assert same(np.asarray(file.rows()), expected)
    start = min(start, len(rows))
    blocks = list(file.blocks(start, size))
    assert all(0 < len(block) <= size and block.flags.writeable for block in blocks)
    empty = np.empty((0, file.width), file.dtype)
    assert same(np.concatenate([empty, *blocks]), expected[start:])
    if name == "a.npy":
        assert not file.has_labels
    else:
        assert file.labels().tolist() == labels.tolist()
        assert file.labels().dtype == np.int64


@every_format
def test_blocks_from_every_start(name, folder):
    rows = np.random.default_rng(0).standard_normal((23, 3), dtype=np.float32)
    WRITERS[name](folder / name, rows, np.arange(23))
    file = open_features(folder / name)
    for start in range(23):
        assert np.array_equal(np.concatenate(list(file.blocks(start, 5))), rows[start:])
    assert list(file.blocks(23)) == []
    for wrong in (-1, 24):
        with pytest.raises(ValueError, match="start"):
            file.blocks(wrong)
    with pytest.raises(ValueError, match="n_rows"):
        file.blocks(0, 0)


@every_format
@pytest.mark.parametrize("fortran", [False, True])
def test_small_blocks_and_temporary_files(name, fortran, folder, monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 100)
    monkeypatch.setattr(rows_module, "IN_MEMORY_BYTES", 50)
    rows = np.arange(120, dtype=np.float32).reshape(20, 6)
    WRITERS[name](folder / name, np.asfortranarray(rows) if fortran else rows, np.arange(20))
    file = open_features(folder / name)
    assert all(block.nbytes <= 100 for block in file.blocks())
    assert isinstance(file.rows(), np.memmap)
    assert np.array_equal(file.rows(), rows)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fortran", [False, True])
def test_rows_are_the_file_itself(name, dtype, fortran, folder):
    rows = np.arange(12).reshape(4, 3).astype(dtype)
    path = folder / name
    WRITERS[name](path, np.asfortranarray(rows) if fortran else rows, np.arange(4))
    mapped = open_features(path).rows()
    assert isinstance(mapped, np.memmap)
    assert Path(mapped.filename) == path
    # What is written into the file shows in the array: it was not copied.
    at = path.read_bytes().index(rows.tobytes("F" if fortran and name != MAPPED[2] else "C"))
    with path.open("r+b") as raw:
        raw.seek(at)
        raw.write(np.array(7, dtype).tobytes())
    assert mapped[0, 0] == 7
    with pytest.raises(ValueError, match="read-only"):
        mapped[0, 0] = 1


def test_bfloat16_becomes_float32(folder):
    rows = torch.randn(5, 3).to(torch.bfloat16)
    save_tensors({"embeddings": rows}, folder / "b.safetensors")
    file = open_features(folder / "b.safetensors")
    assert file.dtype == np.float32
    assert np.array_equal(file.rows(), rows.float().numpy())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_bytes_in_other_order(save, folder):
    rows = np.arange(6, dtype=">f4").reshape(2, 3)
    save(folder / "big.npz", X=rows, y=np.array(["a", "é"], dtype=">U2"))
    file = open_features(folder / "big.npz")
    assert np.array_equal(file.rows(), rows)
    assert file.rows().dtype.isnative
    assert file.labels().tolist() == ["a", "é"]


@pytest.mark.parametrize("name", TEXT)
def test_names_as_labels(name, folder):
    labels = np.array(["<script>", "../../x", "naïve", "3"])
    WRITERS[name](folder / name, np.ones((4, 2), np.float32), labels)
    got = open_features(folder / name, need_labels=True).labels()
    assert got.dtype.kind == "U"
    assert got.tolist() == labels.tolist()


def attempt(path):
    """Read all there is; whatever is raised but our own error is a failure."""
    try:
        file = open_features(path)
        rows = np.asarray(file.rows())
        if file.has_labels:
            file.labels()
    except FeatureFileError as error:
        return None, str(error)
    return rows, None


@every_format
@given(data=st.data())
@settings(max_examples=40)
def test_cut_short(name, folder, data):
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    WRITERS[name](folder / name, rows, np.arange(20))
    whole = (folder / name).read_bytes()
    cut = folder / f"cut-{name}"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    read, error = attempt(cut)
    if error is None:
        assert name == "a.csv"
        # All but the last row are those that were written.
        assert np.array_equal(read[:-1], rows[: len(read) - 1, : read.shape[1]])
    else:
        assert str(cut) in error


@every_format
@given(data=st.data())
@settings(max_examples=60)
def test_bytes_altered(name, folder, data):
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    WRITERS[name](folder / name, rows, np.arange(20))
    bad = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    path = folder / f"bad-{name}"
    path.write_bytes(bad)
    _, error = attempt(path)
    assert error is None or str(path) in error


@pytest.mark.parametrize("at", ["first", "last"])
def test_compressed_bytes_are_checked(at, folder):
    rows = np.random.default_rng(0).standard_normal((50, 4), dtype=np.float32)
    path = folder / "checked.npz"
    np.savez_compressed(path, X=rows)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("X.npy")
    raw = bytearray(path.read_bytes())
    place = info.header_offset + 150 if at == "first" else info.compress_size - 20
    raw[place] ^= 0x10
    path.write_bytes(raw)
    with pytest.raises(FeatureFileError, match=r"checked\.npz"):
        open_features(path).rows()

"""Several feature files as one, parts of their rows, and files behind addresses."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from protail.data.tables import (
    Address,
    FeatureFileError,
    ShardedFile,
    ShardedRows,
    as_place,
    open_features,
    scan,
    shards,
    take,
)

SIZES = (7, 1, 12, 4)
X = np.random.default_rng(0).normal(size=(sum(SIZES), 5)).astype(np.float32)
X[[3, 20]] = X[2]
Y = np.arange(len(X)) % 3
FORMATS = ("npz", "parquet", "csv", "lists")


def write(folder, form, rows=X, labels=Y):
    """Write one file; ``lists`` is parquet with one column of lists, in small row groups."""
    if form == "npz":
        np.savez(folder.with_suffix(".npz"), X=rows, y=labels, id=np.arange(len(rows)))
    elif form == "lists":
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        table = pa.table({"features": lists, "label": labels})
        pq.write_table(table, folder.with_suffix(".parquet"), row_group_size=3)
    else:
        table = pa.table({"label": labels} | {f"f{i}": column for i, column in enumerate(rows.T)})
        if form == "csv":
            from pyarrow import csv

            csv.write_csv(table, folder.with_suffix(".csv"))
        else:
            pq.write_table(table, folder.with_suffix(".parquet"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("rows")
    cuts = np.cumsum(SIZES)[:-1]
    for form in FORMATS:
        (root / form).mkdir()
        for number, part in enumerate(np.split(np.arange(len(X)), cuts)):
            write(root / form / f"part-{number}", form, X[part], Y[part])
        (root / form / "_SUCCESS").touch()
    return root


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_is_read_as_one_file(form, folders):
    file = open_features(folders / form, need_labels=True)
    assert isinstance(file, ShardedFile)
    assert (file.n_rows, file.width, len(file.shards)) == (len(X), 5, 4)
    np.testing.assert_array_equal(file.labels(), Y)
    np.testing.assert_allclose(file.rows(), X, rtol=1e-6)
    for start in (0, 6, 7, 19, 24):
        blocks = list(file.blocks(start, n_rows=3))
        assert max(map(len, blocks), default=0) <= 3
        np.testing.assert_allclose(np.concatenate([X[:0], *blocks]), X[start:], rtol=1e-6)


@pytest.mark.parametrize("form", FORMATS)
def test_parts_are_the_rows(form, folders):
    rows = open_features(folders / form, engine=map).rows()
    assert isinstance(rows, ShardedRows)
    assert rows.shape == X.shape
    np.testing.assert_allclose(np.asarray(rows), X, rtol=1e-6)
    assert scan(rows, Y).duplicate_of.tolist() == scan(X, Y).duplicate_of.tolist()
    assert rows.n_zero == 0
    seen = list(rows.map(lambda blocks, labels: (sum(map(len, blocks)), len(labels)), Y))
    assert sum(n for n, _ in seen) == len(X)
    assert all(n == k for n, k in seen)
    assert len(pickle.loads(pickle.dumps(rows.parts))) == len(rows.parts)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), form=st.sampled_from(FORMATS))
def test_any_rows_can_be_taken(data, form, folders):
    rows = open_features(folders / form, engine=map).rows()
    numbers = st.integers(0, len(X) - 1)
    first = sorted(data.draw(st.sets(numbers, min_size=1)))
    some = take(rows, first)
    assert isinstance(some, ShardedRows)
    np.testing.assert_allclose(np.concatenate([*some.blocks()]), X[first], rtol=1e-6)
    index = data.draw(st.lists(st.integers(0, len(first) - 1), max_size=9))
    np.testing.assert_allclose(some.take(index), X[first][index], rtol=1e-6)
    mask = np.isin(np.arange(len(first)), index)
    if mask.any():
        np.testing.assert_allclose(np.asarray(some.at(mask)), X[first][mask], rtol=1e-6)


def test_patterns_lists_and_a_file_of_labels(folders, tmp_path):
    for path in (folders / "npz" / "*.npz", sorted((folders / "npz").glob("*.npz"))):
        assert open_features(path).n_rows == len(X)
    assert open_features(str(folders / "npz" / "part-[03].npz")).n_rows == 11
    np.save(tmp_path / "labels.npy", Y[::-1])
    file = open_features(folders / "npz", labels_file=tmp_path / "labels.npy", keep="id")
    np.testing.assert_array_equal(file.labels(), Y[::-1])
    assert [each for (each,) in file.kept_rows(6)][:4] == [6, 0, 0, 1]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "without feature files"),
        (["a.npz", "b.csv"], r"end in \.csv and \.npz; expected one kind.*\*\.csv"),
        (["a.npz", "wide.npz"], "wide.npz: its rows have 6 numbers.*expected as many"),
        (["a.csv", "other.csv"], r"other.csv: its columns are not those.*f4.*expected the same"),
        (["a.npz", "bare.npz"], "bare.npz: .* labels"),
    ],
)
def test_files_that_do_not_go_together(names, words, tmp_path):
    for name in names:
        stem, form = name.split(".")
        if stem == "bare":
            np.savez(tmp_path / name, X=X)
        else:
            rows = np.ones((3, 6 if stem == "wide" else 5 if stem == "a" else 4), np.float32)
            write(tmp_path / stem, form, rows, Y[:3])
    with pytest.raises(FeatureFileError, match=words):
        open_features(tmp_path, need_labels=True)


def test_labels_are_those_of_all_files_or_none(tmp_path):
    write(tmp_path / "a", "npz")
    np.savez(tmp_path / "b.npz", X=X)
    file = open_features(tmp_path)
    assert not file.has_labels
    assert file.rows().shape == (2 * len(X), 5)


def test_labels_are_numbers_or_text_in_all_files(tmp_path):
    write(tmp_path / "a", "npz")
    write(tmp_path / "b", "npz", labels=Y.astype(str))
    words = r"a.npz: its labels are numbers, and those of .*b.npz are text; expected one kind"
    with pytest.raises(FeatureFileError, match=words):
        open_features(tmp_path).labels()


def test_rows_of_two_types_are_the_same_rows(tmp_path):
    write(tmp_path / "a", "npz")
    write(tmp_path / "b", "npz", X.astype(np.float64))
    whole, parts = (open_features(tmp_path, engine=engine).rows() for engine in ("local", map))
    assert scan(parts).duplicate_of.tolist() == scan(whole).duplicate_of.tolist()
    assert scan(parts).n_duplicates == len(X) + 2
    some = parts.at([0, len(X)])
    assert {block.dtype for rows in (parts, some) for block in rows.blocks()} == {whole.dtype}


def test_what_is_not_there():
    for path in ("no/*.npz", "file:///no/such/*.parquet", "file:///no/such.parquet"):
        with pytest.raises(FeatureFileError, match=r"there is no|cannot be read"):
            open_features(path)
    with pytest.raises(FeatureFileError, match="no file was given"):
        open_features([])
    with pytest.raises(ValueError, match=r"engine='rya'.*ray"):
        shards.find_engine("rya")


def test_addresses():
    place = as_place("s3://bucket/a b/rows.parquet")
    assert isinstance(place, Address)
    assert str(place.parent / "x") == "s3://bucket/a b/x"
    assert str(as_place("file:///tmp/x")) == "file:///tmp/x" == str(as_place("file:/tmp/x"))
    assert not isinstance(as_place("C:/rows.npz"), Address)


@pytest.mark.parametrize("form", FORMATS)
def test_local_addresses(form, folders):
    for path in (folders / form, folders / form / "part-*"):
        file = open_features(f"file://{path}")
        np.testing.assert_allclose(file.rows(), X, rtol=1e-6)
        np.testing.assert_array_equal(file.labels(), Y)
    assert str(file.shards[0].path).startswith(f"file://{folders}/")


@pytest.mark.parametrize("form", FORMATS)
def test_another_file_system(form, folders, monkeypatch):
    """What pyarrow finds for s3:// and gs:// is a file system like this one."""
    found = SubTreeFileSystem(str(folders), LocalFileSystem()), form
    monkeypatch.setattr(shards, "_file_system", lambda root: found)
    file = open_features(f"s3://{form}", engine=map)
    np.testing.assert_allclose(np.asarray(file.rows()), X, rtol=1e-6)
    np.testing.assert_array_equal(file.labels(), Y)
    if form in ("npz", "csv"):  # mapped, or read from the start: a copy is fetched
        assert str(shards.here(file.shards[0].path)).startswith("/")
    shards.here.cache_clear()

"""A look through all rows, against loops; and rows taken out."""

import errno

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protail._files import OutputError
from protail.data.features import _scan, _spool, scan, take

few_settings = settings(max_examples=60)
CELLS = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf]
tables = st.sampled_from(["float16", "float32", "float64", "int32"]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        st.tuples(st.integers(1, 30), st.integers(1, 3)),
        elements=st.sampled_from([0, 1, 2] if dtype == "int32" else CELLS),
    )
)


def equal(a, b):
    return all(x == y or (x != x and y != y) for x, y in zip(a.tolist(), b.tolist(), strict=True))


def naive_first(rows):
    return [next(j for j in range(i + 1) if equal(rows[j], rows[i])) for i in range(len(rows))]


def check(rows, labels):
    found = scan(rows, labels)
    first = naive_first(rows)
    assert found.duplicate_of.dtype == np.int64
    assert found.duplicate_of.tolist() == first
    assert found.finite.tolist() == [bool(np.all(np.isfinite(row))) for row in rows]
    assert found.n_non_finite == sum(not np.all(np.isfinite(row)) for row in rows)
    assert found.n_zero == sum(all(x == 0 for x in row) for row in rows)
    assert found.n_duplicates == sum(j != i for i, j in enumerate(first))
    assert found.n_conflicts == sum(labels[i] != labels[j] for i, j in enumerate(first))


@given(tables, st.integers(1, 100), st.booleans())
@few_settings
def test_against_loops(rows, block_bytes, fortran):
    labels = np.arange(len(rows)) % 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_spool, "BLOCK_BYTES", block_bytes)
        check(np.asfortranarray(rows) if fortran else rows, labels)


@given(tables)
@few_settings
def test_equal_hashes_do_not_lie(rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "_hashes", lambda block: np.zeros(len(block), np.int64))
        check(rows, np.arange(len(rows)))


def test_mapped_rows_stay_as_they_are(tmp_path):
    rows = np.array([[-0.0, np.nan], [0.0, np.nan], [1, 2]], np.float32)
    np.save(tmp_path / "a.npy", rows)
    before = (tmp_path / "a.npy").read_bytes()
    assert scan(np.load(tmp_path / "a.npy", mmap_mode="r")).duplicate_of.tolist() == [0, 0, 2]
    assert (tmp_path / "a.npy").read_bytes() == before


def test_scan_checks_shapes():
    with pytest.raises(ValueError, match="rows has shape"):
        scan(np.arange(3.0))
    with pytest.raises(ValueError, match="labels has shape"):
        scan(np.eye(3), [0, 1])


@given(tables, st.data(), st.booleans())
@few_settings
def test_take(rows, data, on_disk):
    index = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_spool, "BLOCK_BYTES", 20)
        if on_disk:
            patch.setattr(_spool, "IN_MEMORY_BYTES", 1)
        for chosen in (index, mask):
            got = take(rows, chosen)
            expected = rows[np.array(chosen, dtype=None if chosen is mask else np.int64)]
            assert got.dtype == rows.dtype
            assert np.array_equal(got, expected, equal_nan=True)
            assert isinstance(got, np.memmap) == (on_disk and expected.size > 0)


def test_take_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(_spool.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_spool, "IN_MEMORY_BYTES", 1)
    got = take(np.eye(3), [0, 1])
    got[0, 0] = 5
    assert got.tolist() == [[5, 0, 0], [0, 1, 0]]
    del got
    assert list(tmp_path.iterdir()) == []


def test_full_disk(monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_spool.tempfile, "TemporaryFile", lambda **_: Full())
    monkeypatch.setattr(_spool, "IN_MEMORY_BYTES", 1)
    with pytest.raises(OutputError, match="disk is full"):
        take(np.eye(3), [0])


def test_take_checks_the_index():
    with pytest.raises(ValueError, match="mask"):
        take(np.eye(3), [True, False])
    with pytest.raises(IndexError):
        take(np.eye(3), [3])

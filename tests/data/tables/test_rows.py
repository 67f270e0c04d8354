"""Rows taken, scanned and split, against loops."""

import errno
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protail._files import OutputError
from protail.data.tables import rows as rows_module
from protail.data.tables import scan, split, take

few_settings = settings(max_examples=60)
more_settings = settings(max_examples=150)
fractions = st.floats(0.01, 0.99)
label_lists = st.lists(st.sampled_from("abcde"), min_size=1, max_size=60)
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
        patch.setattr(rows_module, "BLOCK_BYTES", block_bytes)
        check(np.asfortranarray(rows) if fortran else rows, labels)


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
        patch.setattr(rows_module, "BLOCK_BYTES", 20)
        if on_disk:
            patch.setattr(rows_module, "IN_MEMORY_BYTES", 1)
        for chosen in (index, mask):
            got = take(rows, chosen)
            expected = rows[np.array(chosen, dtype=None if chosen is mask else np.int64)]
            assert got.dtype == rows.dtype
            assert np.array_equal(got, expected, equal_nan=True)
            assert isinstance(got, np.memmap) == (on_disk and expected.size > 0)


def test_take_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rows_module, "IN_MEMORY_BYTES", 1)
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

    monkeypatch.setattr(rows_module.tempfile, "TemporaryFile", lambda **_: Full())
    monkeypatch.setattr(rows_module, "IN_MEMORY_BYTES", 1)
    with pytest.raises(OutputError, match="disk is full"):
        take(np.eye(3), [0])


def test_take_checks_the_index():
    with pytest.raises(ValueError, match="mask"):
        take(np.eye(3), [True, False])
    with pytest.raises(IndexError):
        take(np.eye(3), [3])


def quota(n, fraction):
    return min(max(round(fraction * n), 1), n - 1)


def check_partition(train, held, n_rows):
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(n_rows))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(held) > 0)


@given(label_lists, fractions, st.integers(0, 99))
@more_settings
def test_every_class_gives_its_share(labels, fraction, seed):
    train, held = split(labels, fraction=fraction, seed=seed)
    check_partition(train, held, len(labels))
    given_up = Counter(labels[i] for i in held)
    for name, n in Counter(labels).items():
        assert given_up[name] == quota(n, fraction)
    again = split(np.array(labels), fraction=fraction, seed=seed, groups=range(len(labels)))
    assert np.array_equal(again[0], train)
    assert np.array_equal(again[1], held)


@given(st.data(), label_lists, fractions, st.integers(0, 99))
@more_settings
def test_groups_stay_together(data, labels, fraction, seed):
    n_rows = len(labels)
    n_groups = data.draw(st.integers(1, n_rows))
    numbers = st.integers(-5, n_groups)
    groups = data.draw(st.lists(numbers, min_size=n_rows, max_size=n_rows))
    train, held = split(labels, fraction=fraction, groups=groups, seed=seed)
    check_partition(train, held, n_rows)
    assert not {groups[i] for i in train} & {groups[i] for i in held}

    rows_of = defaultdict(list)
    for group, label in zip(groups, labels, strict=True):
        rows_of[group].append(label)
    for name, n in Counter(labels).items():
        sizes = [len(rows) for rows in rows_of.values() if set(rows) == {name}]
        able = [size for size in sizes if size < n]
        n_held = sum(labels[i] == name for i in held)
        n_mixed = sum(labels[i] == name and len(set(rows_of[groups[i]])) > 1 for i in held)
        assert n_held < n
        if not able:
            assert n_held == n_mixed <= quota(n, fraction)
        elif min(able) > quota(n, fraction) and not n_mixed:
            assert n_held == min(able)
        elif n_held - n_mixed <= quota(n, fraction):
            assert 1 <= n_held <= quota(n, fraction)
            kept = Counter(groups[i] for i in train if set(rows_of[groups[i]]) == {name})
            # Nothing that would still fit was left behind.
            assert all(size > quota(n, fraction) - n_held for size in kept.values())


def test_rows_that_contradict_each_other_are_held_out_like_any_others():
    """Left in training, they would make a classifier look better than it is."""
    groups = np.repeat(np.arange(4000), 2)
    labels = np.where(groups < 2000, np.tile([0, 1], 4000), np.repeat([0, 1, 0, 1], 2000))
    _, held = split(labels, fraction=0.2, groups=groups)
    assert len(held) == pytest.approx(1600, rel=0.02)
    assert (groups[held] < 2000).mean() == pytest.approx(0.5, abs=0.05)


def test_seed_matters_and_rows_have_equal_chances():
    labels = [0] * 10
    times = Counter()
    for seed in range(2000):
        times.update(split(labels, seed=seed)[1].tolist())
    # 400 each; the standard deviation of a count is 18.
    assert all(310 < times[row] < 490 for row in range(10))


def test_lone_rows_stay_in_train():
    train, held = split([3, 1, 2])
    assert train.tolist() == [0, 1, 2]
    assert held.tolist() == []


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan"), 2])
def test_share_is_checked(fraction):
    with pytest.raises(ValueError, match="fraction"):
        split([0, 0], fraction=fraction)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="labels has shape"):
        split([])
    with pytest.raises(ValueError, match="labels has shape"):
        split([[0, 1]])
    with pytest.raises(ValueError, match="groups has shape"):
        split([0, 1], groups=[0])

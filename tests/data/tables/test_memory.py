"""Large files pass through in blocks: what is held at once stays small."""

import tracemalloc
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protail.data.tables import open_features, scan

MIB = 1 << 20
SHAPE = (65536, 512)  # 128 MiB of float32


@contextmanager
def at_most(n_bytes):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def rows():
    table = np.zeros(SHAPE, np.float32)
    table[:, 0] = np.arange(SHAPE[0])
    return table


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_blocks_of_an_npz(save, rows, tmp_path):
    save(tmp_path / "a.npz", X=rows)
    with at_most(80 * MIB):
        seen = [block[0, 0] for block in open_features(tmp_path / "a.npz").blocks(10)]
    assert seen == [10, 8202, 16394, 24586, 32778, 40970, 49162, 57354]


def test_blocks_of_lists_in_parquet(rows, tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), SHAPE[1])
    pq.write_table(pa.table({"features": lists}), tmp_path / "a.parquet")
    del lists
    before = pa.total_allocated_bytes()
    with at_most(80 * MIB):
        for block in open_features(tmp_path / "a.parquet").blocks():
            assert block.nbytes <= 16 * MIB
            assert pa.total_allocated_bytes() - before < 80 * MIB


def test_scan_of_mapped_rows(rows, tmp_path):
    np.save(tmp_path / "a.npy", rows)
    with at_most(100 * MIB):
        found = scan(open_features(tmp_path / "a.npy").rows())
    assert found.n_duplicates == 0
    assert found.n_zero == 1


@pytest.mark.slow
def test_scan_of_a_million_rows(tmp_path):
    table = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (1_000_000, 512))
    table[:, 0] = np.arange(1_000_000)
    table[-1000:] = table[:1000]
    table.flush()
    del table
    with at_most(300 * MIB):
        assert scan(open_features(tmp_path / "a.npy").rows()).n_duplicates == 1000

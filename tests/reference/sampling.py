"""What the tests of samplers share: the kinds, a long tail, and cycles checked row by row."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from hypothesis import strategies as st

KINDS = [
    ("instance", {}),
    ("class-balanced", {}),
    ("class-balanced", {"run": 3}),
    ("square-root", {}),
    ("progressive", {"epochs": 4}),
]

label_lists = st.lists(st.sampled_from([0, 1, 2, 4, 7]), min_size=1, max_size=80)


def long_tail_labels(n_classes=30, largest=200, imbalance=50, seed=0):
    counts = [int(largest * (1 / imbalance) ** (c / (n_classes - 1))) for c in range(n_classes)]
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(n_classes), counts))


@contextmanager
def small_steps(block=8, chunk=5) -> Iterator[None]:
    """Cut the work into many small pieces, so that their borders are met in small examples."""
    with (
        mock.patch("protail.data.samplers._BLOCK", block),
        mock.patch("protail.data._random._CHUNK", chunk),
    ):
        yield


def assert_random_cycles(rows, labels):
    """Check that no class repeats a row before it has given all of them."""
    members = {c: set(np.flatnonzero(labels == c).tolist()) for c in set(labels.tolist())}
    by_class = {c: [] for c in members}
    for row in rows.tolist():
        by_class[int(labels[row])].append(row)
    for c, drawn in by_class.items():
        n = len(members[c])
        for begin in range(0, len(drawn), n):
            cycle = drawn[begin : begin + n]
            assert len(set(cycle)) == len(cycle)
            assert set(cycle) <= members[c]

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.data import (
    ClassBalancedSampler,
    InstanceSampler,
    ProgressiveSampler,
    SquareRootSampler,
    make_sampler,
)
from reference.sampling import KINDS, assert_random_cycles, label_lists

CYCLING = [kind for kind in KINDS if kind[0] != "instance"]
few_settings = settings(max_examples=40)


@given(label_lists, st.integers(0, 3))
@few_settings
def test_instance_draws_every_row_once(labels, epoch):
    sampler = InstanceSampler(labels)
    assert sorted(sampler.epoch_indices(epoch).tolist()) == list(range(len(labels)))


@given(label_lists, st.integers(1, 9), st.integers(0, 2**70), st.integers(0, 3))
@few_settings
def test_class_balanced_goes_in_rounds(labels, run, seed, epoch):
    labels = np.array(labels)
    sampler = ClassBalancedSampler(labels, run, seed=seed)
    rows = sampler.epoch_indices(epoch)
    present = sorted(set(labels.tolist()))
    max_n = max(Counter(labels.tolist()).values())
    assert len(sampler) == rows.size == max_n * len(present)

    drawn = labels[rows].tolist()
    left = max_n
    position = 0
    while left:  # a round: every class once, in runs
        length = min(run, left)
        heads = drawn[position : position + length * len(present) : length]
        assert sorted(heads) == present
        expected = [c for c in heads for _ in range(length)]
        assert drawn[position : position + len(expected)] == expected
        position += len(expected)
        left -= length
    assert position == rows.size
    assert_random_cycles(rows, labels)


@given(label_lists, st.sampled_from(CYCLING), st.integers(0, 3))
@few_settings
def test_classes_walk_in_random_cycles(labels, kind, epoch):
    labels = np.array(labels)
    assert_random_cycles(make_sampler(kind[0], labels, **kind[1]).epoch_indices(epoch), labels)


def test_many_classes_and_large_classes_walk_in_cycles_too():
    # More classes than 16 bits hold, and a class larger than what is shuffled in one go.
    labels = np.concatenate([np.arange(70_000), np.zeros(40_000, dtype=int)])
    sampler = ClassBalancedSampler(labels)
    rows = np.concatenate(list(itertools.islice(sampler.blocks(0), 3)))
    assert rows.size >= 3 * 70_000
    assert np.bincount(labels[rows]).min() >= 3
    zeros = ClassBalancedSampler(np.zeros(100_000, dtype=int)).epoch_indices(0)
    assert np.array_equal(np.sort(zeros), np.arange(100_000))


def test_labels_that_do_not_occur_are_never_drawn():
    labels = np.array([5, 5, 5, 9])
    for name, options in KINDS:
        rows = make_sampler(name, labels, **options).epoch_indices(0)
        assert set(labels[rows].tolist()) <= {5, 9}
    assert len(ClassBalancedSampler(labels)) == 6


def within_chance(observed, expected_share, n):
    """Say whether a share lies within five standard deviations of chance."""
    deviation = math.sqrt(expected_share * (1 - expected_share) / n)
    return abs(observed - expected_share) < 5 * deviation


def test_square_root_shares_equal_a_loop():
    labels = np.repeat(np.arange(4), [4000, 1000, 250, 10])
    rows = np.concatenate([SquareRootSampler(labels).epoch_indices(e) for e in range(10)])
    total = sum(math.sqrt(n) for n in (4000, 1000, 250, 10))
    for c, n in enumerate((4000, 1000, 250, 10)):
        observed = sum(1 for row in rows.tolist() if labels[row] == c) / rows.size
        assert within_chance(observed, math.sqrt(n) / total, rows.size)


@pytest.mark.parametrize("epoch", [0, 2, 4, 9])
def test_progressive_shares_equal_a_loop(epoch):
    counts, epochs = (40_000, 8000, 2000), 5
    labels = np.repeat(np.arange(3), counts)
    n = labels.size
    drawn = labels[ProgressiveSampler(labels, epochs).epoch_indices(epoch)]
    for part in range(2):  # in each half of the epoch, the way moves on
        way = sum(
            min(1.0, (epoch + p / n) / epochs) for p in range(part * n // 2, (part + 1) * n // 2)
        ) / (n // 2)
        half = drawn[part * n // 2 : (part + 1) * n // 2]
        for c, count in enumerate(counts):
            expected = (1 - way) * count / n + way / 3
            assert within_chance(float((half == c).mean()), expected, half.size)


def test_orders_are_uniform():
    # All 24 orders of 4 rows, of 4 classes, and of one class's 4 rows, equally often.
    n = 4800
    instance = InstanceSampler(np.zeros(4, dtype=int))
    rounds = ClassBalancedSampler(np.repeat(np.arange(4), n // 4))
    cycles = ClassBalancedSampler(np.repeat([0, 1], [4, 4 * n]))
    streams = {
        "rows": np.concatenate([instance.epoch_indices(e) for e in range(n)]),
        "classes": rounds.epoch_indices(0)[: 4 * (n // 4)] // (n // 4),
        "cycle": cycles.epoch_indices(0),
    }
    streams["cycle"] = streams["cycle"][streams["cycle"] < 4]
    for name, stream in streams.items():
        seen = Counter(map(tuple, stream.reshape(-1, 4).tolist()))
        total = stream.size // 4
        assert len(seen) == 24, name
        chi2 = sum((k - total / 24) ** 2 / (total / 24) for k in seen.values())
        assert chi2 < 60, name  # 23 degrees of freedom: above 60 once in 30,000


FROZEN = {
    "instance": [5, 2, 3, 1, 0, 4],
    "balanced": [4, 2, 5, 5, 3, 0, 1, 5, 4],
    "square-root": [4, 2, 5, 3, 0, 1],
    "progressive": [4, 2, 1, 5, 0, 5],
}


def test_the_bits_do_not_change_from_release_to_release():
    labels = [0, 0, 0, 1, 1, 2]
    assert InstanceSampler(labels, seed=7).epoch_indices(0).tolist() == FROZEN["instance"]
    assert ClassBalancedSampler(labels, seed=7).epoch_indices(0).tolist() == FROZEN["balanced"]
    assert SquareRootSampler(labels, seed=7).epoch_indices(0).tolist() == FROZEN["square-root"]
    assert ProgressiveSampler(labels, 2, seed=7).epoch_indices(1).tolist() == FROZEN["progressive"]


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match=r"sampler='balanced' is unknown.*Did you mean 'class-bal"):
        make_sampler("balanced", [0, 1])


def test_labels_may_be_tensors_or_frozen_arrays():
    labels = np.array([0, 0, 1])
    labels.setflags(write=False)
    expected = ClassBalancedSampler([0, 0, 1]).epoch_indices(0)
    for same in (labels, torch.tensor([0, 0, 1]), labels.astype(np.uint8)):
        assert np.array_equal(ClassBalancedSampler(same).epoch_indices(0), expected)

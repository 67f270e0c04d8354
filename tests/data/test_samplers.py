"""Every sampler against what it promises: fractions, cycles, seeds, ranks, resuming."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from protail.data import (
    SAMPLERS,
    ClassBalancedSampler,
    InstanceSampler,
    ProgressiveSampler,
    RowSampler,
    SquareRootSampler,
    make_sampler,
    register_sampler,
    sampler_names,
)
from reference.counting import calls
from reference.sampling import (
    KINDS,
    assert_random_cycles,
    label_lists,
    long_tail_labels,
    small_steps,
)

CYCLING = [kind for kind in KINDS if kind[0] != "instance"]
every_kind = pytest.mark.parametrize(("name", "options"), KINDS)
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


def test_samplers_are_known_by_name():
    assert {name for name, _ in KINDS} <= set(sampler_names())
    with pytest.raises(ValueError, match=r"sampler='balanced' is unknown.*Did you mean 'class-bal"):
        make_sampler("balanced", [0, 1])
    with pytest.raises(ValueError, match=r"'class-balanced' takes no option 'rows'.*'run'"):
        make_sampler("class-balanced", [0, 1], rows=2)
    with pytest.raises(ValueError, match="'progressive' needs the option 'epochs'"):
        make_sampler("progressive", [0, 1])


def test_a_sampler_of_ones_own(monkeypatch):
    monkeypatch.setattr(SAMPLERS, "_factories", dict(SAMPLERS._factories))

    @register_sampler("every-nth")
    class EveryNth(RowSampler):
        def __init__(self, labels, n: int, **ranks):
            super().__init__(labels, **ranks)
            self.n = n

        def _stream(self, epoch, position):
            yield np.arange(position, self._n_draws) * self.n % self._n_rows

    sampler = make_sampler("every-nth", [0, 1, 1, 0], n=3, rank=1, world_size=2)
    assert sampler.epoch_indices(0).tolist() == [3, 1]
    assert list(SAMPLERS.options("every-nth")) == ["n"]


def test_labels_may_be_tensors_or_frozen_arrays():
    labels = np.array([0, 0, 1])
    labels.setflags(write=False)
    expected = ClassBalancedSampler([0, 0, 1]).epoch_indices(0)
    for same in (labels, torch.tensor([0, 0, 1]), labels.astype(np.uint8)):
        assert np.array_equal(ClassBalancedSampler(same).epoch_indices(0), expected)


# Seeds, epochs, positions


@every_kind
def test_same_seed_same_rows_other_seed_or_epoch_other_rows(name, options):
    labels = long_tail_labels()
    rows = make_sampler(name, labels, seed=3, **options).epoch_indices(1)
    assert np.array_equal(rows, make_sampler(name, labels, seed=3, **options).epoch_indices(1))
    assert not np.array_equal(rows, make_sampler(name, labels, seed=4, **options).epoch_indices(1))
    assert not np.array_equal(rows, make_sampler(name, labels, seed=3, **options).epoch_indices(2))
    assert rows.dtype == np.int64


@given(label_lists, st.sampled_from(KINDS), st.integers(1, 12), st.data())
@few_settings
def test_resuming_equals_going_on(labels, kind, batch_size, data):
    sampler = make_sampler(kind[0], labels, **kind[1])
    whole = list(sampler.batches(batch_size, epoch=2))
    start = data.draw(st.integers(0, len(whole) + 1))
    with small_steps():
        resumed = list(sampler.batches(batch_size, epoch=2, start=start))
    assert len(resumed) == max(0, len(whole) - start)
    for one, other in zip(resumed, whole[start:], strict=True):
        assert np.array_equal(one, other)


@every_kind
def test_resuming_a_long_epoch_equals_going_on(name, options):
    labels = long_tail_labels(n_classes=40, largest=1500, imbalance=100)
    sampler = make_sampler(name, labels, **options)
    rows = sampler.epoch_indices(0)
    for start in (1, 777, 8192, 9001, rows.size - 1):
        assert np.array_equal(np.concatenate(list(sampler.blocks(0, start))), rows[start:])


@every_kind
def test_batches_are_the_epoch_in_pieces(name, options):
    sampler = make_sampler(name, long_tail_labels(), **options)
    for size in (1, 64, 5000, 10**6):
        pieces = list(sampler.batches(size, epoch=0))
        assert all(piece.size == size for piece in pieces[:-1])
        assert len(pieces) == math.ceil(len(sampler) / size)
        assert np.array_equal(np.concatenate(pieces), sampler.epoch_indices(0))


@given(label_lists, st.sampled_from(KINDS), st.integers(1, 7), st.integers(1, 9))
@few_settings
def test_ranks_share_out_one_stream(labels, kind, world_size, block):
    name, options = kind
    stream = make_sampler(name, labels, **options).epoch_indices(1)
    stream = stream[: stream.size // world_size * world_size]
    with small_steps(block):
        for rank in range(world_size):
            own = make_sampler(name, labels, rank=rank, world_size=world_size, **options)
            assert len(own) == stream.size // world_size
            assert np.array_equal(own.epoch_indices(1), stream[rank::world_size])
            if len(own) > 2:
                resumed = np.concatenate(list(own.blocks(1, start=2)))
                assert np.array_equal(resumed, stream[rank::world_size][2:])


# As the sampler of a DataLoader


@every_kind
def test_data_loader(name, options):
    labels = long_tail_labels(n_classes=5, largest=20, imbalance=10)
    sampler = make_sampler(name, labels, **options)
    loader = DataLoader(torch.arange(labels.size), batch_size=7, sampler=sampler)
    assert len(loader) == math.ceil(len(sampler) / 7)
    for epoch in range(2):  # a new epoch each time, unasked
        assert np.array_equal(torch.cat(list(loader)), sampler.epoch_indices(epoch))
    sampler.set_epoch(0)
    assert np.array_equal(torch.cat(list(loader)), sampler.epoch_indices(0))


def test_a_walk_that_was_left_starts_over():
    sampler = InstanceSampler([0] * 10)
    next(iter(sampler))
    assert list(sampler) == sampler.epoch_indices(0).tolist()


@given(label_lists, st.sampled_from(KINDS), st.integers(0, 3), st.integers(1, 20))
@few_settings
def test_how_the_work_is_cut_changes_nothing(labels, kind, epoch, block):
    sampler = make_sampler(kind[0], labels, **kind[1])
    expected = sampler.epoch_indices(epoch)
    with small_steps(block):
        assert np.array_equal(sampler.epoch_indices(epoch), expected)


# Size and speed


def test_an_epoch_of_a_billion_draws_starts_at_once_anywhere():
    labels = np.concatenate([np.zeros(100_000, dtype=int), np.arange(1, 10_001)])
    sampler = ClassBalancedSampler(labels, run=4)
    assert len(sampler) == 100_000 * 10_001
    for start in (0, 500_000_000):
        block = next(sampler.blocks(0, start))
        assert block.size < 50_000
    # Nothing is drawn to get there.
    first, middle = (calls(next, sampler.blocks(0, start)) for start in (0, 500_000_000))
    assert middle < 1.5 * first


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed=-1; expected a whole number >= 0"),
        ({"seed": 0.5}, TypeError, r"seed=0.5; expected a whole number"),
        ({"seed": None}, TypeError, "seed=None"),
        ({"world_size": 0}, ValueError, "world_size=0"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank=2; expected 0 to 1"),
        ({"run": 0}, ValueError, "run=0; expected a whole number >= 1"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        ClassBalancedSampler([0, 1], **options)


@every_kind
@pytest.mark.parametrize(
    ("labels", "error"), [([], ValueError), ([0.5], TypeError), ([-1, 0], ValueError)]
)
def test_bad_labels(name, options, labels, error):
    with pytest.raises(error, match="labels"):
        make_sampler(name, labels, **options)


def test_bad_calls():
    sampler = InstanceSampler([0, 1])
    with pytest.raises(ValueError, match="batch_size=0"):
        sampler.batches(0, epoch=0)
    with pytest.raises(ValueError, match="epoch=-1"):
        sampler.blocks(-1)
    with pytest.raises(ValueError, match="start=-1"):
        sampler.batches(4, epoch=0, start=-1)
    with pytest.raises(ValueError, match="epoch=-2"):
        sampler.set_epoch(-2)
    with pytest.raises(ValueError, match="epochs=0"):
        ProgressiveSampler([0, 1], epochs=0)

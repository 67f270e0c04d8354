import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from protail.data import ClassBalancedSampler, InstanceSampler, ProgressiveSampler, make_sampler
from reference.counting import calls
from reference.sampling import KINDS, label_lists, long_tail_labels, small_steps

every_kind = pytest.mark.parametrize(("name", "options"), KINDS)
few_settings = settings(max_examples=40)


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


@every_kind
@pytest.mark.parametrize("drawn", [0, 1, 17])
def test_state_resumes_in_the_middle(name, options, drawn):
    labels = long_tail_labels(n_classes=5, largest=20, imbalance=10)
    first = make_sampler(name, labels, **options)
    first.set_epoch(3)
    walk = iter(first)
    before = [next(walk) for _ in range(drawn)]
    second = make_sampler(name, labels, **options)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    second.set_epoch(3)  # what a training loop says at the top of every epoch
    after = list(second)
    assert before + after == first.epoch_indices(3).tolist()
    assert after == list(walk)
    assert list(second) == first.epoch_indices(4).tolist()


def test_a_walk_that_was_left_starts_over():
    sampler = InstanceSampler([0] * 10)
    next(iter(sampler))
    assert list(sampler) == sampler.epoch_indices(0).tolist()


def test_state_resumes_with_another_number_of_ranks():
    labels = long_tail_labels()
    stream = ClassBalancedSampler(labels).epoch_indices(0)
    four = [ClassBalancedSampler(labels, rank=r, world_size=4) for r in range(4)]
    for sampler in four:
        list(itertools.islice(sampler, 10))
    state = four[0].state_dict()
    assert all(sampler.state_dict() == state for sampler in four)
    two = ClassBalancedSampler(labels, rank=1, world_size=2)
    two.load_state_dict(state)
    assert list(two) == stream[40:][1::2].tolist()
    with pytest.raises(ValueError, match="position=40; expected a multiple of world_size=3"):
        ClassBalancedSampler(labels, world_size=3).load_state_dict(state)


def test_a_state_of_another_sampler_is_refused_and_changes_nothing():
    sampler = InstanceSampler([0, 1, 1], seed=1)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match="state has seed=2; expected 1"):
        sampler.load_state_dict(InstanceSampler([0, 1, 1], seed=2).state_dict())
    with pytest.raises(ValueError, match="state has n_draws=2; expected 3"):
        sampler.load_state_dict(InstanceSampler([0, 1], seed=1).state_dict())
    assert sampler.state_dict() == before


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

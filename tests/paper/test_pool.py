"""Which training is begun next, and what its steps take, by a clock that the tests move."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.training import interleave, make_streams
from protail_paper._pool import Pool, _HostWatch, timed_steps
from protail_paper.groups import Group
from protail_paper.wanted import Experiment, Subset

CPU = torch.device("cpu")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def groups(n):
    return [Group((Experiment("wd", Subset("cifar100-lt", 100), seed),)) for seed in range(n)]


def pool_of(times, budget=None):
    """Make a pool of groups that are thought to take these times, and its clock."""
    clock, wanted = Clock(), groups(len(times))
    forecasts = dict(zip(range(len(times)), times, strict=True))
    return Pool(wanted, lambda group: forecasts[group.first.seed], budget, clock), clock


def seed_of(begun):
    return None if begun is None else begun.group.first.seed


def test_those_at_once_share_the_time():
    pool, clock = pool_of([None] * 3)
    first, second = pool.begin(), pool.begin()
    clock.now += 10
    pool.end(first)
    clock.now += 5
    third = pool.begin()
    clock.now += 2
    with pool.aside():
        clock.now += 1000
    clock.now += 2
    pool.end(second)
    pool.end(third)
    assert [begun.seconds for begun in (first, second, third)] == [5.0, 12.0, 2.0]
    assert pool.is_idle
    assert pool.begin() is None


def test_longer_steps_are_charged_with_more():
    pool, clock = pool_of([None] * 2)
    first, second = pool.begin(), pool.begin()
    clock.now += 10  # nothing is known yet: shared by what will be known
    pool.tell_step(first, 0.3)
    clock.now += 10
    pool.tell_step(second, 0.1)
    clock.now += 10
    pool.tell_step(second, 0.3)
    clock.now += 10
    pool.end(first)
    clock.now += 10
    pool.end(second)
    assert first.seconds == pytest.approx(22.5 + 5)
    assert second.seconds == pytest.approx(7.5 + 5 + 10)
    assert first.guessed == second.guessed == 0.0


def test_what_nobody_knows_is_shared_equally_and_said_to_be():
    pool, clock = pool_of([None] * 2)
    first, second = pool.begin(), pool.begin()
    pool.tell_step(first, 0.3)
    clock.now += 10
    pool.end(second)
    clock.now += 10
    pool.end(first)
    assert (second.seconds, second.guessed) == (5.0, 5.0)
    assert (first.seconds, first.guessed) == (15.0, 5.0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["begin", "tell", "end"]), st.floats(0, 9)), max_size=30))
def test_no_time_is_lost_or_counted_twice(moves):
    """What all were charged with is the time in which any of them was trained."""
    pool, clock = pool_of([None] * len(moves))
    going_on, ended, busy = [], [], 0.0
    for move, seconds in moves:
        clock.now += seconds
        busy += seconds if going_on else 0.0
        if move == "begin":
            going_on.append(pool.begin())
        elif going_on and move == "tell":
            pool.tell_step(going_on[-1], seconds)
        elif going_on:
            pool.end(going_on[0])
            ended.append(going_on.pop(0))
    for begun in going_on:
        pool.end(begun)
    assert sum(begun.seconds for begun in [*ended, *going_on]) == pytest.approx(busy)


def test_the_most_wanted_that_fits_comes_first():
    pool, clock = pool_of([300, 40, 20, 500], budget=130)
    # 300 does not fit; 40 and the longest again do; 20 beside it do too.
    first, second = pool.begin(), pool.begin()
    assert (seed_of(first), seed_of(second), pool.begin()) == (1, 2, None)
    clock.now += 60
    pool.end(first)
    pool.end(second)
    assert pool.begin() is None
    assert [group.first.seed for group in pool.waiting] == [0, 3]


def test_what_is_left_of_those_that_go_on_counts():
    pool, clock = pool_of([100, 10, 60], budget=269)
    _, short = pool.begin(), pool.begin()
    assert pool.begin() is None  # 60, the 110 of the others, and 100 for the longest
    clock.now += 18
    pool.end(short)
    # Half of the time was the long one's: 60, the 91 that are left, and 100; 251 are left.
    assert seed_of(pool.begin()) == 2


def test_it_is_the_longest_of_all_that_is_counted_twice():
    pool, _ = pool_of([100, 20], budget=219)
    assert seed_of(pool.begin()) == 0
    assert pool.begin() is None  # 20 and 100, and 100 for the longest
    pool, _ = pool_of([100, 20], budget=220)
    assert [seed_of(pool.begin()), seed_of(pool.begin())] == [0, 1]


def test_one_alone_is_to_tell_where_nothing_does():
    pool, _ = pool_of([None, None, 10], budget=60)
    first = pool.begin()
    assert seed_of(first) == 0
    known = pool.begin()
    assert seed_of(known) == 2
    assert pool.begin() is None
    pool.end(first, well=False)
    assert pool.begin() is None
    pool.end(known, well=False)
    # Nothing has told yet.
    second = pool.begin()
    assert seed_of(second) == 1
    pool.end(second)


def test_where_one_has_told_the_others_wait():
    pool, _ = pool_of([None, None], budget=60)
    pool.end(pool.begin())
    assert pool.begin() is None


def test_forecasts_are_not_asked_for_while_nothing_has_changed():
    asked = []

    def expected(group):
        asked.append(group)
        return 100.0

    pool = Pool(groups(3), expected, 250, Clock())
    begun = pool.begin()
    assert pool.begin() is None
    before = len(asked)
    assert pool.begin() is None
    assert len(asked) == before
    pool.end(begun)
    assert pool.begin() is not None


def test_a_budget_that_is_spent_begins_nothing():
    pool, clock = pool_of([None, 0.0], budget=5)
    clock.now += 5
    assert pool.begin() is None


def test_steps_are_measured_beside_others():
    now, told = [0.0], {"short": [], "long": []}

    def training(seconds, n):
        for number in range(n):
            # What the first steps take is no measure of the others.
            now[0] += seconds if number >= 20 else 1000.0
            yield
        return seconds

    watched = [
        timed_steps(
            training(seconds, 200), told[name].append, CPU, lambda: _HostWatch(lambda: now[0])
        )
        for name, seconds in (("short", 1.0), ("long", 4.0))
    ]
    assert interleave(watched) == [1.0, 4.0]
    assert told["short"]
    assert set(told["short"]) == {1.0}
    assert set(told["long"]) == {4.0}


def test_the_mean_follows_what_steps_take():
    now, told = [0.0], []

    def training():
        for number in range(8000):
            now[0] += 1.0 if number < 3000 else 2.0
            yield

    interleave([timed_steps(training(), told.append, CPU, lambda: _HostWatch(lambda: now[0]))])
    assert told[0] == 1.0
    assert told[-1] == 2.0


def test_one_that_ends_early_and_one_that_fails():
    def fails():
        yield
        raise ValueError("no")

    def ends():
        return 3
        yield

    assert interleave([timed_steps(ends(), print, CPU)]) == [3]
    with pytest.raises(ValueError, match="no"):
        interleave([timed_steps(fails(), print, CPU)])


class Late:
    """A watch whose step is over only when many others have been asked for."""

    asked = 0

    def start(self):
        self.number = Late.asked

    def stop(self):
        pass

    def read(self):
        return float(self.number) if Late.asked >= self.number + 150 else None


def test_nothing_is_lost_where_a_gpu_is_far_behind():
    told = []

    def training():
        for _ in range(400):
            Late.asked += 1
            yield

    interleave([timed_steps(training(), told.append, CPU, Late)])
    measured = [float(number) for number in range(21, 251, 7)]
    assert told[:3] == [21.0, 24.5, 28.0]
    assert told[-1] == pytest.approx(sum(measured) / len(measured))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_more_work_on_a_stream_takes_longer():
    device, told = torch.device("cuda"), {1: [], 8: []}
    x = torch.randn(2048, 2048, device=device)

    def training(n_products):
        for _ in range(2000):
            for _ in range(n_products):
                x @ x
            yield
        torch.cuda.synchronize()
        for _ in range(400):
            yield

    watched = [timed_steps(training(n), told[n].append, device) for n in told]
    interleave(watched, make_streams(device, 2))
    assert all(len(each) > 100 for each in told.values())
    assert 2 < max(told[8]) / max(told[1]) < 20

"""The training loop against a loop written out by hand, its schedules, and groups of processes."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed

from protail.training import (
    CapturedDriver,
    History,
    PlainDriver,
    RepresentationSettings,
    constant,
    cosine,
    diverged,
    leave_group_at_end,
    steps,
    train,
    warm_up,
)
from protail.training.loop import CaptureError, SlicedDriver, flushed_denormals, make_schedule

GOALS = [torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]), torch.tensor([-1.0, 0.0])]


def make_driver(lr=0.1, momentum=0.9, **options):
    place = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = torch.optim.SGD([place], lr=lr, momentum=momentum)
    return place, PlainDriver(lambda goal: ((place - goal) ** 2).sum(), optimizer, **options)


def by_hand(n_steps, lr=0.1, momentum=0.9, schedule=lambda done: 1.0):
    place, speed, losses = np.zeros(2), np.zeros(2), []
    for step, goal in zip(range(n_steps), itertools.cycle(GOALS), strict=False):
        goal = goal.numpy().astype(np.float64)
        losses.append(float(((place - goal) ** 2).sum()))
        speed = momentum * speed + 2 * (place - goal)
        place = place - lr * schedule(step / n_steps) * speed
    return place, losses


@pytest.mark.parametrize("schedule", [lambda done: 1.0, cosine])
def test_follows_the_loop_by_hand(schedule):
    place, driver = make_driver()
    history = train(driver, itertools.cycle(GOALS), 11, schedule=schedule, record_every=1)
    expected, losses = by_hand(11, schedule=schedule)
    np.testing.assert_allclose(place.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(history.losses, losses, rtol=1e-12)
    assert history.steps == list(range(1, 12))


def test_records_means_and_the_last_steps():
    _, driver = make_driver()
    history = train(driver, itertools.cycle(GOALS), 5, record_every=3)
    losses = by_hand(5)[1]
    assert history.steps == [3, 5]
    np.testing.assert_allclose(history.losses, [np.mean(losses[:3]), np.mean(losses[3:])])


def test_ends_with_the_stream():
    _, driver = make_driver()
    history = train(driver, GOALS[:2], 100, record_every=10)
    assert history.steps == [2]


def test_resumed_run_takes_the_same_steps():
    place, driver = make_driver()
    train(driver, itertools.islice(itertools.cycle(GOALS), 4), 9, schedule=cosine)
    train(driver, itertools.islice(itertools.cycle(GOALS), 4, None), 9, schedule=cosine, start=4)
    np.testing.assert_allclose(place.detach().numpy(), by_hand(9, schedule=cosine)[0], rtol=1e-12)


def test_stop_rule_ends_the_run():
    _, driver = make_driver()
    history = train(
        driver, itertools.cycle(GOALS), 50, record_every=1, stop=lambda h: len(h.losses) == 7
    )
    assert history.stopped_early
    assert history.steps[-1] == 7


def test_divergence_is_seen():
    _, driver = make_driver(lr=1e200)
    history = train(driver, itertools.cycle(GOALS), 50, record_every=1, stop=diverged)
    assert history.stopped_early
    assert history.steps[-1] < 10


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_diverged(loss):
    assert diverged(History([1], [loss]))
    assert not diverged(History([1, 2], [loss, 1.0]))


def test_watch_and_after_step_are_called():
    seen, projected = [], []
    _, driver = make_driver(after_step=lambda: projected.append(None))
    train(
        driver,
        itertools.cycle(GOALS),
        6,
        record_every=2,
        watch=lambda step, loss: seen.append(step),
    )
    assert seen == [2, 4, 6]
    assert len(projected) == 6


def test_denormals_are_flushed_only_inside():
    tiny = torch.tensor(1e-38)
    assert (tiny / 10).item() != 0
    with flushed_denormals():
        assert (tiny / 10).item() == 0
        with flushed_denormals():
            pass
        assert (tiny / 10).item() == 0
    assert (tiny / 10).item() != 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 1)), max_size=4), st.floats(0, 1))
def test_steps_by_hand(drops, done):
    drops = sorted(drops)
    expected = 1.0
    for place, factor in drops:
        if done >= place:
            expected = factor
    assert steps(drops)(done) == expected


@pytest.mark.parametrize("drops", [[(0.5, 0.1), (0.2, 0.1)], [(0.0, 0.1)], [(1.5, 0.1)]])
def test_steps_out_of_order_are_refused(drops):
    with pytest.raises(ValueError, match="in order"):
        steps(drops)


@pytest.mark.parametrize("part", [-0.1, 1.0])
def test_warm_up_must_leave_room(part):
    with pytest.raises(ValueError, match="part="):
        warm_up(constant, part)


SETTINGS = RepresentationSettings()


def test_schedules_by_name():
    cosine = make_schedule(dataclasses.replace(SETTINGS, warm_up_epochs=1), 10)
    assert cosine(0.0) == 0
    assert cosine(0.05) == pytest.approx(0.5 * 0.5 * (1 + np.cos(np.pi * 0.05)))
    steps = make_schedule(dataclasses.replace(SETTINGS, schedule="steps", drops=((0.5, 0.1),)), 5)
    assert (steps(0.4), steps(0.6)) == (1.0, 0.1)
    with pytest.raises(ValueError, match="Did you mean 'cosine'"):
        make_schedule(dataclasses.replace(SETTINGS, schedule="cosin"), 5)


@pytest.fixture
def join(tmp_path):
    def join_alone():
        meeting = f"file://{tmp_path / 'meeting'}"
        distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)

    yield join_alone
    if distributed.is_initialized():
        distributed.destroy_process_group()


def test_a_group_that_was_joined_within_is_left(join):
    with leave_group_at_end():
        join()
    assert not distributed.is_initialized()


def test_a_group_that_was_there_before_stays(join):
    join()
    with leave_group_at_end():
        pass
    assert distributed.is_initialized()


def test_where_something_failed_nobody_is_waited_for(join):
    def fail():
        join()
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), leave_group_at_end():
        fail()
    assert distributed.is_initialized()


REFUSED = [CaptureError("called a synchronizing CUDA operation"), torch.OutOfMemoryError("full")]


@pytest.mark.parametrize("refused", REFUSED, ids=["waits", "memory"])
@pytest.mark.parametrize("kind", [CapturedDriver, SlicedDriver])
def test_steps_that_cannot_be_captured_are_taken_plainly(kind, refused, recwarn):
    class Refusing(kind):
        def _record(self, step, after=None):
            raise refused

    def model():
        torch.manual_seed(1)
        layer = torch.nn.Linear(2, 1)
        return layer, torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    rows, factors = (torch.randn(7, 2), torch.randn(7, 1)), [1.0, 0.5, 0.1]
    batches = [tuple(part[start : start + 3] for part in rows) for start in (0, 3, 6)]
    (plain, optimizer), (captured, another) = model(), model()
    by_hand = PlainDriver(lambda b: (plain(b[0]) - b[1]).square().mean(), optimizer)
    driver = Refusing(captured, lambda b: (captured(b[0]) - b[1]).square().mean(), another)
    places = driver.begin(rows, 3, factors) if kind is SlicedDriver else batches
    for batch, place, factor in zip(batches, places, factors, strict=True):
        by_hand.set_rate(factor)
        driver.set_rate(factor)
        torch.testing.assert_close(driver.advance(place), by_hand.advance(batch))
    [warning] = recwarn
    assert str(warning.message).startswith("Steps are not captured as a CUDA graph: ")
    torch.testing.assert_close(captured.state_dict(), plain.state_dict())

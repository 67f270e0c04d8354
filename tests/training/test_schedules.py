"""Schedules, each against its definition."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.training import constant, steps, warm_up
from protail.training.settings import RepresentationSettings
from protail.training.stage1 import make_schedule


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

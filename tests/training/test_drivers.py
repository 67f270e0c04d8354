"""The group of processes that is joined for a training."""

import pytest
from torch import distributed

from protail.training.loop import leave_group_at_end


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

"""What processes of one training know of each other; tests/faults/test_ranks.py starts some."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from torch import distributed

from protail.training import ProcessError, Processes, first_to_tell, processes
from reference.patience import PATIENCE

TIMEOUT = 0.5  # seconds; a process of which nothing was heard for 1.15 is silent


@pytest.fixture
def two():
    """Two processes, as two objects that share a store."""
    store = distributed.HashStore()
    store.set("machine 1", "node-b")
    kinds = [SimpleNamespace(global_rank=rank, world_size=2) for rank in (0, 1)]
    both = [Processes(kind, TIMEOUT, store) for kind in kinds]
    yield both
    for each in both:
        each.end()


@pytest.fixture
def torchrun(monkeypatch):
    """The surroundings of one of two processes that torchrun starts, with its store."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    names = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": store.port}
    for name, value in (names | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, str(value))
    return store


def wait_for_the_first(process):
    with process.first_alone():
        pass


def test_the_others_wait_as_long_as_the_first_one_lives(two):
    first, other = two
    with ThreadPoolExecutor() as pool:
        with first.first_alone():
            waiting = pool.submit(wait_for_the_first, other)
            time.sleep(4 * TIMEOUT)
            assert not waiting.done()
            assert other.silent() == {}
        waiting.result(timeout=PATIENCE)


def test_a_first_one_that_is_silent_is_not_waited_for(two):
    first, other = two
    first.end()
    begin = time.monotonic()
    with pytest.raises(ProcessError, match=r"^process 0 on .* has been silent for \d seconds"):
        wait_for_the_first(other)
    assert time.monotonic() - begin > TIMEOUT
    assert list(other.silent()) == [0]


def test_where_the_store_has_gone_nobody_is_called_silent():
    class Gone(distributed.HashStore):
        def add(self, key, amount):
            raise distributed.DistNetworkError("gone")

    store = Gone()
    store.set("machine 1", "node-b")
    process = Processes(SimpleNamespace(global_rank=0, world_size=2), TIMEOUT, store)
    time.sleep(3 * TIMEOUT)
    assert process.silent() == {}


def test_many_that_are_silent_are_not_all_named(two):
    first, _ = two
    first._machines = ["a", "b", "c", "d", "e"]
    words = first.in_words(dict.fromkeys([1, 2, 3, 4], 7.0))
    assert "process 3 on d has been silent for 7 seconds; ..." in words


def test_one_process_tells_in_every_attempt(torchrun, monkeypatch):
    assert [first_to_tell() for _ in range(3)] == [True, False, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert [first_to_tell() for _ in range(2)] == [True, False]


def test_where_nobody_can_be_asked_every_process_tells(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert first_to_tell()
    assert first_to_tell()


def test_processes_that_do_not_come_are_counted(torchrun, monkeypatch):
    monkeypatch.setattr(processes, "TIMEOUT", 0.5)
    with pytest.raises(ProcessError, match="1 of 2 processes of this training have come"):
        processes._meet(2)

"""What a step takes, by a clock that the tests move, and on a GPU."""

import pytest
import torch

from protail.bench._step_times import _HostWatch, timed_steps
from protail.training.loop import interleave, make_streams

CPU = torch.device("cpu")


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

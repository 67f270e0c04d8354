"""What a step of a training takes beside others, measured on one in some."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from protail.training.loop import Steps

Result = TypeVar("Result")
# A prime, so that the last step of an epoch, after which others wait, has its turn too.
_EVERY = 61
# The first steps are recorded, and take long.
_FIRST = 20
_KEPT = 32


class _Watch(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def read(self) -> float | None: ...


class _HostWatch:
    """Of steps that are over when they return."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began = clock, 0.0
        self._took: float | None = None

    def start(self) -> None:
        self._began = self._clock()

    def stop(self) -> None:
        self._took = self._clock() - self._began

    def read(self) -> float | None:
        return self._took


class _StreamWatch:
    """Of steps that a GPU takes later, on the stream that is current; nobody waits for it."""

    def __init__(self) -> None:
        make: Any = torch.cuda.Event
        self._began, self._ended = make(enable_timing=True), make(enable_timing=True)

    def start(self) -> None:
        self._began.record()

    def stop(self) -> None:
        self._ended.record()

    def read(self) -> float | None:
        if not self._ended.query():
            return None
        return float(self._began.elapsed_time(self._ended)) / 1000


def timed_steps(
    steps: Steps[Result],
    tell: Callable[[float], None],
    device: torch.device,
    watch: _Watch | None = None,
) -> Steps[Result]:
    """Train as ``steps`` does, and tell what its steps take.

    Trainings at once take a step each in turn: what one is told beside the others is its share of
    the time of all.

    Parameters
    ----------
    steps : generator
        Hands over after every step.
    tell : callable
        Told the seconds of a step, the mean of the last that were measured, now and then.
    device : torch.device
        Where it trains.
    watch : optional
        What to measure with.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    object
        What ``steps`` returned.
    """
    if watch is None:
        watch = _StreamWatch() if device.type == "cuda" else _HostWatch()
    measured: deque[float] = deque(maxlen=_KEPT)
    number = 0
    while True:
        is_measured = number >= _FIRST and (number - _FIRST) % _EVERY == 0
        if is_measured:
            watch.start()
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if is_measured:
            watch.stop()
        yield
        number += 1
        # Long enough after it to be over, wherever it ran.
        if number >= _FIRST and (number - _FIRST) % _EVERY == _EVERY // 2:
            seconds = watch.read()
            if seconds is not None:
                measured.append(seconds)
                tell(sum(measured) / len(measured))

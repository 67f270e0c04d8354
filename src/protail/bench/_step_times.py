"""What a step of a training takes beside others, measured on one in some."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from protail.training.loop import Steps

Result = TypeVar("Result")
# Few epochs have a multiple of so many steps: the first one, with what an epoch begins with, has
# its turn as often as any other.
_EVERY = 7
# The first steps are recorded, and take long.
_FIRST = 20
_KEPT = 512


class Watch(Protocol):
    """Measures one step."""

    def start(self) -> None:
        """Say that the step begins."""

    def stop(self) -> None:
        """Say that the step has been asked for."""

    def read(self) -> float | None:
        """Give its seconds; None while it is not over."""


class _HostWatch:
    """Of a step that is over when it returns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began, self._took = clock, 0.0, 0.0

    def start(self) -> None:
        self._began = self._clock()

    def stop(self) -> None:
        self._took = self._clock() - self._began

    def read(self) -> float | None:
        return self._took


class _StreamWatch:
    """Of a step that a GPU takes later, on the stream that is current; nobody waits for it."""

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
    make_watch: Callable[[], Watch] | None = None,
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
    make_watch : callable, optional
        Gives what to measure a step with.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    object
        What ``steps`` returned.
    """
    if make_watch is None:
        make_watch = _StreamWatch if device.type == "cuda" else _HostWatch
    # A GPU may be hundreds of steps behind.
    not_over: deque[Watch] = deque()
    measured: deque[float] = deque(maxlen=_KEPT)
    number = 0
    while True:
        watch = make_watch() if number >= _FIRST and number % _EVERY == 0 else None
        if watch is not None:
            watch.start()
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if watch is not None:
            watch.stop()
            not_over.append(watch)
        yield
        number += 1
        seconds = not_over[0].read() if not_over else None
        if seconds is not None:
            not_over.popleft()
            measured.append(seconds)
            tell(sum(measured) / len(measured))

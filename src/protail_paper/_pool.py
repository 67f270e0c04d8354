"""Which training is begun next, and the time that each of several at once takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from protail.training import Steps
from protail_paper.groups import Group

Result = TypeVar("Result")
Forecast = Callable[[Group], float | None]
Clock = Callable[[], float]

# Few epochs have a multiple of so many steps: the first one, with what an epoch begins with, is
# measured as often as any other.
_EVERY = 7
# The first steps are captured, and take long.
_FIRST = 20
_KEPT = 512


@dataclass(eq=False)
class Begun:
    """A training that has begun.

    ``expected`` are the seconds it was thought to take beside others (0 where nothing told),
    ``seconds`` its part of the time so far, ``step`` the seconds that a step of it takes beside
    the others (None while unknown), and ``guessed`` the part of its seconds that is an equal
    fraction, because step times were not known. ``run`` is the folder that keeps its checkpoints.
    """

    group: Group
    expected: float
    seconds: float = 0.0
    step: float | None = None
    guessed: float = 0.0
    run: Path = Path()

    @property
    def took(self) -> dict[str, float | None]:
        """What a checkpoint of it says, for `take_up`."""
        return {"seconds": self.seconds, "guessed": self.guessed, "step": self.step}

    def take_up(self, took: Mapping[str, float | None]) -> None:
        """Count what it took before it was killed."""
        self.seconds += took["seconds"] or 0.0
        self.guessed += took["guessed"] or 0.0
        self.step = took["step"]

    @property
    def left(self) -> float:
        """Seconds that it is thought to take yet."""
        return max(0.0, self.expected - self.seconds)


class Pool:
    """Hand out trainings while there is time for them, and share the time among those at once.

    ``groups`` come the most wanted first. ``expected`` gives the seconds that a group is thought
    to take beside others, None if nothing tells. ``budget`` are the seconds for all of them.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        expected: Forecast,
        budget: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.waiting = list(groups)
        self._expected, self._clock = expected, clock
        self._now = clock()
        self._end = None if budget is None else self._now + budget
        self._going_on: list[Begun] = []
        self._may_fit, self._has_told = True, False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being trained: then what is waiting has no time."""
        return not self._going_on

    def begin(self) -> Begun | None:
        """Begin the first training that is likely to end in time; None if there is none now."""
        self._share_time()
        # What does not fit beside the others fits no better before one of them has ended.
        for place, group in enumerate(self.waiting if self._may_fit else ()):
            seconds = self._expected(group)
            if self._fits(seconds):
                begun = Begun(self.waiting.pop(place), seconds or 0.0)
                self._going_on.append(begun)
                return begun
        self._may_fit = False
        return None

    def tell_step(self, begun: Begun, seconds: float) -> None:
        """Say what a step of a training takes now, beside the others."""
        if self._all_known:
            self._share_time()
        begun.step = seconds  # what has passed until all are known is shared by what they are then

    def end(self, begun: Begun, *, well: bool = True) -> None:
        """Say that a training has ended; one that ended well tells how long others take."""
        self._share_time()
        self._going_on.remove(begun)
        self._has_told |= well
        self._may_fit = True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do something that no training is charged with."""
        self._share_time()
        yield
        self._now = self._clock()

    @property
    def _all_known(self) -> bool:
        return all(begun.step is not None for begun in self._going_on)

    def _share_time(self) -> None:
        """Charge those at once with what has passed: by what their steps take, else equally.

        Each takes a step in turn, so that they take as many.
        """
        before, self._now = self._now, self._clock()
        steps = [begun.step or 0.0 for begun in self._going_on]
        by_steps = self._all_known and sum(steps) > 0
        for begun, step in zip(self._going_on, steps, strict=True):
            fraction = step / sum(steps) if by_steps else 1 / len(steps)
            begun.seconds += fraction * (self._now - before)
            begun.guessed += 0.0 if by_steps else fraction * (self._now - before)

    def _fits(self, seconds: float | None) -> bool:
        """Say whether one that takes so long, beside others, would end in time.

        Fewer at once take longer each, and the first steps take a while: the longest is counted
        twice. Where nothing tells how long one takes, one alone is to tell, unless one has told.
        """
        if self._end is None:
            return True
        if self._end <= self._now:
            return False
        if seconds is None:
            return self.is_idle and not self._has_told
        longest = max([seconds, *(begun.expected for begun in self._going_on)])
        together = seconds + sum(begun.left for begun in self._going_on)
        return together + longest <= self._end - self._now


class _HostWatch:
    """Measures a step that is over when it returns."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock, self._began, self._took = clock, 0.0, 0.0

    def start(self) -> None:
        self._began = self._clock()

    def stop(self) -> None:
        self._took = self._clock() - self._began

    def read(self) -> float | None:
        """Give its seconds; None while it is not over."""
        return self._took


class _StreamWatch(_HostWatch):
    """Measures a step that a GPU takes later, on the current stream; nobody waits for it."""

    def __init__(self) -> None:
        make: Any = torch.cuda.Event
        self._events = [make(enable_timing=True) for _ in range(2)]

    def start(self) -> None:
        self._events[0].record()

    def stop(self) -> None:
        self._events[1].record()

    def read(self) -> float | None:
        began, ended = self._events
        return float(began.elapsed_time(ended)) / 1000 if ended.query() else None


def timed_steps(
    steps: Steps[Result],
    tell: Callable[[float], None],
    device: torch.device,
    make_watch: Callable[[], Any] | None = None,
) -> Steps[Result]:
    """Train as ``steps`` does, and tell the mean seconds of its last steps now and then.

    Trainings at once take a step each in turn: what one is told beside the others is its part of
    the time of all.
    """
    if make_watch is None:
        make_watch = _StreamWatch if device.type == "cuda" else _HostWatch
    # A GPU may be hundreds of steps behind.
    not_over: deque[Any] = deque()
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

"""Which training is begun next, and what each of several at once took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protail.bench.groups import Group

Forecast = Callable[[Group], float | None]
Clock = Callable[[], float]


@dataclass(eq=False)
class Begun:
    """A training that has begun.

    Attributes
    ----------
    group : Group
        What is trained.
    expected : float
        Seconds that it was thought to take beside others; 0 where nothing told.
    seconds : float
        Its share of the time so far.
    step : float or None
        Seconds that a step of it takes beside the others; None as long as nobody knows.
    guessed : float
        The part of its seconds that is an equal share, for want of knowing what steps take.
    """

    group: Group
    expected: float
    seconds: float = 0.0
    step: float | None = None
    guessed: float = 0.0

    @property
    def left(self) -> float:
        """Seconds that it is thought to take yet."""
        return max(0.0, self.expected - self.seconds)


class Pool:
    """Hand out trainings while there is time for them, and share the time among those at once.

    Parameters
    ----------
    groups : iterable of Group
        What is to be trained, the most wanted first.
    expected : callable
        Gives the seconds that a group is thought to take beside others, None if nothing tells.
    budget : float, optional
        Seconds for all of them.
    clock : callable, optional
        Gives the time in seconds.

    Attributes
    ----------
    waiting : list of Group
        What has not begun.

    Examples
    --------
    >>> from protail.bench._pool import Pool
    >>> from protail.bench.groups import Group
    >>> from protail.bench.wanted import Cell, Draw
    >>> groups = [Group((Cell("wd", Draw("cifar100-lt", 100), seed),)) for seed in (0, 1)]
    >>> pool = Pool(groups, lambda group: 60.0, budget=130.0)
    >>> pool.begin().group is groups[0], pool.begin(), len(pool.waiting)
    (True, None, 1)
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
        """Do something that no training is to be charged with."""
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
            share = step / sum(steps) if by_steps else 1 / len(steps)
            begun.seconds += share * (self._now - before)
            begun.guessed += 0.0 if by_steps else share * (self._now - before)

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

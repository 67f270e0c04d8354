"""The one training loop: a driver advances, a stream feeds it, a schedule sets its pace.

Whoever trains brings a `Driver` (what one step is and where it runs) and a stream of
batches. The loop owns everything between the steps: the rate of each, the record of the losses,
the reasons to stop, the report to whoever watches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from protail._stopping import check_stop, in_steps
from protail.training.denormals import flushed_denormals
from protail.training.schedules import Schedule, constant

Batch = TypeVar("Batch", contravariant=True)
Result = TypeVar("Result")
Steps = Generator[None, None, Result]
Streams = Sequence[torch.cuda.Stream]


class Driver(Protocol[Batch]):
    """What a step is: take a batch, move the parameters, say the loss."""

    def set_rate(self, factor: float) -> None:
        """Multiply every base rate by ``factor`` for the steps to come."""

    def advance(self, batch: Batch) -> Tensor:
        """Take one step; return its loss, detached, wherever it lies."""


@dataclass
class History:
    """Losses of the steps that were recorded.

    Attributes
    ----------
    steps : list of int
        How many steps had been taken at each record.
    losses : list of float
        Mean loss of the steps since the record before.
    stopped_early : bool
        Whether the stop rule ended the run.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    stopped_early: bool = False


StopRule = Callable[[History], bool]
Watcher = Callable[[int, float], None]


def train(
    driver: Driver[Batch],
    stream: Iterable[Batch],
    n_steps: int,
    *,
    schedule: Schedule = constant,
    stop: StopRule | None = None,
    watch: Watcher | None = None,
    record_every: int = 10,
    start: int = 0,
) -> History:
    """Take steps until they are done, the stream ends or the stop rule says so.

    Parameters
    ----------
    driver : Driver
        Takes the steps.
    stream : iterable
        Its batches, from step ``start`` on.
    n_steps : int
        Steps of the whole training; the schedule is laid over them.
    schedule : callable
        Maps the part of the training that is done, from 0 up to 1, to a factor on all rates.
    stop : callable, optional
        Asked at every record; True ends the training.
    watch : callable, optional
        Told the steps taken and the loss at every record.
    record_every : int
        Steps between two records; reading a loss makes a GPU wait.
    start : int
        Steps that an earlier, interrupted run had taken.

    Returns
    -------
    History
        What was recorded.

    Examples
    --------
    >>> import torch
    >>> from protail.training import PlainDriver, train
    >>> place = torch.nn.Parameter(torch.tensor(0.0))
    >>> driver = PlainDriver(
    ...     lambda goal: (place - goal) ** 2, torch.optim.SGD([place], lr=0.25)
    ... )
    >>> history = train(driver, [1.0] * 4, 4, record_every=2)
    >>> history.steps, history.losses
    ([2, 4], [0.625, 0.0390625])
    """
    steps = training_steps(
        driver,
        stream,
        n_steps,
        schedule=schedule,
        stop=stop,
        watch=watch,
        record_every=record_every,
        start=start,
    )
    return interleave([steps])[0]


def training_steps(
    driver: Driver[Batch],
    stream: Iterable[Batch],
    n_steps: int,
    *,
    schedule: Schedule = constant,
    stop: StopRule | None = None,
    watch: Watcher | None = None,
    record_every: int = 10,
    start: int = 0,
) -> Steps[History]:
    """Train as `train` does, but hand over after every step.

    Several of these take turns in `interleave`, so that one process keeps a GPU busy with
    several small networks.

    Parameters
    ----------
    driver, stream, n_steps, schedule, stop, watch, record_every, start
        As in `train`.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    History
        What was recorded.

    Examples
    --------
    >>> import torch
    >>> from protail.training import PlainDriver, interleave, training_steps
    >>> place = torch.nn.Parameter(torch.tensor(0.0))
    >>> driver = PlainDriver(lambda goal: (place - goal) ** 2, torch.optim.SGD([place], lr=0.5))
    >>> [history] = interleave([training_steps(driver, [1.0], 1)])
    >>> history.losses, place.item()
    ([1.0], 1.0)
    """
    history, waiting = History(), _Losses()
    step = start
    for batch in stream:
        if step >= n_steps:
            break
        driver.set_rate(schedule(step / n_steps))
        waiting.add(driver.advance(batch))
        step += 1
        yield
        if step % record_every and step < n_steps:
            continue
        _record(history, step, waiting.take(), watch)
        if stop is not None and stop(history):
            history.stopped_early = True
            return history
    if waiting.count:
        _record(history, step, waiting.take(), watch)
    return history


def interleave(trainings: Sequence[Steps[Result]], streams: Streams = ()) -> list[Result]:
    """Let trainings take steps in turn until all of them are done.

    Parameters
    ----------
    trainings : sequence of generators
        Each hands over after every step, as `training_steps` does.
    streams : sequence of torch.cuda.Stream, optional
        One for each training: what it asks of the GPU goes there, beside what the others ask.

    Returns
    -------
    list
        What each of them returned, in the same order.

    Examples
    --------
    >>> from protail.training import interleave
    >>> def count(n):
    ...     for _ in range(n):
    ...         yield
    ...     return n
    >>> interleave([count(3), count(5)])
    [3, 5]
    """
    if streams and len(streams) != len(trainings):
        raise ValueError(
            f"{len(streams)} streams for {len(trainings)} trainings; expected as many."
        )
    results: dict[int, Result] = {}
    with flushed_denormals(), in_steps():
        while len(results) < len(trainings):
            for turn, training in enumerate(trainings):
                if turn in results:
                    continue
                check_stop()
                with torch.cuda.stream(streams[turn] if streams else None):
                    try:
                        next(training)
                    except StopIteration as end:
                        results[turn] = end.value
    return [results[turn] for turn in range(len(trainings))]


def make_streams(device: torch.device, n: int) -> list[torch.cuda.Stream]:
    """Make a stream for each of several trainings at once; none where there is no GPU.

    Parameters
    ----------
    device : torch.device
        Where they train.
    n : int
        How many there are.

    Returns
    -------
    list of torch.cuda.Stream
        For `interleave`.

    Examples
    --------
    >>> import torch
    >>> from protail.training.loop import make_streams
    >>> make_streams(torch.device("cpu"), 4)
    []
    """
    if device.type != "cuda":
        return []
    torch.backends.cudnn.benchmark = True
    return [torch.cuda.Stream(device) for _ in range(n)]  # type: ignore[no-untyped-call]


def diverged(history: History) -> bool:
    """Stop when the loss is no number any more.

    Parameters
    ----------
    history : History
        The run so far.

    Returns
    -------
    bool
        True when the last record is infinite or not a number.

    Examples
    --------
    >>> from protail.training import History, diverged
    >>> diverged(History([1, 2], [0.5, float("nan")]))
    True
    """
    last = history.losses[-1]
    return not -float("inf") < last < float("inf")


class _Losses:
    """A sum that stays where the losses lie until someone reads it."""

    def __init__(self) -> None:
        self.count = 0
        self._sum: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        with torch.no_grad():
            self._sum = loss.clone() if self._sum is None else self._sum.add_(loss)
        self.count += 1

    def take(self) -> float:
        assert self._sum is not None
        mean = self._sum.item() / self.count
        self._sum, self.count = None, 0
        return mean


def _record(history: History, step: int, loss: float, watch: Watcher | None) -> None:
    history.steps.append(step)
    history.losses.append(loss)
    if watch is not None:
        watch(step, loss)

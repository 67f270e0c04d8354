"""The one training loop, how trainings take turns in it, and what it reports.

Whoever trains brings a `Driver` (what one step is and where it runs) and a stream of
batches. The loop owns everything between the steps: the learning rate of each, the record of the
losses, the reasons to stop, the report to whoever watches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from protail._stopping import check_stop, in_steps
from protail.training.schedules import Schedule, constant

Batch = TypeVar("Batch", contravariant=True)
Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A training that hands over after every step, and returns what it came to."""

# Multiplications of a step below which one thread is as fast as many. Starting the others costs
# what they save, and where another program keeps a core busy they wait for each other.
_WORTH_MORE_THREADS = 2**26


class Driver(Protocol[Batch]):
    """What a step is: take a batch, move the parameters, say the loss."""

    def set_rate(self, factor: float) -> None:
        """Multiply every base learning rate by ``factor`` for the steps to come."""

    def advance(self, batch: Batch) -> Tensor:
        """Take one step; return its loss, detached, wherever it lies."""


class DivergenceError(RuntimeError):
    """The loss is not finite any more."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch of training came to.

    Attributes
    ----------
    number : int
        Which epoch, from 0.
    step : int
        Steps taken in all.
    loss : float
        Mean loss of the epoch.
    """

    number: int
    step: int
    loss: float


@dataclass
class History:
    """Losses at the steps where they were recorded.

    Attributes
    ----------
    steps : list of int
        How many steps had been taken at each record.
    losses : list of float
        Mean loss of the steps since the record before.
    stopped_early : bool
        Whether the stop rule ended the training.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    stopped_early: bool = False


StopRule = Callable[[History], bool]
Watcher = Callable[[int, float], None]
"""Told the steps taken and the loss at every record."""


def train(driver: Driver[Batch], stream: Iterable[Batch], n_steps: int, **options: Any) -> History:
    """Take steps until they are done, the stream ends or the stop rule says so.

    Parameters
    ----------
    driver : Driver
        Takes the steps.
    stream : iterable
        Its batches.
    n_steps : int
        Steps of the whole training; the schedule is laid over them.
    **options
        What `training_steps` takes: ``schedule``, ``stop``, ``watch``, ``record_every``,
        ``start``.

    Returns
    -------
    History
        The losses.

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
    return interleave([training_steps(driver, stream, n_steps, **options)])[0]


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
    driver, stream, n_steps
        As in `train`; the stream begins at step ``start``.
    schedule : callable
        Maps the fraction of the training that is done to a factor on all learning rates.
    stop : callable, optional
        Asked at every record; True ends the training.
    watch : callable, optional
        Told the steps taken and the loss at every record.
    record_every : int
        Steps between two records; reading a loss makes a GPU wait.
    start : int
        Steps that an earlier, interrupted run had taken.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    History
        The losses.

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
    history, step, recorded = History(), start, start
    total: Tensor | None = None  # stays where the losses lie until it is read

    def record() -> None:
        nonlocal total, recorded
        assert total is not None
        history.steps.append(step)
        history.losses.append(total.item() / (step - recorded))
        total, recorded = None, step
        if watch is not None:
            watch(step, history.losses[-1])

    for batch in stream:
        if step >= n_steps:
            break
        driver.set_rate(schedule(step / n_steps))
        loss = driver.advance(batch).detach()
        total = loss.clone() if total is None else total.add_(loss)
        step += 1
        yield
        if step % record_every == 0 or step >= n_steps:
            record()
            if stop is not None and stop(history):
                history.stopped_early = True
                return history
    if step > recorded:
        record()
    return history


def interleave(
    trainings: Sequence[Steps[Result]], streams: Sequence[torch.cuda.Stream] = ()
) -> list[Result]:
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
    """Make a CUDA stream for each of ``n`` trainings at once; none where there is no GPU.

    Examples
    --------
    >>> import torch
    >>> from protail.training import make_streams
    >>> make_streams(torch.device("cpu"), 4)
    []
    """
    if device.type != "cuda":
        return []
    torch.backends.cudnn.benchmark = True
    return [torch.cuda.Stream(device) for _ in range(n)]  # type: ignore[no-untyped-call]


def diverged(history: History) -> bool:
    """Stop when the last loss is infinite or NaN.

    Examples
    --------
    >>> from protail.training import History, diverged
    >>> diverged(History([1, 2], [0.5, float("nan")]))
    True
    """
    return not isfinite(history.losses[-1])


@contextmanager
def progress_bar(label: str, n_steps: int) -> Iterator[Watcher]:
    """Show steps and loss as a bar on standard error until the block ends.

    Parameters
    ----------
    label : str
        What is being trained.
    n_steps : int
        Steps of the whole training.

    Yields
    ------
    callable
        The ``watch`` argument of `protail.training.train`.

    Examples
    --------
    >>> from protail.training import progress_bar
    >>> with progress_bar("prototypes", 100) as watch:
    ...     watch(50, 0.25)
    """
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("loss {task.fields[loss]:.3f}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=n_steps, loss=float("nan"))
        yield lambda step, loss: bar.update(task, completed=step, loss=loss)


@contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """Compute with one thread inside the block if the work of a step is small.

    Parameters
    ----------
    multiplications : int
        Of one step's matrix product: rows x classes x channels.

    Examples
    --------
    >>> import torch
    >>> from protail.training import threads_for
    >>> with threads_for(64 * 100 * 512):
    ...     torch.get_num_threads()
    1
    """
    if multiplications >= _WORTH_MORE_THREADS:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat denormal numbers as zero inside the block; gradients of far classes become such.

    A CPU handles them a hundred times slower than others: a fit of a second can take minutes.
    """
    were_flushed = bool(torch.tensor(1e-38) / 10 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(were_flushed)

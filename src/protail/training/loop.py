"""The one training loop, what drives it and what paces it.

A training has a driver (what one step is and where it runs) and a stream of batches. The
loop owns everything between the steps: the learning rate of each, the record of the losses, the
reasons to stop, the report to whoever watches. `PlainDriver` runs on any device, `CapturedDriver`
replays a step as one CUDA graph.
"""

from __future__ import annotations

import bisect
import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from protail._messages import unknown_name
from protail._stopping import check_stop, in_steps
from protail.options import Range

if TYPE_CHECKING:
    from protail.training.settings import ClassifierSettings, RepresentationSettings

Batch = TypeVar("Batch")
TupleBatch = TypeVar("TupleBatch", bound=tuple[Any, ...])
Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A training that hands over after every step, and returns what it came to."""
# Maps the fraction of the training that is done, from 0 up to 1, to a factor on the base rate.
Schedule = Callable[[float], float]

# Multiplications of a step below which one thread is as fast as many. Starting the others costs
# what they save, and where another program keeps a core busy they wait for each other.
_WORTH_MORE_THREADS = 2**26
# Rows that are brought to a GPU at a time.
_FEED_BYTES = 64 * 2**20
# Eager steps before a capture: cuDNN chooses its kernels, compilers compile.
_WARM_UP_STEPS = 3


class DivergenceError(RuntimeError):
    """The loss is not finite any more."""


class CaptureError(RuntimeError):
    """A step cannot be captured: the host would have to wait for the GPU in the middle of it."""


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


def constant(done: float) -> float:
    """Keep the base learning rate.

    Examples
    --------
    >>> from protail.training import constant
    >>> constant(0.5)
    1.0
    """
    return 1.0


def cosine(done: float) -> float:
    """Fall from the base learning rate to 0 along half a cosine.

    Parameters
    ----------
    done : float
        Fraction of the training that is done, from 0 up to 1.

    Returns
    -------
    float
        Factor on the base learning rate.

    Examples
    --------
    >>> from protail.training import cosine
    >>> cosine(0.0), round(cosine(0.5), 12), cosine(1.0)
    (1.0, 0.5, 0.0)
    """
    return 0.5 * (1.0 + math.cos(math.pi * done))


def steps(drops: Sequence[tuple[float, float]]) -> Schedule:
    """Make a schedule that changes at given fractions of the training.

    Parameters
    ----------
    drops : sequence of (float, float)
        From which fraction of the training on, which factor on the base learning rate; in order.

    Returns
    -------
    callable
        1 before the first of them.

    Examples
    --------
    >>> from protail.training import steps
    >>> schedule = steps([(0.8, 0.01), (0.9, 0.0001)])
    >>> schedule(0.5), schedule(0.8), schedule(0.95)
    (1.0, 0.01, 0.0001)
    """
    places = [place for place, _ in drops]
    if places != sorted(places) or not all(0 < place <= 1 for place in places):
        raise ValueError(
            f"drops={list(drops)!r}; expected fractions of the training above 0, in order."
        )
    factors = [1.0, *(factor for _, factor in drops)]
    return lambda done: factors[bisect.bisect_right(places, done)]


def warm_up(schedule: Schedule, part: float) -> Schedule:
    """Let the learning rate rise along a line over the first part of a training.

    Parameters
    ----------
    schedule : callable
        What follows.
    part : float
        How long the rise takes, as a fraction of the training.

    Returns
    -------
    callable
        The schedule with a rise before it; for a part of 0 the schedule itself.

    Examples
    --------
    >>> from protail.training import constant, warm_up
    >>> schedule = warm_up(constant, 0.1)
    >>> schedule(0.0), schedule(0.05), schedule(0.5)
    (0.0, 0.5, 1.0)
    """
    Range(high=1).check("part", part)
    if part == 0:
        return schedule
    return lambda done: min(1.0, done / part) * schedule(done)


def make_schedule(
    settings: RepresentationSettings | ClassifierSettings, n_epochs: float
) -> Schedule:
    """Make the schedule that settings name, for a stage of so many epochs.

    Examples
    --------
    >>> from protail.training import RepresentationSettings
    >>> from protail.training.loop import make_schedule
    >>> risen = make_schedule(RepresentationSettings(warm_up_epochs=5.0), 100)
    >>> risen(0.0), risen(0.05) > 0.99
    (0.0, True)
    """
    shapes = {"cosine": cosine, "constant": constant, "steps": steps(settings.drops)}
    if settings.schedule not in shapes:
        raise ValueError(unknown_name("schedule", settings.schedule, shapes))
    # A limit on the steps may end a stage before its learning rate has risen.
    rise = min(settings.warm_up_epochs / max(n_epochs, 1e-9), 1 - 1e-9)
    return warm_up(shapes[settings.schedule], rise)


class PlainDriver(Generic[Batch]):
    """Take a step with autograd and a torch optimiser: loss, gradient, update.

    Parameters
    ----------
    loss : callable
        Maps a batch to a number with a gradient.
    optimizer : torch.optim.Optimizer
        Moves the parameters; its learning rates at this moment are the base rates.
    after_step : callable, optional
        Called after each step, for instance to project the parameters.
    backward : callable, default=torch.Tensor.backward
        Computes the gradients of a loss; that of a `lightning.fabric.Fabric` averages them over all
        processes, for an optimiser and a module that its ``setup`` gave.

    Examples
    --------
    >>> import torch
    >>> from protail.training import PlainDriver
    >>> place = torch.nn.Parameter(torch.tensor(0.0))
    >>> driver = PlainDriver(lambda goal: (place - goal) ** 2, torch.optim.SGD([place], lr=0.5))
    >>> driver.advance(3.0), place.item()
    (tensor(9.), 3.0)
    """

    def __init__(
        self,
        loss: Callable[[Batch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[], None] | None = None,
        backward: Callable[[Tensor], Any] = torch.Tensor.backward,
    ) -> None:
        self._loss, self._optimizer = loss, optimizer
        self._after_step, self._backward = after_step, backward
        self._base_rates = [group["lr"] for group in optimizer.param_groups]

    def set_rate(self, factor: float) -> None:
        """Multiply every base learning rate by ``factor`` for the steps to come."""
        for group, base in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor

    def advance(self, batch: Batch) -> Tensor:
        """Take one step and return the loss before it, detached."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        self._backward(loss)
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        return loss.detach()


class CapturedDriver(PlainDriver[TupleBatch]):
    """Take a step by replaying a CUDA graph of it.

    A step of a small network is hundreds of kernels that take less time to run than to launch.
    Captured once for each batch size, they are launched together. What a step reads must stay
    where it is: parameters and buffers change in place, learning rates are tensors on the device.
    Where a step cannot be captured, or the graph does not fit beside the rest, a warning says so
    and steps are taken as `PlainDriver` takes them.

    Parameters
    ----------
    module : nn.Module
        Whose parameters and buffers a step may change.
    loss : callable
        Maps a batch, a tuple of tensors, to a number with a gradient; pure tensor code on the
        device.
    optimizer : torch.optim.Optimizer
        Moves the parameters; its learning rates at this moment are the base rates. SGD with
        ``fused=True`` can be captured.
    after_step : callable, optional
        Captured behind each step, for instance to project the parameters.

    Examples
    --------
    >>> import torch
    >>> from protail.training import CapturedDriver
    >>> model = torch.nn.Linear(2, 1, device="cuda")  # doctest: +SKIP
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)  # doctest: +SKIP
    >>> driver = CapturedDriver(model, lambda b: model(b[0]).sum(), optimizer)  # doctest: +SKIP
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[TupleBatch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(loss, optimizer, after_step)
        self._module = module
        device = next(p for group in optimizer.param_groups for p in group["params"]).device
        rates = [float(rate) for rate in self._base_rates]
        # In double, as other drivers multiply them, and all in one tensor: one kernel sets them.
        self._base_tensor = torch.tensor(rates, device=device, dtype=torch.float64)
        self._rates = self._base_tensor.float()
        for place, group in enumerate(optimizer.param_groups):
            group["lr"] = self._rates[place]
        self._last_loss = torch.zeros((), device=device)
        # By the shapes of the batch: the graph, and the tensors that it reads.
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._is_plain = False

    def set_rate(self, factor: float) -> None:
        """Multiply every base learning rate by ``factor`` for the steps to come."""
        torch.mul(self._base_tensor, factor, out=self._rates)

    def advance(self, batch: TupleBatch) -> Tensor:
        """Take one step and return the loss before it; the next step overwrites it.

        The first batch of every combination of shapes is captured.
        """
        shapes = tuple(None if part is None else part.shape for part in batch)
        if shapes not in self._graphs:
            captured = self._if_possible(lambda: self._capture(batch))
            if captured is None:
                return super().advance(batch)
            self._graphs[shapes] = captured
        graph, inputs = self._graphs[shapes]
        for own, part in zip(inputs, batch, strict=True):
            if own is not None:
                own.copy_(part)
        graph.replay()
        return self._last_loss

    def _if_possible(self, capture: Callable[[], Result]) -> Result | None:
        """Capture; None, and why once, where that cannot be done: steps are taken plainly then."""
        if self._is_plain:
            return None
        try:
            return capture()
        except (CaptureError, torch.OutOfMemoryError) as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"Steps are not captured as a CUDA graph: {reason}", stacklevel=3)
            self._is_plain = True
            return None

    def _capture(self, batch: TupleBatch) -> tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]:
        inputs: tuple[Any, ...] = tuple(None if part is None else part.clone() for part in batch)
        own = _same_kind(batch, inputs)
        return self._record(lambda: self._step(own)), inputs

    def _record(
        self, step: Callable[[], None], after: Callable[[], None] | None = None
    ) -> torch.cuda.CUDAGraph:
        """Capture a step, and behind it what must not happen while warming up."""
        # Only the first batch size is worth compiling for; the last, smaller batch of an epoch
        # comes once in hundreds of steps.
        stance: Literal["force_eager", "default"] = "force_eager" if self._graphs else "default"
        stream = torch.cuda.current_stream()
        aside = stream if stream != torch.cuda.default_stream() else torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(stream)
        try:
            with torch.compiler.set_stance(stance), torch.cuda.stream(aside):
                with self._everything_restored():
                    for _ in range(_WARM_UP_STEPS - 1):
                        step()
                    with _no_waiting():
                        step()
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"
                ):
                    step()
                    if after is not None:
                        after()
        finally:
            stream.wait_stream(aside)
        return graph

    def _step(self, batch: Any) -> None:
        self._last_loss.copy_(super().advance(batch))

    @contextmanager
    def _everything_restored(self) -> Iterator[None]:
        """Undo what happens inside to parameters, buffers and momentum."""
        before = {id(t): t.detach().clone() for t in self._changing()}
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor in self._changing():
                    saved = before.get(id(tensor))
                    # What was not there before, the momentum, starts at zero.
                    tensor.zero_() if saved is None else tensor.copy_(saved)

    def _changing(self) -> Iterator[Tensor]:
        yield from self._module.parameters()
        yield from self._module.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Raise where the host waits for the GPU, which breaks a capture for good once it has begun."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise CaptureError(str(error)) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


class SlicedDriver(CapturedDriver[TupleBatch]):
    """Take steps on batches that lie one behind the other on the device.

    The captured step counts by itself: it takes its rows and its learning rates from tables, so a
    step is one replay of a graph, and nothing is copied. The last batch, if it is smaller, is taken
    kernel by kernel.

    Parameters
    ----------
    module, loss, optimizer, after_step
        As for `CapturedDriver`.

    Examples
    --------
    >>> import torch
    >>> from protail.training.loop import SlicedDriver
    >>> model = torch.nn.Linear(2, 1, device="cuda")  # doctest: +SKIP
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)  # doctest: +SKIP
    >>> driver = SlicedDriver(model, lambda b: model(b[0]).sum(), optimizer)  # doctest: +SKIP
    >>> places = driver.begin((torch.ones(8, 2).cuda(),), 4, [1.0, 0.5])  # doctest: +SKIP
    >>> [driver.advance(place).item() for place in places]  # doctest: +SKIP
    """

    _rows: TupleBatch | None = None
    _graph: torch.cuda.CUDAGraph | None = None
    _feed: _Feed | None = None

    def begin(self, rows: TupleBatch, size: int, factors: Sequence[float]) -> range:
        """Take batches from these rows from now on.

        Parameters
        ----------
        rows : tuple of Tensor
            Batches of ``size`` rows, one behind the other; those that lie on the CPU come to the
            device while earlier ones are learned from.
        size : int
            Rows of a batch; the last may have fewer.
        factors : sequence of float
            What multiplies the base learning rates, for each batch.

        Returns
        -------
        range
            What to give to `advance`, in this order.
        """
        device, n_rows = self._last_loss.device, len(rows[0])
        self._n_rows, self._size = n_rows, size
        self._feed = None if rows[0].device == device else _Feed(rows, size, device)
        self._rows = rows if self._feed is None else _same_kind(rows, self._feed.here)
        self._index = torch.arange(size, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        by_step = torch.tensor(factors, dtype=torch.float64, device=device).unsqueeze(1)
        self._table = (by_step * self._base_tensor).float()
        if self._feed is not None:
            self._feed.advance(0)
        if n_rows >= size:
            self._graph = self._if_possible(lambda: self._record(self._step_of_slice, self._count))
        return range(-(-n_rows // size))

    def end(self) -> None:
        """Let go of the rows."""
        if self._feed is not None:
            self._feed.end()
        self._rows = self._graph = self._feed = None

    def set_rate(self, factor: float) -> None:
        """Do nothing: `begin` was told all rates."""

    def advance(self, batch: Any) -> Tensor:
        """Take the step of a place that `begin` gave; places come in order."""
        assert self._rows is not None
        n_left = min(self._size, self._n_rows - batch * self._size)
        if self._feed is not None:
            self._feed.advance(batch)
        if self._graph is not None and n_left == self._size:
            self._graph.replay()
            return self._last_loss
        self._rates.copy_(self._table[batch])
        start = batch * self._size % len(self._rows[0])
        last = [part[start : start + n_left] for part in self._rows]
        self._step(_same_kind(self._rows, last))
        return self._last_loss

    def _step_of_slice(self) -> None:
        assert self._rows is not None
        torch.index_select(self._table, 0, self._place, out=self._rates.unsqueeze(0))
        self._step(
            _same_kind(self._rows, [part.index_select(0, self._index) for part in self._rows])
        )

    def _count(self) -> None:
        self._index.add_(self._size)
        if self._feed is not None:
            self._index.remainder_(len(self._feed.here[0]))
        self._place.add_(1)


class _Feed:
    """Brings rows from the CPU to a GPU in chunks: one is learned from while the next one comes.

    A thread copies a chunk to pinned memory, from where a stream of its own fetches it.
    """

    def __init__(self, rows: Sequence[Tensor], size: int, device: torch.device) -> None:
        per_row = max(1, sum(part[:1].nbytes for part in rows))
        whole = -(-len(rows[0]) // size)
        self._steps = max(2, min(whole, _FEED_BYTES // (per_row * size)))
        self._rows, self._length = rows, self._steps * size
        self.here = [part.new_empty(self._shape(part), device=device) for part in rows]
        self._pinned = [part.new_empty(self._shape(part), pin_memory=True) for part in rows]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._came: list[torch.cuda.Event] = []
        self._staging = ThreadPoolExecutor(1)
        self._staged = [self._staging.submit(self._stage, number) for number in range(2)]
        self._fetch(0)

    def _shape(self, part: Tensor) -> tuple[int, ...]:
        return 2 * self._length, *part.shape[1:]

    def _half(self, number: int) -> tuple[slice, int]:
        """Give where a chunk lies in the pinned memory and on the device, and its length."""
        begin = number % 2 * self._length
        n_rows = max(0, min(self._length, len(self._rows[0]) - number * self._length))
        return slice(begin, begin + n_rows), n_rows

    def _stage(self, number: int) -> None:
        if number >= 2:
            self._came[number - 2].synchronize()
        half, n_rows = self._half(number)
        begin = number * self._length
        for part, pinned in zip(self._rows, self._pinned, strict=True):
            pinned[half].copy_(part[begin : begin + n_rows])

    def _fetch(self, number: int) -> None:
        """Let a chunk come after the steps that were asked for so far; stage the one after next."""
        self._staged[number].result()
        half, _ = self._half(number)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for pinned, here in zip(self._pinned, self.here, strict=True):
                here[half].copy_(pinned[half], non_blocking=True)
            self._came.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
            self._came[-1].record()
        self._staged.append(self._staging.submit(self._stage, number + 2))

    def advance(self, batch: int) -> None:
        """Be told that the step of a batch comes next."""
        number, step = divmod(batch, self._steps)
        if step == 0:
            self._came[number].wait()
        if step == self._steps // 2 and self._half(number + 1)[1]:
            self._fetch(number + 1)

    def end(self) -> None:
        """Let the thread end; whoever gets the memory next waits for what is still coming."""
        self._staging.shutdown(cancel_futures=True)
        torch.cuda.current_stream().wait_stream(self._stream)


def _same_kind(batch: tuple[Any, ...], parts: Sequence[Any]) -> Any:
    """Make a batch of the same type, a named tuple or a plain one."""
    make: Any = type(batch)
    return make(*parts) if hasattr(batch, "_fields") else make(parts)


def train(
    driver: PlainDriver[Batch], stream: Iterable[Batch], n_steps: int, **options: Any
) -> History:
    """Take steps until they are done, the stream ends or the stop rule says so.

    Parameters
    ----------
    driver : PlainDriver
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
    driver: PlainDriver[Batch],
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
    return not math.isfinite(history.losses[-1])


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

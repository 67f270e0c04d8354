"""How far a command has come, and how long it will take: a bar, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from protail._messages import counted
from protail.cli.command import Voice, console

if TYPE_CHECKING:
    from protail.experiments import Job, Progress

Watcher = Callable[["Progress"], None]

_FIRST_WORD_AFTER = 2.0
_LINES = 10
# What is beside the words of a bar: "seed 4", the least that shows a bar, and spaces.
_BESIDE = 16


@contextmanager
def row_progress(
    voice: Voice, n_rows: int, done: int = 0, what: str = "row"
) -> Iterator[Callable[[int], None]]:
    """Show rows done: a bar for whoever watches, one line with the time needed otherwise.

    Parameters
    ----------
    voice : Voice
        Who tells it.
    n_rows : int
        Rows in all.
    done : int
        Rows that an earlier start has done.
    what : str, default="row"
        What one is called.

    Yields
    ------
    callable
        Call it with the number of rows done since the last call.
    """
    if voice.is_watched:
        with _row_bar(n_rows, done, what) as advance:
            yield advance
    else:
        yield _Forecast(voice, n_rows - done, what)


@contextmanager
def _row_bar(n_rows: int, done: int, what: str) -> Iterator[Callable[[int], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(f"{what}s"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=n_rows, completed=done)
        yield lambda rows: bar.advance(task, rows)


class _Forecast:
    """Say once how long the rest will take, when enough is done to know; nothing if it is short."""

    def __init__(self, voice: Voice, n_rows: int, what: str) -> None:
        self._voice, self._what = voice, what
        self._left = n_rows
        self._done = 0
        self._begin: float | None = None
        self._said = False

    def __call__(self, rows: int) -> None:
        now = time.perf_counter()
        self._left -= rows
        if self._begin is None:
            # The first block pays for what is set up only once.
            self._begin = now
            return
        self._done += rows
        passed = now - self._begin
        if not self._said and passed >= _FIRST_WORD_AFTER and self._left > 0:
            seconds = self._left * passed / self._done
            to_go = counted(self._left, self._what)
            self._voice.say(f"{to_go} to go: about {in_words(seconds)}.")
            self._said = True


def in_words(seconds: float) -> str:
    """Write a duration as people say it.

    Examples
    --------
    >>> from protail.cli.progress import in_words
    >>> in_words(42.3), in_words(200), in_words(9000)
    ('42 s', '3 min 20 s', '2 h 30 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def training_progress(voice: Voice, jobs: Sequence[Job]) -> Iterator[Watcher]:
    """Show epochs, loss, accuracy by group and time left until the block ends.

    Parameters
    ----------
    voice : Voice
        Who tells it.
    jobs : sequence of Job
        What is being trained.

    Yields
    ------
    callable
        The ``watch`` argument of `protail.experiments.run_jobs`.
    """
    if voice.is_watched:
        with _training_bars(jobs) as watch:
            yield watch
    else:
        yield _Lines(voice)


@contextmanager
def _training_bars(jobs: Sequence[Job]) -> Iterator[Watcher]:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("seed {task.fields[seed]}"),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    clock, screen = _Clock(), console(stderr=True)
    with Bars(*columns, console=screen, transient=True) as bars:
        tasks = {
            job.seed: bars.add_task("", total=job.recipe.n_epochs, seed=job.seed, words="starting")
            for job in jobs
        }

        def watch(progress: Progress) -> None:
            words = _words(progress, clock.left(progress), screen.width - _BESIDE)
            bars.update(tasks[progress.job.seed], completed=progress.epoch, words=words)

        yield watch


class _Lines:
    """Say a line after each tenth of the epochs."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._clock = _Clock()
        self._tenths: dict[int, int] = {}

    def __call__(self, progress: Progress) -> None:
        left = self._clock.left(progress)
        seed, tenth = progress.job.seed, _LINES * progress.epoch // _epochs(progress)
        if tenth > self._tenths.get(seed, 0):
            self._tenths[seed] = tenth
            self._voice.say(f"seed {seed}: {_words(progress, left)}")


class _Clock:
    """Tell the time left from the epochs since the first that was seen.

    The first pays for what is set up only once, and may come late in a training that is resumed.
    """

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, float]] = {}

    def left(self, progress: Progress) -> float | None:
        """Give the seconds left of stage 1; None while nothing is known."""
        now = time.perf_counter()
        epoch, then = self._first.setdefault(progress.job.seed, (progress.epoch, now))
        if progress.epoch == epoch:
            return None
        pace = (now - then) / (progress.epoch - epoch)
        return (_epochs(progress) - progress.epoch) * pace


def _words(progress: Progress, left: float | None, width: int | None = None) -> str:
    """Say how far a training is; what does not fit is left out, but never the time left."""
    parts = {"epoch": f"epoch {progress.epoch}/{_epochs(progress)}"}
    if len(progress.job.phases) > 1:
        parts["phase"] = f" ({progress.phase})"
    parts["loss"] = f", loss {progress.loss:.3f}"
    if progress.scores:
        fractions = (f"{name} {100 * fraction:.1f}" for name, fraction in progress.scores.items())
        parts["scores"] = f", {' '.join(fractions)} %"
    if progress.epoch == _epochs(progress):
        parts["left"] = ", finishing"
    elif left is not None:
        parts["left"] = f", {in_words(left)} left"
    for part in ("scores", "phase", "loss"):
        if width is not None and sum(map(len, parts.values())) > width:
            parts.pop(part, None)
    return "".join(parts.values())


def _epochs(progress: Progress) -> int:
    return progress.job.recipe.n_epochs

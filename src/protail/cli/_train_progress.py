"""How far trainings have come: a bar for each seed, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from protail.cli._progress import in_words
from protail.cli.command import Voice, console

if TYPE_CHECKING:
    from protail.experiments import Job, Progress

Watcher = Callable[["Progress"], None]

_LINES = 10
# What is beside the words of a bar: "seed 4", the least that shows a bar, and spaces.
_BESIDE = 16


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
        with _bars(jobs) as watch:
            yield watch
    else:
        yield _Lines(voice)


@contextmanager
def _bars(jobs: Sequence[Job]) -> Iterator[Watcher]:
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
        shares = (f"{name} {100 * share:.1f}" for name, share in progress.scores.items())
        parts["scores"] = f", {' '.join(shares)} %"
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

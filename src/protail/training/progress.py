"""What a training tells whoever watches it: an epoch, a divergence, a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protail.training.loop import Watcher


class DivergenceError(RuntimeError):
    """The loss is no number any more."""


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
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=n_steps, loss=float("nan"))
        yield lambda step, loss: bar.update(task, completed=step, loss=loss)

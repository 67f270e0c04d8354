"""How far a command has come over its rows, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protail._messages import counted
from protail.cli.command import Voice, console

_FIRST_WORD_AFTER = 2.0


@contextmanager
def row_progress(voice: Voice, n_rows: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show rows done: a bar for whoever watches, one line with the time needed otherwise.

    Parameters
    ----------
    voice : Voice
        Who tells it.
    n_rows : int
        Rows in all.
    done : int
        Rows that an earlier start has done.

    Yields
    ------
    callable
        Call it with the number of rows done since the last call.
    """
    if voice.is_watched:
        with _bar(n_rows, done) as advance:
            yield advance
    else:
        yield _Forecast(voice, n_rows - done)


@contextmanager
def _bar(n_rows: int, done: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("rows"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows", total=n_rows, completed=done)
        yield lambda rows: bar.advance(task, rows)


class _Forecast:
    """Say once how long the rest will take, when enough is done to know; nothing if it is short."""

    def __init__(self, voice: Voice, n_rows: int) -> None:
        self._voice = voice
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
            to_go = counted(self._left, "row")
            self._voice.say(f"{to_go} to go: about {in_words(seconds)}.")
            self._said = True


def in_words(seconds: float) -> str:
    """Write a duration as people say it.

    Examples
    --------
    >>> from protail.cli._progress import in_words
    >>> in_words(42.3), in_words(200), in_words(9000)
    ('42 s', '3 min 20 s', '2 h 30 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

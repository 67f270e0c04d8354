"""A stop that somebody asked for, with Ctrl-C or SIGTERM, at a step where it does no harm.

An exception out of a signal handler is raised wherever Python happens to be: also in a finaliser,
which ignores it, and between two files that belong together. So the handlers here set a flag, and
work that is done in steps looks at it between two of them. Other work they interrupt at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HEARD = b"Stopping after this step; Ctrl-C stops at once.\n"
# What torch says where a worker was ended by somebody else than its loader.
_WORKER_ENDED = "killed by signal: Terminated"


@dataclass
class _Stop:
    is_heard: bool = False  # whether anybody listens: a program that uses the library may not
    is_wanted: bool = False
    blocks: int = 0  # blocks being run that look at the flag
    process: int = 0


_stop = _Stop()


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a block with a KeyboardInterrupt, between two steps of it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread hears signals
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # What a shell runs in the background ignores Ctrl-C; None is a handler that is not Python's.
    ours = [number for number in _SIGNALS if before[number] not in (signal.SIG_IGN, None)]
    _stop.is_heard, _stop.is_wanted, _stop.process = True, False, os.getpid()
    for number in ours:
        signal.signal(number, _ask)
    try:
        with _as_a_stop():
            yield
    except BaseException:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            # torchrun ends all processes once one has ended: this one still has to tell why.
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number in ours:
            signal.signal(number, before[number])
        _stop.is_heard = _stop.is_wanted = False


@contextmanager
def in_steps() -> Iterator[None]:
    """Let no signal interrupt a block: it calls `check_stop` itself, between its steps.

    Only a second Ctrl-C interrupts it. An error that the same signal has made, by ending a worker,
    counts as the stop that was asked for.

    Examples
    --------
    >>> from protail._stopping import check_stop, in_steps
    >>> with in_steps():
    ...     for step in range(3):
    ...         check_stop()  # raises KeyboardInterrupt once a stop is wanted
    """
    check_stop()
    _stop.blocks += 1
    try:
        with _as_a_stop():
            yield
    finally:
        _stop.blocks -= 1


def check_stop() -> None:
    """Raise KeyboardInterrupt if a stop was asked for."""
    if _stop.is_wanted:
        raise KeyboardInterrupt


@contextmanager
def _as_a_stop() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # A batch system may reach a worker before it reaches us.
        _stop.is_wanted |= _stop.is_heard and _WORKER_ENDED in str(error)
        if _stop.is_wanted:
            raise KeyboardInterrupt from error
        raise


def _ask(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _stop.process:
        # A worker that has just been forked: Ctrl-C reaches its parent too, which ends it.
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        return
    was_wanted, _stop.is_wanted = _stop.is_wanted, True
    if not _stop.blocks or (was_wanted and number == signal.SIGINT):
        raise KeyboardInterrupt
    if not was_wanted and os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, _HEARD)  # print would fail where the signal came in the midst of one

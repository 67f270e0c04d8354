"""Who works on a search, and whose turn it is: locks that the system releases with their holder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from protail._files import FileLock, LockedError, explained

_LOCK = "lock"
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.1


class Mutex:
    """One process at a time; whoever comes later waits.

    The process that has it may take it again, and gives it back as often.

    Parameters
    ----------
    folder : Path
        There already; a file called ``lock`` in it is what is locked.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.recipes._search_locks import Mutex
    >>> mutex = Mutex(Path(tempfile.mkdtemp()))
    >>> with mutex, mutex:
    ...     pass
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: FileLock | None = None
        self._depth = 0

    def acquire(self) -> bool:
        """Wait for it, and take it."""
        wait = _FIRST_WAIT
        while self._lock is None:
            try:
                self._lock = FileLock(self._folder / _LOCK)
            except LockedError:
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            except OSError as error:
                raise explained(error, self._folder) from error
        self._depth += 1
        return True

    def release(self) -> None:
        """Give it back."""
        self._depth -= 1
        if self._depth == 0 and self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


@contextmanager
def living(folder: Path) -> Iterator[None]:
    """Be alive, for `is_alive`, as long as the block and the process last.

    Parameters
    ----------
    folder : Path
        The worker's own; made here, and removed at the end.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.recipes._search_locks import is_alive, living
    >>> folder = Path(tempfile.mkdtemp()) / "worker"
    >>> with living(folder):
    ...     is_alive(folder)
    True
    >>> is_alive(folder)
    False
    """
    folder.mkdir(parents=True)
    lock = FileLock(folder / _LOCK)
    try:
        yield
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def is_alive(folder: Path) -> bool:
    """Say whether a worker still is; clear away what a dead one has left."""
    if not (folder / _LOCK).exists():
        return False
    try:
        FileLock(folder / _LOCK).release()
    except LockedError:
        return True
    except FileNotFoundError:  # somebody else has just cleared it away
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return False

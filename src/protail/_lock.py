"""One process at a time: a lock that the system releases when its holder dies.

The package filelock has such a lock too, but none that names its holder, and where the file system
has no locks it falls back, by default, to one that outlives its holder.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    # Windows lets nobody read bytes that are locked: lock one that is not there.
    _FAR = 1 << 30

    def _try_lock(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

    def _is_at(handle: int, path: Path) -> bool:
        return True  # Windows removes no file that is open

else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _is_at(handle: int, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(path))
        except FileNotFoundError:
            return False


_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)


class LockedError(OSError):
    """Say that somebody else holds a lock; ``strerror`` names the holder."""


class FileLock:
    """Hold a lock file from construction to ``release``, or to the end of the process.

    That the file is there means nothing: what counts is the lock on it, which the system takes from
    a process that dies. Where someone else holds it, also another lock of this process, that is a
    `LockedError`. Only with ``signed`` does the file say who holds it, since when.
    """

    def __init__(self, path: Path, *, signed: bool = True) -> None:
        self._path = path
        self._handle: int | None = None
        while self._handle is None:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _try_lock(handle)
                # Its last holder may have removed it meanwhile: then another one counts.
                self._handle = handle if _is_at(handle, path) else None
            except OSError as error:
                if error.errno in _HELD_BY_ANOTHER:
                    raise LockedError(errno.EBUSY, _holder(path)) from None
                raise
            finally:
                if self._handle is None:
                    os.close(handle)
        _HELD.add(self)
        if signed:
            self._sign()

    def release(self, *, remove: bool = False) -> None:
        """Let others in; with ``remove``, leave no lock file."""
        if self._handle is not None:
            if remove:
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._handle)
            self._handle = None

    def _sign(self) -> None:
        assert self._handle is not None
        with suppress(OSError):  # on a full disk the lock holds as well, unsigned
            os.ftruncate(self._handle, 0)
            since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            os.write(self._handle, json.dumps({"pid": os.getpid(), "since": since}).encode())


# A forked child, such as a loader worker, would keep the lock alive after its parent's death.
_HELD: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def _holder(path: Path) -> str:
    try:
        signed = json.loads(path.read_bytes())
        return f"process {signed['pid']}, since {signed['since']}"
    except (OSError, ValueError, LookupError, TypeError):  # it has not signed yet
        return "another process, since this moment"

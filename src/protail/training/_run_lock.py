"""One process at a time: a lock that the system releases when its holder dies."""

from __future__ import annotations

import errno
import json
import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path

from protail._files import explained
from protail.training._run_folder import LOCK, RunError
from protail.training._run_json import read_object
from protail.training._run_surroundings import utc_now

if sys.platform == "win32":
    import msvcrt

    # Windows lets nobody read bytes that are locked: lock one that is not there.
    _FAR = 1 << 30

    def _try_lock(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Lock:
    """Hold a lock file from construction to ``release``, or to the end of the process.

    Parameters
    ----------
    folder : Path
        Whose writing it guards. The lock file in it is made where it is missing, and stays.

    Raises
    ------
    RunError
        When someone else holds it, also another ``Lock`` of this process.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise explained(error, path) from error
        try:
            _try_lock(self._handle)
        except OSError as error:
            self.release()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise RunError(
                    f"{folder}: this run is being written by {_holder(path)}. Wait for its end, "
                    "or choose another folder."
                ) from None
            raise explained(error, path) from error
        _HELD.add(self)
        self._sign()

    def _sign(self) -> None:
        assert self._handle is not None
        with suppress(OSError):  # on a full disk the lock holds as well, unsigned
            os.ftruncate(self._handle, 0)
            text = json.dumps({"pid": os.getpid(), "since": utc_now()})
            os.write(self._handle, text.encode())

    def release(self) -> None:
        """Let others in."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


# A forked child, such as a loader worker, would keep the lock alive after its parent's death.
_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def _holder(path: Path) -> str:
    try:
        signed = read_object(path.read_bytes())
        return f"process {signed['pid']}, since {signed['since']}"
    except (OSError, ValueError, KeyError):  # it has not signed yet
        return "another process, since this moment"

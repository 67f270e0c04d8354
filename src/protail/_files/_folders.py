"""Folders that take each other's place while others read them."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
Identity = tuple[int, int] | None

_AT_CWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux


def beside(place: Path, ending: str) -> Path:
    """Name a hidden neighbour of a place, always the same one, that no other place has."""
    code = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:8]
    return place.with_name(f".{place.name[:50]}.{code}.{ending}")


def new_part(place: Path) -> Path:
    """Name a neighbour in which what is to stand at ``place`` can be written."""
    return beside(place, f"{secrets.token_hex(4)}.part")


def parts_of(place: Path) -> list[Path]:
    """Find every part of a place, be its writer alive or not."""
    begin, found = beside(place, "").name, []
    with suppress(OSError):  # a folder may be written and not be listed
        found = [each for each in place.parent.iterdir() if each.name.startswith(begin)]
    return [each for each in found if each.suffix == ".part"]


def remove(path: Path) -> None:
    """Remove a file or a folder with all it holds, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        _allow_removal(path)
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _allow_removal(folder: Path) -> None:
    """Make a folder and those in it writable: somebody may have put a read-only one there."""
    with suppress(OSError):
        folder.chmod(0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _allow_removal(Path(entry))


def settle(place: Path) -> None:
    """Make good what a writer that died has left: only who writes alone may do this."""
    aside = beside(place, "old")
    if os.path.lexists(aside):
        with suppress(OSError):
            place.rmdir()  # an empty folder is nothing
        if not os.path.lexists(place):
            aside.rename(place)
    for left in (aside, *parts_of(place)):
        remove(left)


def replace_folder(part: Path, place: Path, ours: Callable[[str], bool]) -> None:
    """Put a folder in the place of another one; what is not ``ours`` goes along."""
    written = set(os.listdir(part))

    def is_ours(name: str) -> bool:
        return name in written or ours(name)

    _carry_over(place, part, is_ours)
    shutil.copymode(place, part)
    exchange(part, place)
    try:
        _carry_over(part, place, is_ours)  # what came or was changed since
    except BaseException:
        exchange(part, place)
        raise


def exchange(part: Path, place: Path) -> None:
    """Let two folders take each other's place, at once where the system can do that.

    Elsewhere what stood there waits aside for a moment, where `read_folder` looks for it. A
    process that dies in this moment leaves it there, for readers and the next `settle`.
    """
    try:
        _swap(part, place)
    except OSError:
        aside = beside(place, "old")
        place.rename(aside)
        part.rename(place)
        aside.rename(part)


def read_folder(path: str | os.PathLike[str], read: Callable[[Path], Result]) -> Result:
    """Read several files of a folder that may be replaced meanwhile, all of one version.

    Parameters
    ----------
    path : path-like
        The folder.
    read : callable
        Gets the folder to read; may be called again.

    Returns
    -------
    object
        What ``read`` gave, from a folder that stood there from its beginning to its end. What it
        raises is raised, unless the folder was replaced while it read: then it reads again.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail._files import new_folder, read_folder
    >>> place = Path(tempfile.mkdtemp()) / "model"
    >>> with new_folder(place) as temporary:
    ...     _ = (temporary / "note.txt").write_text("whole")
    >>> read_folder(place, lambda folder: (folder / "note.txt").read_text())
    'whole'
    """
    while True:
        folder = _standing(Path(path))
        with _held(folder) as identity:
            try:
                found = read(folder)
            except Exception:
                if _is_still(folder, identity, Path(path)):
                    raise
            else:
                if _is_still(folder, identity, Path(path)):
                    return found


def _standing(path: Path) -> Path:
    """Find the folder: in its place, or aside while another one is put there."""
    with suppress(ValueError):  # a null byte
        aside = beside(Path(os.path.realpath(path)), "old")
        if not os.path.exists(path) and aside.is_dir():
            return aside
    return path


@contextmanager
def _held(folder: Path) -> Iterator[Identity]:
    """Tell a folder from all others, also from those made while the block runs."""
    handle = None
    with suppress(OSError, ValueError, AttributeError):  # O_DIRECTORY is not everywhere
        # A folder that is open keeps its number when it is removed.
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _identity(folder if handle is None else handle)
    finally:
        if handle is not None:
            os.close(handle)


def _is_still(folder: Path, identity: Identity, path: Path) -> bool:
    """Whether a folder is what stands there, under the same name: set aside, it is not found."""
    now = _standing(path)
    return now == folder and _identity(now) == identity


def _identity(folder: Path | int) -> Identity:
    with suppress(OSError, ValueError):
        found = os.stat(folder)
        return found.st_dev, found.st_ino
    return None


def _swap(one: Path, other: Path) -> None:
    """Exchange two names in one step, or raise OSError where the system has no such step."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    names = os.fsencode(one), os.fsencode(other)
    if renameat2(_AT_CWD, names[0], _AT_CWD, names[1], ctypes.c_uint(_EXCHANGE)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _carry_over(old: Path, new: Path, is_ours: Callable[[str], bool]) -> None:
    """Take along what is not ours and is not there yet: links where possible, else copies."""
    with os.scandir(old) as entries:
        for entry in entries:
            source, target = Path(entry), new / entry.name
            if is_ours(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                target.mkdir(exist_ok=True)
                _carry_over(source, target, lambda name: False)
                shutil.copystat(source, target)
            elif not _is_same(source, target):
                remove(target)
                _link_or_copy(source, target)


def _link_or_copy(source: Path, target: Path) -> None:
    if not source.is_symlink():
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target, follow_symlinks=False)


def _is_same(one: Path, other: Path) -> bool:
    """Whether it is the same file, or a copy that `_link_or_copy` made of it."""
    if not os.path.lexists(other):
        return False
    here, there = one.lstat(), other.lstat()
    return os.path.samestat(here, there) or (
        (here.st_mode, here.st_size, here.st_mtime_ns)
        == (there.st_mode, there.st_size, there.st_mtime_ns)
    )

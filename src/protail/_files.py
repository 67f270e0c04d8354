"""Files and folders that are whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from protail._lock import FileLock, LockedError

Result = TypeVar("Result")
Identity = tuple[int, int] | None

_AT_CWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux
# What locking says where the file system has no locks.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class OutputError(OSError):
    """Say why something cannot be written, and what to do about it."""


def explained(error: OSError, place: Path) -> OutputError:
    """Turn what the system says into what is wrong with ``place`` and what to do."""
    if isinstance(error, OutputError):
        return error
    reasons = {
        errno.ENOSPC: "the disk is full. Free some space, or choose another place.",
        errno.EDQUOT: "your quota is used up. Free some space, or choose another place.",
        errno.EFBIG: "it is larger than files may be here. Choose another place.",
        errno.EROFS: "the file system is read-only. Choose another place.",
        errno.EACCES: "there is no permission to write here. Choose another place.",
        errno.EPERM: "there is no permission to write here. Choose another place.",
        errno.ENOTDIR: "a part of its path is a file, not a folder. Choose another place.",
        errno.EEXIST: "a part of its path is a file, not a folder. Choose another place.",
        errno.EINVAL: "this is no name for a file or folder. Choose another one.",
        errno.ENAMETOOLONG: "its name is too long. Choose a shorter one.",
    }
    code = error.errno or 0
    reason = reasons.get(code, f"{error.strerror or error}. Correct that, or choose another place.")
    return OutputError(code, f"{place} cannot be written: {reason}")


def check_mapped(array: object) -> None:
    """Raise where the file that an array is mapped from has been cut short.

    To touch what is gone would end the process by SIGBUS, without a message.
    """
    mapped, base = None, array
    while base is not None and not isinstance(base, mmap.mmap):
        mapped, base = base, getattr(base, "base", None)
    needed = getattr(mapped, "offset", 0) + getattr(mapped, "nbytes", 0)
    if base is not None and base.size() < needed:
        raise ValueError(
            f"{getattr(mapped, 'filename', None) or 'a file'} has {base.size():,} bytes, and had "
            f"{needed:,} when it was opened; expected that nobody cuts it short meanwhile. Write "
            "or copy it again."
        )


@contextmanager
def new_file(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary name to write to; the file takes its place when the block ends well.

    Missing folders above it are made. A folder is never replaced, a file only with ``overwrite``.
    When the block raises, whatever was written is removed.
    """
    with _placing(path, overwrite=overwrite, folder=False) as place:
        _remove_dead_parts(place)
        temporary = new_part(place)
        lock = _lock_of_part(temporary)
        try:
            yield temporary
            _flush(temporary)
            # Something may have come to stand there while the block was writing.
            _check_place(place, Path(path), overwrite=overwrite, folder=False)
            temporary.replace(place)
        finally:
            remove(temporary)
            if lock is not None:
                lock.release()


@contextmanager
def new_folder(
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    ours: Callable[[str], bool] = lambda name: False,
) -> Iterator[Path]:
    """Give a temporary folder to fill; it takes its place when the block ends well.

    There is no moment without the old or the new folder for `read_folder`, even if the process is
    killed. Where somebody else is writing there, this is an error. A file is never replaced, and an
    empty folder does no harm. What is in a folder that is replaced goes along, unless ``ours`` says
    that an entry of its name may go, or the block has written one.
    """
    placing = _placing(path, overwrite=overwrite, folder=True)
    with placing as place, one_writer(path) as is_alone:
        if is_alone:
            settle(place)
        temporary = new_part(place)
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _flush(file)
            # Something may have come to stand there while the block was writing.
            _check_place(place, Path(path), overwrite=overwrite, folder=True)
            if os.path.lexists(place):
                replace_folder(temporary, place, ours)
            else:
                temporary.rename(place)
        finally:
            remove(temporary)
            if is_alone:
                settle(place)


@contextmanager
def one_writer(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Keep others that write to a place out, until the block ends or the process dies.

    Yields whether nobody else can be writing: False where the file system has no locks. Somebody
    else who is writing there is an `OutputError`.
    """
    lock = None
    try:
        lock = FileLock(beside(_resolved(path), "lock"))
    except LockedError as error:
        raise OutputError(
            errno.EBUSY,
            f"{path} is being written by {error.strerror}; expected to be the only writer. Wait "
            "for its end, or choose another name.",
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise explained(error, Path(path)) from error
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release(remove=True)


def check_free(
    path: str | os.PathLike[str], *, overwrite: bool = False, folder: bool = False
) -> None:
    """Raise unless ``path`` is free to be written; say it before the work, not after."""
    try:
        _check_place(_resolved(path), Path(path), overwrite=overwrite, folder=folder)
    except OSError as error:
        raise explained(error, Path(path)) from error


@contextmanager
def _placing(path: str | os.PathLike[str], *, overwrite: bool, folder: bool) -> Iterator[Path]:
    """Give the place, with the folders above it; say what is wrong with it if something is."""
    place = _resolved(path)
    made: list[Path] = []
    try:
        _check_place(place, Path(path), overwrite=overwrite, folder=folder)
        made = _make_folders(place.parent)
        yield place
        made = []
    except OSError as error:
        if _is_about_another_file(error, place):
            raise
        raise explained(error, Path(path)) from error
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def _lock_of_part(part: Path) -> FileLock | None:
    """Make a part that others see to have a living writer, where the system can say that."""
    if os.name == "nt":  # a file that is open cannot be renamed there
        return None
    while True:
        try:
            return FileLock(part, signed=False)
        except LockedError:  # by somebody who looks whether it is dead: it was not locked yet
            continue
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise


def _remove_dead_parts(place: Path) -> None:
    """Remove the parts of this file whose writers have died: nobody holds their locks."""
    if os.name == "nt":
        return
    for part in parts_of(place):
        if part.is_file():
            with suppress(OSError):
                FileLock(part, signed=False).release(remove=True)


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Follow links: they stay, and what they point to is replaced."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a null byte
        raise explained(OSError(errno.EINVAL, "Invalid argument"), Path(path)) from None


def _check_place(place: Path, shown: Path, *, overwrite: bool, folder: bool) -> None:
    """Raise unless a file or a folder may stand there; neither takes the other's place."""
    if not place.name:
        raise OSError(errno.EINVAL, "no name")
    # A writer that died may have left a folder aside: it is there, for `read_folder`.
    is_there = os.path.lexists(place) or os.path.lexists(beside(place, "old"))
    is_empty = place.is_dir() and not place.is_symlink() and not any(place.iterdir())
    if is_there and not overwrite and not is_empty:
        raise OutputError(
            errno.EEXIST,
            f"{shown} is already there; expected a free name. Choose another one, or allow it to "
            "be replaced (overwrite=True, --overwrite).",
        )
    above = next((folder for folder in place.parents if os.path.exists(folder)), place)
    if not above.is_dir():
        raise OSError(errno.ENOTDIR, "no folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "no permission")
    if os.path.lexists(place) and place.is_dir() != folder:
        here, wanted = ("a folder", "a file") if place.is_dir() else ("a file", "a folder")
        raise OutputError(
            errno.EEXIST, f"{shown} is {here}; expected a name for {wanted}. Choose another one."
        )
    if folder and place in (Path.cwd(), *Path.cwd().parents):
        raise OutputError(
            errno.EBUSY,
            f"{shown} holds the folder you are in and cannot be replaced. Choose a name inside "
            "it, as in ./model.",
        )


def _make_folders(parent: Path) -> list[Path]:
    """Make what is missing of a path; give what was made, the lowest folder first."""
    missing = [above for above in (parent, *parent.parents) if not above.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    return missing


def _is_about_another_file(error: OSError, place: Path) -> bool:
    """Whether the block failed at something else than writing, such as reading its input."""
    if isinstance(error, OutputError) or not isinstance(error.filename, (str, os.PathLike)):
        return False
    named, ours = Path(os.path.realpath(error.filename)), str(beside(place, ""))
    inside = (named, *named.parents)
    is_ours = place in inside or any(str(each).startswith(ours) for each in inside)
    return not is_ours and named not in place.parents


def _flush(file: Path) -> None:
    """Have the bytes on the disk before the name says that they are."""
    with file.open("r+b") as handle:
        os.fsync(handle.fileno())


# Folders that take each other's place while others read them.


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


def regular(path: str | os.PathLike[str]) -> Path:
    """Give a path to be read; a pipe, which may never end, or a device is an OSError."""
    place = Path(path)
    mode = place.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or device, not a file", str(place))
    return place


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

    ``read`` gets the folder and may be called again. What it raises is raised, unless the folder
    was replaced while it read.
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

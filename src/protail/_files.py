"""Files that are either whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class OutputError(OSError):
    """Say why something cannot be written, and what to do about it."""


@contextmanager
def new_file(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary name to write to; the file takes its place when the block ends well.

    Parameters
    ----------
    path : path-like
        Where the file is to stand. Missing folders above it are made.
    overwrite : bool, default=False
        Whether a file that is already there may be replaced. A folder never is.

    Yields
    ------
    Path
        A name beside it. When the block raises, whatever was written there is removed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail._files import new_file
    >>> place = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with new_file(place) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> place.read_text()
    'whole'
    """
    with _beside(path, overwrite=overwrite, folder=False) as temporary:
        yield temporary
        _flush(temporary)


@contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary folder to fill; it takes its place when the block ends well.

    Parameters
    ----------
    path : path-like
        Where the folder is to stand. Missing folders above it are made; an empty one in its
        place does no harm.
    overwrite : bool, default=False
        Whether a folder that is already there may be replaced, with all it holds. A file never
        is.

    Yields
    ------
    Path
        An empty folder beside it. When the block raises, it is removed with all it holds.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail._files import new_folder
    >>> place = Path(tempfile.mkdtemp()) / "model"
    >>> with new_folder(place) as temporary:
    ...     _ = (temporary / "note.txt").write_text("whole")
    >>> [file.name for file in place.iterdir()]
    ['note.txt']
    """
    with _beside(path, overwrite=overwrite, folder=True) as temporary:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)


def check_free(
    path: str | os.PathLike[str], *, overwrite: bool = False, folder: bool = False
) -> None:
    """Raise unless ``path`` is free to be written; say it before the work, not after.

    Parameters
    ----------
    path : path-like
        Where something is to stand.
    overwrite : bool, default=False
        Whether what is already there may be replaced.
    folder : bool, default=False
        Whether it is to be a folder.

    Examples
    --------
    >>> from protail._files import check_free
    >>> check_free("no-such-file.csv")
    """
    try:
        _check_place(_resolved(path), Path(path), overwrite=overwrite, folder=folder)
    except OSError as error:
        raise explained(error, Path(path)) from error


def _check_permitted(place: Path, shown: Path, *, overwrite: bool) -> None:
    if os.path.lexists(place) and not overwrite and not _is_empty_folder(place):
        raise OutputError(
            errno.EEXIST,
            f"{shown} is already there; expected a free name. Choose another one, or allow it to "
            "be replaced (overwrite=True, --overwrite).",
        )
    parents = place.absolute().parents
    above = next((folder for folder in parents if os.path.exists(folder)), place)
    if not above.is_dir():
        raise explained(NotADirectoryError(errno.ENOTDIR, ""), shown)
    if not os.access(above, os.W_OK | os.X_OK):
        raise explained(PermissionError(errno.EACCES, ""), shown)


def explained(error: OSError, place: Path) -> OutputError:
    """Turn what the system says into what is wrong with ``place`` and what to do.

    Parameters
    ----------
    error : OSError
        What was raised while writing.
    place : Path
        What was to be written.

    Returns
    -------
    OutputError
        One sentence on what is wrong, one on what to do.

    Examples
    --------
    >>> from pathlib import Path
    >>> from protail._files import explained
    >>> print(explained(OSError(28, "No space left on device"), Path("model")).strerror)
    model cannot be written: the disk is full. Free some space, or choose another place.
    """
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


@contextmanager
def _beside(path: str | os.PathLike[str], *, overwrite: bool, folder: bool) -> Iterator[Path]:
    place = _resolved(path)
    temporary = place.parent / f".{place.name[:50]}.{secrets.token_hex(4)}.part"
    made: list[Path] = []
    try:
        _check_place(place, Path(path), overwrite=overwrite, folder=folder)
        made = _make_folders(place.parent)
        yield temporary
        # Something may have come to stand there while the block was writing.
        _check_place(place, Path(path), overwrite=overwrite, folder=folder)
        _take_place(temporary, place)
        made = []
    except OSError as error:
        if _is_about_another_file(error, place, temporary):
            raise
        raise explained(error, Path(path)) from error
    finally:
        _remove(temporary)
        if os.path.lexists(place):
            _remove(temporary.with_suffix(".old"))
        for parent in made:
            with suppress(OSError):
                parent.rmdir()


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Follow links: they stay, and what they point to is replaced."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a null byte
        raise explained(OSError(errno.EINVAL, "Invalid argument"), Path(path)) from None


def _check_place(place: Path, shown: Path, *, overwrite: bool, folder: bool) -> None:
    """Raise unless a file or a folder may stand there; neither takes the other's place."""
    if not place.name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    _check_permitted(place, shown, overwrite=overwrite)
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


def _is_about_another_file(error: OSError, place: Path, temporary: Path) -> bool:
    """Whether the block failed at something else than writing, such as reading its input."""
    if isinstance(error, OutputError) or not isinstance(error.filename, (str, os.PathLike)):
        return False
    named = Path(os.path.realpath(error.filename))
    ours = {place, *place.parents, temporary, temporary.with_suffix(".old")}
    return named not in ours and temporary not in named.parents


def _take_place(temporary: Path, place: Path) -> None:
    if temporary.is_file() or not os.path.lexists(place):
        temporary.replace(place)
        return
    # A folder cannot be replaced in one step: the old one waits aside until the new one stands.
    aside = temporary.with_suffix(".old")
    try:
        place.rename(aside)
        temporary.rename(place)
    except BaseException:
        if os.path.lexists(aside) and not os.path.lexists(place):
            aside.rename(place)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _flush(file: Path) -> None:
    """Have the bytes on the disk before the name says that they are."""
    with file.open("r+b") as handle:
        os.fsync(handle.fileno())


def _is_empty_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink() and not any(place.iterdir())

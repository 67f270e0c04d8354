"""Why something cannot be written, in words."""

from __future__ import annotations

import errno
from pathlib import Path


class OutputError(OSError):
    """Say why something cannot be written, and what to do about it."""


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

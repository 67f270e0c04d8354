"""Files and folders that are whole or not there, and locks that die with their holder."""

from protail._files._folders import read_folder
from protail._files._lock import FileLock, LockedError
from protail._files._writing import (
    OutputError,
    check_free,
    explained,
    new_file,
    new_folder,
    one_writer,
)

__all__ = [
    "FileLock",
    "LockedError",
    "OutputError",
    "check_free",
    "explained",
    "new_file",
    "new_folder",
    "one_writer",
    "read_folder",
]

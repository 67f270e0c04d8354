"""A process that is killed, or a disk that is full, at each of its calls that change files."""

import errno
import os
import signal
import subprocess
import sys
import traceback
from contextlib import contextmanager
from types import ModuleType

from protail._files import OutputError

# What a full disk refuses, and what else changes files.
_FILLS = {"open", "mkdir", "link", "symlink", "write", "fsync", "rename", "replace"}
_CHANGES = {*_FILLS, "unlink", "rmdir", "ftruncate", "chmod", "utime", "flock", "close"}


def _is_one_of(names, frame, event, function):
    if event == "call":  # what goes to the system without a function of Python's own
        return frame.f_code.co_name == "_swap"
    owner = getattr(function, "__self__", None)
    of_the_system = isinstance(owner, ModuleType) or type(owner).__module__ == "_io"
    return event == "c_call" and function.__name__ in names and of_the_system


@contextmanager
def at_change(number, act, names):
    """Do ``act`` just before the change of files of this number, within the block."""
    seen = 0

    def watch(frame, event, function):
        nonlocal seen
        if _is_one_of(names, frame, event, function):
            seen += 1
            if seen == number:
                sys.setprofile(None)
                act()

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)


def is_killed(number, act):
    """Run ``act`` in a process killed before its change of this number; False if it got through."""
    child = os.fork()
    if child == 0:
        try:
            with at_change(number, lambda: os.kill(os.getpid(), signal.SIGKILL), _CHANGES):
                act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def said_of_a_full_disk(number, act):
    """Run ``act`` with a disk that is full at its write of this number; give the error's words."""

    def fill():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    try:
        with at_change(number, fill, _FILLS):
            act()
    except OutputError as error:
        return error.strerror
    return None


def in_small_process(function, *arguments):
    """Run a function of a module in this folder where no large library is: forks are fast there."""
    given = ", ".join(repr(str(argument)) for argument in arguments)
    name = function.__name__
    code = f"from {function.__module__} import {name}; {name}({given})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert ended.returncode == 0, ended.stderr

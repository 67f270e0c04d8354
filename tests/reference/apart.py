"""New processes that begin where the large libraries are imported already: a server forks them."""

import multiprocessing
import os
import sys
from pathlib import Path

# Only what others wrote: protail itself is imported again in every process.
_LIBRARIES = ["torch._dynamo", "sklearn.base"]
_START = "forkserver" if sys.platform == "linux" else "spawn"


def waiting():
    """Give what starts such processes."""
    context = multiprocessing.get_context(_START)
    context.set_forkserver_preload(_LIBRARIES)
    return context


def run_apart(function, arguments, folder, environment):
    """Call a function in a new process; give its exit code and what it printed, as it came."""
    printed = Path(folder).with_name(f"{Path(folder).name}-{function.__name__}.txt")
    given = function, arguments, folder, environment, printed
    process = waiting().Process(target=_call, args=given)
    process.start()
    process.join()
    text = printed.read_text(encoding="utf-8")
    printed.unlink()
    return process.exitcode, text


def type_protail(*words):
    """Do what the command does, for ``run_apart``."""
    sys.argv = ["protail", *words]
    from protail.cli import main

    main()


def _call(function, arguments, folder, environment, printed):
    with printed.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
            stream.reconfigure(encoding="utf-8", write_through=True)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)

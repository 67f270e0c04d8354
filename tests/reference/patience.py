"""How long tests wait for one another's processes: no measure of speed, only of what hangs."""

import os
import time

# Seconds after which a process is taken for hung, on however slow or busy a machine.
PATIENCE = 900

# A plugin of a command: it halts its process at the n-th call of a function.
_HALTING = """
import os, pkgutil, signal

owner, function, calls = pkgutil.resolve_name("{owner}"), None, []

def halting(*arguments, **options):
    calls.append(None)
    if len(calls) == {n}:
        os.kill(os.getpid(), signal.SIGSTOP)
    return function(*arguments, **options)

function = getattr(owner, "{name}")
setattr(owner, "{name}", halting)
"""


def halts_at(folder, path, n):
    """Give the environment of a command that halts at the n-th call of a function."""
    owner, _, name = path.rpartition(".")
    plugin = folder / "halting.py"
    plugin.write_text(_HALTING.format(owner=owner, name=name, n=n), encoding="utf-8")
    return os.environ | {"PROTAIL_PLUGINS": str(plugin)}


def wait_for_halt(running):
    """Wait until a process has halted itself."""
    how = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    found = patiently(lambda: os.waitid(os.P_PID, running.pid, how))
    assert found.si_code == os.CLD_STOPPED, f"it ended before it was to halt: {found}"


def patiently(look):
    """Look until there is something to see; give it."""
    end = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < end, "nothing is to be seen, though all patience is gone"
        time.sleep(0.002)
    return seen

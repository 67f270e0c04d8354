"""The command ``protail`` as a script that keeps which threads of Gloo are left at its end."""

import atexit
import os
from pathlib import Path

from protail.cli import main

OWN = Path("/proc/self/task")  # on Linux alone


def left_threads():
    """Give the names of the threads of Gloo."""
    names = [(task / "comm").read_text().strip() for task in OWN.iterdir()]
    return sorted(name for name in names if "gloo" in name)


def keep_left_threads():
    place = Path(os.environ["LEFT_THREADS"]) / os.environ["RANK"]
    place.write_text("\n".join(left_threads()))


if __name__ == "__main__":
    if OWN.exists():
        atexit.register(keep_left_threads)
    main()

"""Where a run takes place: time, versions, hardware. Never the name of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_PACKAGE = Path(__file__).parents[1]


def utc_now() -> str:
    """Give the time as text, such as 2025-03-01T12:30:00Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe_surroundings() -> dict[str, Any]:
    """Say when this is, which software runs, and on what."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "started": utc_now(),
        # By name: the package's face knows the layers above this one.
        "protail": import_module("protail").__version__,
        # Whoever copied the code to another machine knows better than what history is there.
        "commit": os.environ.get("PROTAIL_COMMIT") or git_commit(_PACKAGE),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "gpus": [torch.cuda.get_device_name(gpu) for gpu in gpus],
        "cpu": _cpu_name(),
    }


def git_commit(package: Path) -> str | None:
    """Give the commit a package was checked out at, "-dirty" behind it if it has changed.

    None where it lies in no checkout, or only beside one: an installed package is not part of
    the project whose folder it happens to be in.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    # Inside a hook, git's variables point to another checkout.
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=surroundings,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

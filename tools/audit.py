"""What a plain install of protail brings: its licences, and what is known against the lock.

    python tools/audit.py [--offline]

Licences are those of the installed packages that ``pip install protail`` asks for, and of what
these ask for. Then pip-audit, in a virtual environment of its own, looks every package of
``requirements-dev.txt`` up in a service that knows vulnerabilities. Where that cannot be reached,
this says what was not looked up; the exit code is 1 only where something is known.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_LOCK = ROOT / "requirements-dev.txt"
_NOT_STATED = "not stated"
_LONGEST = 40


def licences(root: str = "protail") -> list[tuple[str, str, str]]:
    """Give name, version and licence of all that an install without extras brings."""
    found: dict[str, tuple[str, str, str]] = {}
    wanted = [*_required(root)]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            found[name] = name, "", "not installed here"
            continue
        found[name] = name, about["Version"], _licence(about)
        wanted += _required(name)
    return sorted(found.values())


def _required(name: str) -> Iterator[str]:
    """Name what an installed package asks for on this system, without its extras."""
    for line in metadata.requires(name) or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _licence(about: metadata.PackageMetadata) -> str:
    """Read the licence where packages of any age say it."""
    classifiers = (each.split(" :: ") for each in about.get_all("Classifier") or [])
    named = [parts[-1] for parts in classifiers if parts[0] == "License" and len(parts) > 1]
    first_line = (about["License"] or "").strip().partition("\n")[0]
    said = about["License-Expression"], ", ".join(named), first_line[:_LONGEST]
    return next((each for each in said if each and each != "UNKNOWN"), _NOT_STATED)


def known(answer: dict[str, Any]) -> tuple[list[str], list[str], int]:
    """Read what pip-audit wrote: what is known, what was not looked up, and how many were."""
    packages = answer["dependencies"]
    against = [
        f"{each['name']} {each['version']}: {one['id']}, "
        f"fixed in {', '.join(one['fix_versions']) or 'no release'}"
        for each in packages
        for one in each.get("vulns", ())
    ]
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    return against, skipped, len(packages) - len(skipped)


def look_up(lock: Path, more: Iterable[str] = ()) -> dict[str, Any] | str:
    """Run pip-audit; give its answer, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="protail-audit-") as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        try:
            subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
            asked = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            _run([*asked, "pip-audit"])
            options = ["--disable-pip", "--progress-spinner", "off", "--format", "json", *more]
            told = _run([python, "-m", "pip_audit", "--requirement", lock, *options], codes=(0, 1))
            answer: dict[str, Any] = json.loads(told)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            return said.strip().splitlines()[-1][:200] if said.strip() else type(error).__name__
        return answer


def _run(words: list[Any], codes: tuple[int, ...] = (0,)) -> str:
    """Run a command and give what it prints; pip-audit ends with 1 where it knows something."""
    ended = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=600, check=False
    )
    if ended.returncode not in codes or not (ended.stdout or ended.returncode == 0):
        raise subprocess.CalledProcessError(ended.returncode, words, stderr=ended.stderr)
    return ended.stdout


def main() -> int:
    """Print both; give how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", action="store_true", help="licences only")
    given, more = parser.parse_known_args()  # what else is given is pip-audit's
    rows = licences()
    print(f"A plain install of protail brings {len(rows)} packages:")
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, version, licence in rows:
        print(f"  {name:{widths[0]}}  {version:{widths[1]}}  {licence}")
    if given.offline:
        return 0
    answer = look_up(_LOCK, more)
    if isinstance(answer, str):
        print(f"NOT CHECKED for known vulnerabilities: the service gave no answer ({answer}).")
        return 0
    against, skipped, n_checked = known(answer)
    for each in against:
        print(f"KNOWN  {each}")
    if skipped:
        named = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        print(f"NOT CHECKED, the service does not have them: {len(skipped)} packages ({named}).")
    print(f"{n_checked} packages of {_LOCK.name} looked up, {len(against)} known vulnerabilities.")
    return int(bool(against))


if __name__ == "__main__":
    sys.exit(main())

"""``protail doctor``: what is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib
import os
import platform
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from protail import __version__
from protail._messages import counted, install_command
from protail.cli.command import Voice, command, make_app
from protail.cli.tables import make_table

# Packages whose import name is not the name they are installed by.
_IMPORT_NAMES = {"scikit-learn": "sklearn", "pillow": "PIL"}
_NOT_FOR_USERS = {"all", "dev"}
_CLONE = Path(__file__).parents[3]


@command
def doctor(voice: Voice) -> None:
    """Show what is installed and what is missing.

    Names the command that installs it. Ends with code 1 when something that protail cannot do
    without is missing or broken.
    """
    packages = [_examine(name, extra) for name, extra in _requirements()]
    devices = _devices()
    broken = [p for p in packages if p["extra"] is None and p["problem"]]
    voice.show(f"protail {__version__}, Python {platform.python_version()}, {platform.platform()}")
    voice.show(f"devices: {', '.join(devices)}")
    voice.show(_table(packages))
    for line in _advice(packages):
        voice.show(line, to_copy=True)
    voice.finish(
        {
            "protail": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "devices": devices,
            "packages": packages,
            "healthy": not broken,
        }
    )
    if broken:
        raise typer.Exit(1)


def _requirements() -> list[tuple[str, str | None]]:
    """List the packages protail itself names, with the extra that asks for each."""
    found: list[tuple[str, str | None]] = []
    for requirement, extra in _stated_requirements():
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        if name and name.group() != "protail" and extra not in _NOT_FOR_USERS:
            found.append((name.group(), extra))
    return found


def _stated_requirements() -> list[tuple[str, str | None]]:
    try:
        stated = metadata.requires("protail") or []
    except metadata.PackageNotFoundError:
        # Run from a clone without being installed: the clone says what it needs.
        project = tomllib.loads((_CLONE / "pyproject.toml").read_text("utf-8"))["project"]
        return [(requirement, None) for requirement in project["dependencies"]] + [
            (requirement, extra)
            for extra, requirements in project["optional-dependencies"].items()
            for requirement in requirements
        ]
    extras = [re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement) for requirement in stated]
    return [
        (requirement, extra.group(1) if extra else None)
        for requirement, extra in zip(stated, extras, strict=True)
    ]


def _examine(name: str, extra: str | None) -> dict[str, Any]:
    """Import a package: some are installed and yet do not work together."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return {"name": name, "extra": extra, "version": None, "problem": "not installed"}
    try:
        importlib.import_module(_IMPORT_NAMES.get(name, name.replace("-", "_")))
    except Exception as error:  # whatever a broken package raises is its diagnosis
        text = f"does not import: {type(error).__name__}: {error}".split("\n")[0]
        return {"name": name, "extra": extra, "version": version, "problem": text}
    return {"name": name, "extra": extra, "version": version, "problem": None}


def _devices() -> list[str]:
    try:
        import torch
    except Exception:  # it stands in the table with what is wrong with it
        return ["unknown: torch does not import"]
    cores = counted(os.cpu_count() or 1, "core")
    devices = [f"cpu ({cores}, torch uses {torch.get_num_threads()})"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        size = properties.total_memory / 2**30
        devices.append(f"cuda:{index} ({properties.name}, {size:.0f} GiB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _table(packages: list[dict[str, Any]]) -> Any:
    from rich.text import Text

    rows = [
        (
            package["name"],
            package["extra"] or "protail itself",
            package["version"] or "-",
            Text(package["problem"] or "ok", style="red" if package["problem"] else ""),
        )
        for package in packages
    ]
    return make_table(["package", "for", "version", "state"], rows)


def _advice(packages: list[dict[str, Any]]) -> list[str]:
    ill = [package for package in packages if package["problem"]]
    if not ill:
        return ["Nothing is missing."]
    lines = []
    if any(package["extra"] is None for package in ill):
        lines.append(install_command())
    extras = dict.fromkeys(package["extra"] for package in ill if package["extra"])
    lines += [f"For {extra}: {install_command(extra)}" for extra in extras]
    return lines


app = make_app(doctor, "protail doctor")

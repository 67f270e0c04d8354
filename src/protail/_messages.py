"""Words that are shared: by every error, and by everything that counts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The last that is said of a part nobody has registered.
OWN_PART = "One of your own is known once the module that registers it is imported."


def unknown_name(what: str, got: object, valid: Iterable[str]) -> str:
    """Say that ``got`` is no valid ``what``, and name the nearest one that is."""
    names = list(valid)
    message = f"{what}={got!r} is unknown; expected one of {', '.join(map(repr, names))}."
    near = nearest_names(got, names)
    return f"{message} Did you mean {near[0]!r}?" if near else message


def nearest_names(got: object, valid: Iterable[str], n: int = 1, cutoff: float = 0.65) -> list[str]:
    """Find the names most like what came; case, dashes, underscores and spaces do not count."""
    written: dict[str, str] = {}
    for name in valid:
        written.setdefault(_plain(name), name)
    return [written[each] for each in get_close_matches(_plain(got), written, n, cutoff)]


def _plain(name: object) -> str:
    return re.sub(r"[-_\s]", "", str(name).lower())


def unknown_part(what: str, got: object, valid: Iterable[str]) -> str:
    """Say that no ``what`` has this name, and when one of your own is known."""
    return f"{unknown_name(what, got, valid)} {OWN_PART}"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Write a number of things: "1 row", "1,200 rows"; ``several`` is by default ``one`` with s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def install_command(*extras: str) -> str:
    """Give the command that installs protail with extras from where this one came."""
    wanted = f"[{','.join(extras)}]" if extras else ""
    origin = _origin()
    folder = _folder(origin)
    url = origin.get("url", "")
    if folder is not None:
        if not folder.exists():
            return f"pip install {shlex.quote(f'.{wanted}')} in a clone of protail"
        option = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"{_pip()} install {option}{shlex.quote(f'{folder}{wanted}')}"
    if url:
        kind = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
        return f"{_pip()} install {shlex.quote(f'protail{wanted} @ {kind}{url}')}"
    return f"{_pip()} install {shlex.quote(f'protail{wanted}')}"


def why(error: Exception) -> str:
    """Say in one short line why something failed: its text, or its type where it has none."""
    # The text of a KeyError is the bare key.
    text = repr(error) if isinstance(error, KeyError) else " ".join(str(error).split())
    return (text or type(error).__name__)[:200]


def not_installed(purpose: str, package: str, extra: str) -> str:
    """Say what needs a package that is not there, and what installs it."""
    return (
        f"{purpose} needs {package}, which is not installed. Install it: {install_command(extra)}"
    )


def imported(module: str, purpose: str, package: str, extra: str) -> Any:
    """Import a module of a package that need not be there, or say what installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(not_installed(purpose, package, extra)) from error


def upgrade_advice() -> str:
    """Say how to get a newer protail, in a sentence without its full stop."""
    folder = _folder(_origin())
    if folder is None:
        return install_command().replace(" install ", " install --upgrade ")
    if not folder.exists():
        return "Get the newest protail into a clone, then pip install . there"
    return f"Get the newest protail into {folder}, then {install_command()}"


def _origin() -> dict[str, Any]:
    """Give what pip wrote down about where protail came from; nothing for an index."""
    try:
        text = metadata.distribution("protail").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {"url": Path(__file__).parents[2].as_uri()}  # run in a clone
    origin: dict[str, Any] = json.loads(text or "{}")
    return origin


def _folder(origin: dict[str, Any]) -> Path | None:
    parts = urlsplit(origin.get("url", ""))
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def _pip() -> str:
    """Name the pip that installs for the Python that runs."""
    found = shutil.which("pip")
    if found and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def first_few(names: Iterable[object], few: int = 3) -> str:
    """Name the first few of many, and say how many there are."""
    every = list(map(str, names))
    more = f" and {len(every) - few} more" if len(every) > few else ""
    return (", ".join(every[:few]) or "nothing") + more

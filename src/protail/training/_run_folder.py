"""What a run's folder holds, and whether it may be written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from protail._files import explained, new_file
from protail._messages import upgrade_advice
from protail.data.sets._errors import first_few
from protail.training._run_json import differing_keys, read_object

FORMAT = "protail-run"
VERSION = 1
RUN, METRICS, TENSORBOARD = "run.json", "metrics.jsonl", "tensorboard"
CHECKPOINT, WEIGHTS = "checkpoint.safetensors", "weights.safetensors"
EVALUATION, LOCK = "evaluation.json", "lock"
_WRITTEN = (RUN, METRICS, TENSORBOARD, CHECKPOINT, WEIGHTS, EVALUATION, LOCK)

_MOST_KEYS_TOLD = 10


class RunError(ValueError):
    """Say what is wrong with a run's folder, and what to do.

    Examples
    --------
    >>> from protail.training.runs import Run, RunError
    >>> try:
    ...     Run.open("no-such-run")
    ... except RunError as error:
    ...     print(error)
    no-such-run: there is no such folder; expected a run. Check the path.
    """


def check_place(folder: Path) -> None:
    """Raise when something else than a run is there; do not touch it."""
    if not os.path.lexists(folder) or is_run(folder):
        return
    if not folder.is_dir():
        raise RunError(f"{folder}: this is a file; expected a run or a free name. Choose another.")
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise explained(error, folder) from error
    if any(entry.name != LOCK and not _is_part(entry) for entry in entries):
        raise RunError(
            f"{folder}: this folder holds something else than a run, and is left as it is. "
            "Choose another one."
        )


def check_unfinished(folder: Path, *, resume: bool) -> None:
    """Raise unless the run that is there is to be resumed and can be."""
    if (folder / EVALUATION).is_file():
        raise RunError(
            f"{folder}: this run is finished and is not run again. Choose another folder, or "
            "have it replaced (overwrite=True, --overwrite)."
        )
    if not resume:
        raise RunError(
            f"{folder}: a run is here that is not finished. Go on with it (resume=True, "
            "--resume), have it replaced (overwrite=True, --overwrite) or choose another folder."
        )


def check_same(folder: Path, there: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise when the run that is there is of something else."""
    keys = differing_keys(there, wanted)
    if not keys:
        return
    more = len(keys) - _MOST_KEYS_TOLD
    told = ", ".join(keys[:_MOST_KEYS_TOLD]) + (f" and {more} more" if more > 0 else "")
    raise RunError(
        f"{folder}: the run that is here is another one: it differs in {told}. Choose another "
        "folder, or name the settings that this one was started with."
    )


def check_replaceable(folder: Path) -> None:
    """Raise when something lies beside a run that no run has written: other runs, notes."""
    if not folder.is_dir():
        return
    foreign = [
        entry.name
        for entry in sorted(folder.iterdir())
        if entry.name not in _WRITTEN and not _is_part(entry)
    ]
    if foreign:
        raise RunError(
            f"{folder}: beside a run this folder holds {first_few(foreign)}, so it is not "
            "replaced. Move that elsewhere, or choose another folder."
        )


def clear(folder: Path) -> None:
    """Remove what a run has written but the lock and ``run.json``, the scores first.

    So a process that dies in between leaves a run that is not finished.
    """
    check_replaceable(folder)
    entries = [entry for entry in folder.iterdir() if entry.name not in (LOCK, RUN)]
    for entry in sorted(entries, key=lambda entry: entry.name != EVALUATION):
        _remove(entry)


def remove_parts(folder: Path) -> None:
    """Remove what a process that died has left half written."""
    for entry in filter(_is_part, list(folder.iterdir())):
        _remove(entry)


def read_run(folder: Path) -> dict[str, Any]:
    """Read ``run.json``, or say why this is no run."""
    if not folder.is_dir():
        found = "this is a file" if folder.exists() else "there is no such folder"
        raise RunError(f"{folder}: {found}; expected a run. Check the path.")
    if not os.path.lexists(folder / RUN):
        raise RunError(f"{folder}: there is no {RUN} in it; expected a run. Check the path.")
    document = read_json(folder / RUN)
    if document.get("format") != FORMAT:
        raise RunError(f"{folder / RUN}: is not of format {FORMAT!r}; expected a run of protail.")
    version = document.get("format_version")
    if type(version) is int and version > VERSION:
        raise RunError(
            f"{folder / RUN}: made by a newer protail (format {version}; this one reads up to "
            f"{VERSION}). {upgrade_advice()}."
        )
    kinds = {"resolved": dict, "sessions": list}
    if any(not isinstance(document.get(key), kind) for key, kind in kinds.items()):
        raise RunError(f"{folder / RUN}: is damaged; expected keys {', '.join(kinds)}.")
    return document


def write_run(folder: Path, resolved: dict[str, Any], sessions: list[dict[str, Any]]) -> None:
    """Write ``run.json``."""
    head = {"format": FORMAT, "format_version": VERSION}
    write_json(folder / RUN, {**head, "resolved": resolved, "sessions": sessions})


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote."""
    try:
        return read_object(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise RunError(f"{path}: is no valid JSON ({error}). It is damaged.") from error


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object, for people to read too."""
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def is_run(folder: Path) -> bool:
    """Say whether a folder holds a run of ours, be it damaged."""
    try:
        with (folder / RUN).open("rb") as file:
            return FORMAT.encode() in file.read(100)
    except OSError:
        return False


def _is_part(entry: Path) -> bool:
    """Whether ``protail._files`` was writing it when the process died."""
    ours = (RUN, METRICS, CHECKPOINT, WEIGHTS, EVALUATION)
    return entry.suffix == ".part" and entry.name.startswith(tuple(f".{name}." for name in ours))


def _remove(entry: Path) -> None:
    try:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    except OSError as error:
        raise explained(error, entry) from error

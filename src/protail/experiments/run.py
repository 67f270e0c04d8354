"""Runs: a folder with one execution of a recipe, from its first step to its scores.

===========================  ======================================================
``run.json``                 resolved recipe, data and seed; when, with and on what
``metrics.jsonl``            what was logged, a JSON line each
``tensorboard/``             the same for TensorBoard, where it is installed
``checkpoint.safetensors``   the last checkpoint
``weights.safetensors``      what was learned
``evaluation.json``          its scores; written last: a run that has them is finished
``lock``                     held by the process that writes the run
===========================  ======================================================
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from protail._files import explained, new_file, regular
from protail._lock import FileLock, LockedError
from protail._messages import first_few, not_installed, upgrade_advice
from protail.experiments.checkpoint import (
    Checkpoint,
    as_json,
    load_checkpoint,
    read_object,
    save_checkpoint,
)

__all__ = ["Run", "RunError"]

FORMAT = "protail-run"
VERSION = 1
RUN, METRICS, TENSORBOARD = "run.json", "metrics.jsonl", "tensorboard"
CHECKPOINT, WEIGHTS = "checkpoint.safetensors", "weights.safetensors"
EVALUATION, LOCK = "evaluation.json", "lock"
_FILES = (RUN, METRICS, CHECKPOINT, WEIGHTS, EVALUATION)

_BEFORE_THE_FIRST_STEP = -1
_MOST_KEYS_SHOWN = 10


class RunError(ValueError):
    """Say what is wrong with a run's folder, and what to do.

    Examples
    --------
    >>> from protail.experiments import Run, RunError
    >>> try:
    ...     Run.open("no-such-run")
    ... except RunError as error:
    ...     print(error)
    no-such-run: there is no such folder; expected a run. Check the path.
    """


class Run:
    """One execution of a recipe, in its folder: `create` one, or `open` one to read.

    Attributes
    ----------
    folder : Path
        Where it is.
    resolved : dict
        Recipe, data and seed, as JSON gives them.
    sessions : list of dict
        Each time it was started or resumed: when, with which versions, on which hardware.
    notes : list of str
        What whoever started it may want to know.

    Examples
    --------
    >>> import tempfile, torch
    >>> from protail.experiments import Run
    >>> folder = tempfile.mkdtemp()
    >>> with Run.create(folder, {"recipe": {"lr": 0.1}, "seed": 0}) as run:
    ...     run.log(10, 0, loss=0.5)
    ...     run.checkpoint({"weight": torch.ones(1)}, {"step": 10, "epoch": 0})
    ...     run.finish({"all": 51.2}, {"weight": torch.ones(1)})
    >>> run = Run.open(folder)
    >>> run.metrics(), run.evaluation()
    ([{'step': 10, 'epoch': 0, 'loss': 0.5}], {'all': 51.2})
    """

    def __init__(
        self, folder: Path, resolved: dict[str, Any], sessions: list[dict[str, Any]]
    ) -> None:
        self.folder = folder
        self.resolved = resolved
        self.sessions = sessions
        self.notes: list[str] = []
        self._writer: _Writer | None = None

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        resolved: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
        read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> Self:
        """Start a run, or resume one; nobody else can until it is closed.

        Parameters
        ----------
        folder : path-like
            The run's folder. Missing folders above it are made.
        resolved : mapping
            Everything the result depends on (recipe, data, seed), in strict JSON.
        resume : bool, default=False
            Go on with the run that is there, if it is of the same ``resolved``. What was logged
            after its last checkpoint is dropped. Where there is none, start one.
        overwrite : bool, default=False
            Start again where a run is, and remove what it has written. A folder that holds
            something else, beside a run or without one, is never replaced.
        read : callable
            Gives the ``resolved`` of the run that is there, which an older version may have
            written, as it would be written now; by default as it is.

        Returns
        -------
        Run
            To be closed, best by ``with``.

        Raises
        ------
        RunError
            When the folder holds something else, a run that is finished, is being written, or
            is not finished and neither ``resume`` nor ``overwrite`` says what to do, or a run of
            something else than ``resolved``.
        OutputError
            When it cannot be written.
        """
        wanted, place = as_json(resolved, "resolved"), Path(folder)
        _check_place(place, resume=resume, overwrite=overwrite)
        lock = _locked(place)
        try:
            if is_finished(place, wanted, resume=resume, overwrite=overwrite, read=read):
                raise _finished_error(place)
            resuming = (place / RUN).exists() and not overwrite
            sessions = read_run(place)["sessions"] if resuming else []
            last_step = _restore(place) if resuming else _clear(place)
            run = cls(place, wanted, [*sessions, describe_surroundings()])
            about = {"resolved": run.resolved, "sessions": run.sessions}
            _write_json(place / RUN, {"format": FORMAT, "format_version": VERSION, **about})
            run._writer = _Writer(place, lock, last_step, run.notes)
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a run to read it, finished or not, even while it is being written.

        Parameters
        ----------
        folder : path-like
            The run's folder.

        Returns
        -------
        Run
            It cannot be written.
        """
        place = Path(folder)
        document = read_run(place)
        return cls(place, document["resolved"], document["sessions"])

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return (self.folder / EVALUATION).is_file()

    def log(self, step: int, epoch: int, **numbers: float) -> None:
        """Add numbers, as one line, to ``metrics.jsonl`` and for TensorBoard.

        Log what belongs to a step before the checkpoint of that step: what is logged after a
        checkpoint and lost with the process is logged again by the run that goes on.

        Parameters
        ----------
        step : int
            Steps taken since the run began, over all its stages; it never goes back.
        epoch : int
            Which epoch it is.
        **numbers : float
            Each under its name.
        """
        self._writing().log(step, epoch, numbers)

    def checkpoint(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Replace the last checkpoint, once the new one is whole on the disk.

        Parameters
        ----------
        tensors : mapping of str to Tensor
            For instance `protail.experiments.checkpoint.training_state`.
        record : mapping
            What else going on needs, in strict JSON; its ``step`` says where.
        """
        step = record.get("step")
        if type(step) is not int or step < 0:
            raise ValueError(f"record['step'] is {step!r}; expected a whole number from 0 on.")
        self._writing().flush()
        save_checkpoint(self.folder / CHECKPOINT, tensors, record)

    def last_checkpoint(self) -> Checkpoint | None:
        """Read the last checkpoint; None before the first one."""
        path = self.folder / CHECKPOINT
        return load_checkpoint(path) if path.exists() else None

    def finish(
        self,
        evaluation: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        network: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what was learned and its scores, and close the run; it cannot be written any more.

        Parameters
        ----------
        evaluation : mapping
            Its scores, in strict JSON.
        tensors : mapping of str to Tensor
            The weights.
        network : mapping, optional
            What `protail.Network` needs beside recipe and weights: the names of the ``classes``,
            and the ``inputs`` that photos become.
        """
        writer = self._writing()
        scores = as_json(evaluation, "evaluation")
        known = as_json(network or {}, "network")
        writer.flush()
        save_checkpoint(self.folder / WEIGHTS, tensors, {})
        document = {"finished": _utc_now(), "evaluation": scores, "network": known}
        _write_json(self.folder / EVALUATION, document)
        self.close()

    def metrics(self) -> list[dict[str, Any]]:
        """Read what was logged: ``step``, ``epoch`` and the numbers of each record."""
        path = self.folder / METRICS
        return [_parsed(raw, path, n) for n, raw in enumerate(_whole_lines(path), start=1)]

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of a finished run, onto the CPU."""
        self._check_finished()
        return load_checkpoint(self.folder / WEIGHTS).tensors

    def evaluation(self) -> dict[str, Any]:
        """Read the scores of a finished run, as ``finish`` was given them."""
        self._check_finished()
        scores: dict[str, Any] = read_json(self.folder / EVALUATION).get("evaluation", {})
        return scores

    def network_record(self) -> dict[str, Any]:
        """Read what its network needs beside recipe and weights; older runs do not say it."""
        self._check_finished()
        record: dict[str, Any] = read_json(self.folder / EVALUATION).get("network", {})
        return record

    def close(self) -> None:
        """Let others write the folder; what has been written stays."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _writing(self) -> _Writer:
        if self._writer is None:
            raise RunError(
                f"{self.folder}: this run is open for reading only, or closed; expected one that "
                "Run.create gave and that is not finished."
            )
        return self._writer

    def _check_finished(self) -> None:
        if not self.finished:
            raise RunError(
                f"{self.folder}: this run is not finished; expected one that is. Let it come to "
                "its end, with --resume if it was interrupted."
            )


def is_run(folder: Path) -> bool:
    """Say whether a folder holds a run of protail, even a damaged one."""
    try:
        with regular(folder / RUN).open("rb") as file:
            return FORMAT.encode() in file.read(100)
    except OSError:
        return False


def is_finished(
    folder: Path,
    resolved: dict[str, Any],
    *,
    resume: bool,
    overwrite: bool,
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> bool:
    """Say whether a run that is resumed was finished before; raise where it cannot be started."""
    _check_place(folder, resume=resume, overwrite=overwrite)
    if overwrite:
        _check_replaceable(folder)
    if overwrite or not (folder / RUN).exists():
        return False
    keys = differing_keys(read(read_run(folder)["resolved"]), resolved)
    if keys:
        raise RunError(
            f"{folder}: the run that is here is another one: it differs in {in_short(keys)}. "
            "Choose another folder, or name the settings that this one was started with."
        )
    finished = (folder / EVALUATION).is_file()
    if finished and not resume:
        raise _finished_error(folder)
    if not resume:
        raise RunError(
            f"{folder}: a run is here that is not finished. Go on with it (resume=True, "
            "--resume), have it replaced (overwrite=True, --overwrite) or choose another folder."
        )
    return finished


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


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run."""
    try:
        return read_object(regular(path).read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise RunError(f"{path}: is no valid JSON ({error}). It is damaged.") from error


def differing_keys(there: object, now: object, where: str = "") -> list[str]:
    """Say, with dotted keys, where two JSON values differ."""
    if isinstance(there, dict) and isinstance(now, dict):
        dot = f"{where}." if where else ""
        return [
            line
            for key in sorted({*there, *now})
            for line in differing_keys(there.get(key, _ABSENT), now.get(key, _ABSENT), dot + key)
        ]
    return [] if there == now else [f"{where} ({_shown(there)} there, {_shown(now)} now)"]


_ABSENT = object()


def _shown(value: object) -> str:
    text = "absent" if value is _ABSENT else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def in_short(keys: list[str]) -> str:
    """List what `differing_keys` found; count what is too much to list."""
    more = len(keys) - _MOST_KEYS_SHOWN
    return ", ".join(keys[:_MOST_KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def describe_surroundings() -> dict[str, Any]:
    """Describe time, versions and hardware; never the name of the machine."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "started": _utc_now(),
        # By name: the package's face knows the layers above this one.
        "protail": import_module("protail").__version__,
        # Whoever copied the code to another machine knows better than what history is there.
        "commit": os.environ.get("PROTAIL_COMMIT") or git_commit(Path(__file__).parents[1]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "gpus": [torch.cuda.get_device_name(gpu) for gpu in gpus],
        "cpu": _cpu_name(),
    }


def git_commit(package: Path) -> str | None:
    """Give the commit a package was checked out at, with "-dirty" if it has changed.

    None where it lies in no checkout, or only beside one: an installed package is not part of
    the project whose folder it happens to be in.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    # Inside a hook, git's variables point to another checkout.
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=surroundings
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


def _utc_now() -> str:
    """Give the time as text, such as 2025-03-01T12:30:00Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def _writing_to(place: Path) -> Iterator[None]:
    """Turn what the system says of a failed write into what to do about it."""
    try:
        yield
    except OSError as error:
        raise explained(error, place) from error


def _check_place(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise when something else than a run is there; do not touch it."""
    if resume and overwrite:
        raise RunError("resume and overwrite are both true; expected one of them at most.")
    if not os.path.lexists(folder) or is_run(folder):
        return
    if not folder.is_dir():
        raise RunError(f"{folder}: this is a file; expected a run or a free name. Choose another.")
    with _writing_to(folder):
        entries = list(folder.iterdir())
    if any(entry.name != LOCK and not _is_part(entry) for entry in entries):
        raise RunError(
            f"{folder}: this folder holds something else than a run, and is left as it is. "
            "Choose another one."
        )


def _check_replaceable(folder: Path) -> None:
    """Raise when something lies beside a run that no run has written: other runs, notes."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    own = (*_FILES, TENSORBOARD, LOCK)
    foreign = [each.name for each in entries if each.name not in own and not _is_part(each)]
    if foreign:
        raise RunError(
            f"{folder}: beside a run this folder holds {first_few(foreign)}, so it is not "
            "replaced. Move that elsewhere, or choose another folder."
        )


def _finished_error(folder: Path) -> RunError:
    return RunError(
        f"{folder}: this run is finished and is not run again. Choose another folder, or "
        "have it replaced (overwrite=True, --overwrite)."
    )


def _locked(folder: Path) -> FileLock:
    """Make the folder where it is missing, and take its lock."""
    with _writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return FileLock(folder / LOCK)
        except LockedError as error:
            raise RunError(
                f"{folder}: this run is being written by {error.strerror}. Wait for its end, or "
                "choose another folder."
            ) from None


def _clear(folder: Path) -> int:
    """Remove what a run has written except the lock and ``run.json``, the scores first.

    So a process that dies meanwhile leaves a run that is not finished. Gives the last step kept.
    """
    _check_replaceable(folder)
    entries = [entry for entry in folder.iterdir() if entry.name not in (LOCK, RUN)]
    for entry in sorted(entries, key=lambda entry: entry.name != EVALUATION):
        _remove(entry)
    return _BEFORE_THE_FIRST_STEP


def _restore(folder: Path) -> int:
    """Bring a folder back to the state of its last checkpoint; give the last step kept."""
    for entry in filter(_is_part, list(folder.iterdir())):
        _remove(entry)
    last_step, checkpoint, metrics = _BEFORE_THE_FIRST_STEP, folder / CHECKPOINT, folder / METRICS
    if checkpoint.exists():
        step = load_checkpoint(checkpoint).record.get("step")
        if type(step) is not int:
            raise RunError(f"{checkpoint}: has no step; expected a checkpoint of this run.")
        last_step = step
    raws = _whole_lines(metrics)
    steps = [_parsed(raw, metrics, number)["step"] for number, raw in enumerate(raws, start=1)]
    kept = [raw for raw, step in zip(raws, steps, strict=True) if step <= last_step]
    with new_file(metrics, overwrite=True) as temporary:
        temporary.write_bytes(b"".join(kept))
    return last_step


def _is_part(entry: Path) -> bool:
    """Whether ``protail._files`` was writing it when the process died."""
    return entry.suffix == ".part" and entry.name.startswith(tuple(f".{name}." for name in _FILES))


def _remove(entry: Path) -> None:
    with _writing_to(entry):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON object, for people to read too."""
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a log; a last one without its end is not there yet."""
    try:
        return [raw + b"\n" for raw in regular(path).read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}.") from error


def _parsed(raw: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        line = read_object(raw)
        if type(line.get("step")) is not int:
            raise ValueError("it has no step")
    except ValueError as error:
        raise RunError(
            f"{path}: line {number} is no record of a run ({error}). Remove that line."
        ) from error
    not_finite = ("NaN", "Infinity", "-Infinity")
    return {name: float(value) if value in not_finite else value for name, value in line.items()}


def _written(value: float) -> int | float | str:
    """Give a number as strict JSON has it: the name of one that is not finite."""
    number = int(value) if isinstance(value, Integral) else float(value)
    return number if math.isfinite(number) else json.dumps(number)


class _Writer:
    """What a run holds open while it is written: its lock, its log and that for TensorBoard."""

    def __init__(self, folder: Path, lock: FileLock, last_step: int, notes: list[str]) -> None:
        self._lock, self._last_step = lock, last_step
        self._path = folder / METRICS
        with _writing_to(self._path):
            self._file: BinaryIO = self._path.open("ab", buffering=0)
        self._events: _EventFile | None = None
        try:
            self._events = _EventFile(folder / TENSORBOARD, hide_from=last_step + 1)
        except ImportError:
            notes.append(not_installed("a record of the training", "tensorboard", "train"))

    def log(self, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        """Add one record to both logs."""
        for name, count in {"step": step, "epoch": epoch}.items():
            if not isinstance(count, Integral) or isinstance(count, bool) or count < 0:
                raise ValueError(f"{name} is {count!r}; expected a whole number from 0 on.")
        for name, value in numbers.items():
            if not isinstance(value, Real) or isinstance(value, bool):
                raise TypeError(
                    f"{name} is a {type(value).__name__}; expected a number. Of a tensor with one "
                    "value, .item() gives it."
                )
        if step < self._last_step:
            raise RunError(
                f"step is {step} after {self._last_step}; expected steps that do not go back, "
                "counted over all stages of the run."
            )
        line = {"step": step, "epoch": epoch, **numbers}
        self._append({name: _written(value) for name, value in line.items()})
        self._last_step = step
        if self._events is not None:
            self._events.append(step, numbers)

    def _append(self, line: dict[str, Any]) -> None:
        """Write one line, whole or not at all; the system has it when this returns."""
        end = self._file.seek(0, os.SEEK_END)
        rest = memoryview(json.dumps(line, allow_nan=False).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise explained(error, self._path) from error

    def flush(self) -> None:
        """Have the lines on the disk."""
        with _writing_to(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files and let others write the folder."""
        self._file.close()
        if self._events is not None:
            self._events.close()
        self._lock.release()


class _EventFile:
    """Write records for TensorBoard, from a step on hiding what earlier files say.

    TensorBoard's own writer puts the machine's name into the file's name and waits in a thread
    before it writes; here each record is written at once. Raises ImportError without TensorBoard.
    """

    def __init__(self, folder: Path, hide_from: int) -> None:
        events = import_module("tensorboard.compat.proto.event_pb2")
        summaries = import_module("tensorboard.compat.proto.summary_pb2")
        records = import_module("tensorboard.summary.writer.record_writer")
        self._event, self._summary = events.Event, summaries.Summary
        self._folder = folder
        with _writing_to(folder):
            folder.mkdir(exist_ok=True)
            # TensorBoard reads them in the order of their names.
            number = len(list(folder.iterdir()))
            name = f"events.out.tfevents.{int(time.time()):010d}.{number:05d}"
            self._file = (folder / name).open("xb")
        self._records = records.RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        start = events.SessionLog(status=events.SessionLog.START)
        self._write(step=hide_from, session_log=start)

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of one record, each under its name."""
        values = [
            self._summary.Value(tag=name, simple_value=float(number))
            for name, number in numbers.items()
        ]
        self._write(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what could not be written has been told
            self._file.close()

    def _write(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        with _writing_to(self._folder):
            self._records.write(event.SerializeToString())
            self._file.flush()

"""Writing a run: the lock, what is kept of an interrupted one, and the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from protail._files import FileLock, LockedError, explained
from protail._messages import not_installed
from protail.training._run_folder import (
    CHECKPOINT,
    LOCK,
    METRICS,
    TENSORBOARD,
    RunError,
    check_place,
    clear,
    remove_parts,
)
from protail.training._run_metrics import MetricsFile, as_line, keep_lines
from protail.training._run_tensorboard import EventFile
from protail.training.checkpoint import load_checkpoint

BEFORE_THE_FIRST_STEP = -1


class Writer:
    """What a run holds open while it is written.

    Parameters
    ----------
    folder : Path
        The run's.
    lock : FileLock
        Held; released when the writer closes.
    last_step : int
        The last step that is kept from before.
    notes : list of str
        Where to leave a word when something is not written.
    """

    def __init__(self, folder: Path, lock: FileLock, last_step: int, notes: list[str]) -> None:
        self.metrics = MetricsFile(folder / METRICS)
        self._lock = lock
        self._last_step = last_step
        self._events: EventFile | None = None
        try:
            self._events = EventFile(folder / TENSORBOARD, hide_from=last_step + 1)
        except ImportError:
            notes.append(not_installed("a record of the training", "tensorboard", "train"))

    def log(self, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        """Write one record down."""
        line = as_line(step, epoch, numbers)
        if step < self._last_step:
            raise RunError(
                f"step is {step} after {self._last_step}; expected steps that do not go back, "
                "counted over all stages of the run."
            )
        self.metrics.append(line)
        self._last_step = step
        if self._events is not None:
            self._events.append(step, numbers)

    def close(self) -> None:
        """Close the files and let others at the folder."""
        self.metrics.close()
        if self._events is not None:
            self._events.close()
        self._lock.release()


def locked(folder: Path) -> FileLock:
    """Make the folder where it is missing, and take its lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
    except LockedError as error:
        raise RunError(
            f"{folder}: this run is being written by {error.strerror}. Wait for its end, or "
            "choose another folder."
        ) from None
    except OSError as error:
        raise explained(error, folder) from error
    try:
        check_place(folder)  # once more, now that nobody else changes it
    except BaseException:
        lock.release()
        raise
    return lock


def prepare(folder: Path, *, keep: bool) -> int:
    """Bring a folder to the state of its last checkpoint, or clear it; give the last step kept."""
    if not keep:
        clear(folder)
        return BEFORE_THE_FIRST_STEP
    remove_parts(folder)
    last_step = _checkpointed_step(folder / CHECKPOINT)
    keep_lines(folder / METRICS, last_step)
    return last_step


def _checkpointed_step(checkpoint: Path) -> int:
    if not checkpoint.exists():
        return BEFORE_THE_FIRST_STEP
    step = load_checkpoint(checkpoint).record.get("step")
    if type(step) is not int:
        raise RunError(f"{checkpoint}: has no step; expected a checkpoint of this run.")
    return step

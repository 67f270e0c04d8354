"""Runs: a folder with one execution of a recipe, from its first step to its scores.

===========================  ======================================================
``run.json``                 resolved recipe, data and seed; when, with and on what
``metrics.jsonl``            what was logged, a JSON line each
``tensorboard/``             the same for TensorBoard, where it is installed
``checkpoint.safetensors``   the last checkpoint
``weights.safetensors``      what came out
``evaluation.json``          its scores; written last: a run that has them is finished
``lock``                     held by the process that writes the run
===========================  ======================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from protail.training._run_folder import (
    CHECKPOINT,
    EVALUATION,
    METRICS,
    RUN,
    WEIGHTS,
    RunError,
    check_place,
    check_same,
    check_unfinished,
    read_json,
    read_run,
    write_json,
    write_run,
)
from protail.training._run_json import as_json
from protail.training._run_metrics import read_lines
from protail.training._run_surroundings import describe_surroundings, utc_now
from protail.training._run_writer import Writer, locked, prepare
from protail.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

__all__ = ["Run", "RunError", "history"]


def history(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read what a run has logged.

    Parameters
    ----------
    folder : path-like
        The run's, finished or not.

    Returns
    -------
    list of dict
        ``step``, ``epoch`` and the numbers of each record. A line that is not whole yet is left
        out.

    Examples
    --------
    >>> import tempfile
    >>> from protail.training.runs import Run, history
    >>> folder = tempfile.mkdtemp()
    >>> with Run.create(folder, {"seed": 0}) as run:
    ...     run.log(1, 0, loss=float("inf"))
    >>> history(folder)
    [{'step': 1, 'epoch': 0, 'loss': inf}]
    """
    return Run.open(folder).metrics()


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
    >>> from protail.training.runs import Run
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
        self._writer: Writer | None = None

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
        """Start a run, or go on with one; nobody else can until it is closed.

        Parameters
        ----------
        folder : path-like
            Where it is to be. Missing folders above it are made.
        resolved : mapping
            Everything the result hangs on (recipe, data, seed), in strict JSON.
        resume : bool, default=False
            Go on with the run that is there, if it is of the same ``resolved``. What was logged
            behind its last checkpoint is dropped. Where there is none, start one.
        overwrite : bool, default=False
            Start anew where a run is, and remove what it has written. A folder that holds
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
        if resume and overwrite:
            raise RunError("resume and overwrite are both true; expected one of them at most.")
        wanted, place = as_json(resolved, "resolved"), Path(folder)
        check_place(place)
        lock = locked(place)
        try:
            sessions: list[dict[str, Any]] = []
            going_on = (place / RUN).exists() and not overwrite
            if going_on:
                document = read_run(place)
                check_same(place, read(document["resolved"]), wanted)
                check_unfinished(place, resume=resume)
                sessions = document["sessions"]
            last_step = prepare(place, keep=going_on)
            run = cls(place, wanted, [*sessions, describe_surroundings()])
            write_run(place, run.resolved, run.sessions)
            run._writer = Writer(place, lock, last_step, run.notes)
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a run to read it, be it finished or not, even while it is being written.

        Parameters
        ----------
        folder : path-like
            Where it is.

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
        """Write numbers down, as one line of ``metrics.jsonl`` and for TensorBoard.

        Log what belongs to a step before the checkpoint of that step: what is logged behind a
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
            For instance `protail.training.checkpoint.training_state`.
        record : mapping
            What else going on needs, in strict JSON; its ``step`` says where.
        """
        step = record.get("step")
        if type(step) is not int or step < 0:
            raise ValueError(f"record['step'] is {step!r}; expected a whole number from 0 on.")
        self._writing().metrics.flush()
        save_checkpoint(self.folder / CHECKPOINT, tensors, record)

    def last_checkpoint(self) -> Checkpoint | None:
        """Read the last checkpoint.

        Returns
        -------
        Checkpoint or None
            None before the first one.
        """
        path = self.folder / CHECKPOINT
        return load_checkpoint(path) if path.exists() else None

    def finish(self, evaluation: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write down what came out, and close the run; it cannot be written any more.

        Parameters
        ----------
        evaluation : mapping
            Its scores, in strict JSON.
        tensors : mapping of str to Tensor
            The weights.
        """
        writer = self._writing()
        scores = as_json(evaluation, "evaluation")
        writer.metrics.flush()
        save_checkpoint(self.folder / WEIGHTS, tensors, {})
        write_json(self.folder / EVALUATION, {"finished": utc_now(), "evaluation": scores})
        self.close()

    def metrics(self) -> list[dict[str, Any]]:
        """Read what was logged.

        Returns
        -------
        list of dict
            ``step``, ``epoch`` and the numbers of each record.
        """
        return read_lines(self.folder / METRICS)

    def weights(self) -> dict[str, Tensor]:
        """Read what came out.

        Returns
        -------
        dict of str to Tensor
            On the CPU.
        """
        self._check_finished()
        return load_checkpoint(self.folder / WEIGHTS).tensors

    def evaluation(self) -> dict[str, Any]:
        """Read its scores.

        Returns
        -------
        dict
            What ``finish`` was given.
        """
        self._check_finished()
        scores: dict[str, Any] = read_json(self.folder / EVALUATION).get("evaluation", {})
        return scores

    def close(self) -> None:
        """Let others at the folder; what has been written stays."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _writing(self) -> Writer:
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

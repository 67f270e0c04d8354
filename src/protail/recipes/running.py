"""Running recipes: from data to scores, several at once, each in a folder of its own."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from protail.data.sets import DataSet
from protail.recipes.jobs import Job, Options, Progress, Watcher
from protail.recipes.scoring import evaluate_job, group_scores, look
from protail.recipes.stage_one import training_maker
from protail.training._run_folder import (
    EVALUATION,
    RUN,
    check_place,
    check_replaceable,
    check_same,
    check_unfinished,
)
from protail.training._run_json import as_json
from protail.training.checkpoint import restore_training_state, training_state
from protail.training.fabric import launch_fabric, leave_group_at_end
from protail.training.frozen import FrozenFeatures
from protail.training.loop import Steps, interleave, make_streams
from protail.training.phases import representation_steps
from protail.training.progress import Epoch
from protail.training.representation import RepresentationTraining
from protail.training.runs import Run, RunError

__all__ = ["Job", "Options", "Progress", "Watcher", "is_done", "run_jobs"]

# How often scores are looked at while training; they decide nothing.
_LOOKS = 10


def run_jobs(
    jobs: Sequence[Job], options: Options, watch: Watcher | None = None
) -> list[dict[str, Any]]:
    """Run jobs, all at once in this process; on a GPU each has a stream.

    Where runs are resumed, those that are finished are not run again. Nothing is begun before
    every folder has been looked at.

    Parameters
    ----------
    jobs : sequence of Job
        What to run.
    options : Options
        How to run.
    watch : callable, optional
        Told of each epoch.

    Returns
    -------
    list of dict
        Scores of each job, as in its ``evaluation.json``.
    """
    if options.driver == "fabric":
        with leave_group_at_end():
            return [_run_together_with_others(job, options, watch) for job in jobs]
    waiting = [job for job in jobs if not is_done(job, options)]
    with ExitStack() as stack:
        runs = [stack.enter_context(_create_run(job, job.folder, options)) for job in waiting]
        for note in dict.fromkeys(note for run in runs for note in run.notes):
            warnings.warn(note, stacklevel=2)
        streams = make_streams(options.device, len(waiting))
        steps = [_steps(job, run, options, watch) for job, run in zip(waiting, runs, strict=True)]
        interleave(steps, streams)
    return [Run.open(job.folder).evaluation() for job in jobs]


def is_done(job: Job, options: Options) -> bool:
    """Say whether a job that is resumed was finished before; raise where it cannot be run.

    Parameters
    ----------
    job : Job
        What is to be run.
    options : Options
        Whether it is resumed or replaces what is there.

    Returns
    -------
    bool
        True where nothing is left to do.
    """
    if options.resume and options.overwrite:
        raise RunError("resume and overwrite are both true; expected one of them at most.")
    if os.environ.get("RANK", "0") != "0":
        # The first process looks at the folder, and may have begun to fill it.
        return options.resume and (job.folder / EVALUATION).exists()
    check_place(job.folder)
    if options.overwrite:
        check_replaceable(job.folder)
        return False
    if not (job.folder / RUN).exists():
        return False
    run = Run.open(job.folder)
    check_same(job.folder, job.read(run.resolved), as_json(job.resolved, "resolved"))
    done = options.resume and run.finished
    if not done:
        check_unfinished(job.folder, resume=options.resume)
    return done


def _create_run(job: Job, folder: Path, options: Options) -> Run:
    choices = {"resume": options.resume, "overwrite": options.overwrite}
    return Run.create(folder, job.resolved, **choices, read=job.read)


def _run_together_with_others(job: Job, options: Options, watch: Watcher | None) -> dict[str, Any]:
    """Run one job in every process of a group, as torchrun starts them; the first keeps the run."""
    fabric = launch_fabric(options.device)
    options = replace(options, device=fabric.device)
    with ExitStack() as stack:
        folder = job.folder
        if is_done(job, options):
            return Run.open(job.folder).evaluation()
        if fabric.global_rank:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="protail-"))) / "run"
        run = stack.enter_context(_create_run(job, folder, options))
        fabric.barrier()
        [record] = interleave([_steps(job, run, options, watch, fabric)])
        fabric.barrier()
    return record


def _steps(
    job: Job, run: Run, options: Options, watch: Watcher | None, fabric: Any = None
) -> Steps[dict[str, Any]]:
    method = None
    if isinstance(job.data, DataSet):
        keeper = _Keeper(job, job.data, run, options, watch, fabric)
        method = yield from representation_steps(
            job.phases,
            training_maker(job.data, job.seed, options, fabric),
            done=keeper.n_done,
            restore=keeper.restore,
            after_epoch=keeper.after_epoch,
        )
    if run.folder != job.folder:
        return {}
    scores = evaluate_job(job, method, options)
    run.finish(scores.record, scores.weights)
    return scores.record


class _Keeper:
    """Log epochs, look at scores, keep checkpoints."""

    def __init__(
        self,
        job: Job,
        data: DataSet,
        run: Run,
        options: Options,
        watch: Watcher | None,
        fabric: Any,
    ) -> None:
        self._job, self._data, self._run = job, data, run
        self._options, self._watch, self._fabric = options, watch, fabric
        self._kept_at = time.monotonic()
        self._look_every = max(1, job.recipe.n_epochs // _LOOKS)
        self._last = Run.open(job.folder).last_checkpoint()
        # One process keeps the run; the others only take their part of every batch.
        self._is_helping = run.folder != job.folder

    @property
    def n_done(self) -> int:
        """Epochs that were done by the last checkpoint."""
        return 0 if self._last is None else int(self._last.record["epoch"]) + 1

    def restore(self, training: RepresentationTraining) -> None:
        """Bring a training back to the last checkpoint."""
        assert self._last is not None
        restore_training_state(self._last.tensors, training.state, training.optimizer)
        self._last = None

    def after_epoch(self, training: RepresentationTraining, epoch: Epoch) -> None:
        """Do what is due after an epoch."""
        n_epochs = self._job.recipe.n_epochs
        loss = self._loss_of_all(epoch)
        is_due = (epoch.number + 1) % self._look_every == 0 and epoch.number + 1 < n_epochs
        scores = self._look(training) if is_due else {}
        self._run.log(epoch.step, epoch.number, loss=loss, **scores)
        if self._watch is not None:
            self._watch(Progress(self._job, epoch.number + 1, loss, scores))
        if self._is_helping:
            return
        due = time.monotonic() - self._kept_at >= self._options.checkpoint_seconds
        if due or epoch.number + 1 == n_epochs:
            tensors = training_state(training.state, training.optimizer)
            self._run.checkpoint(tensors, {"step": epoch.step, "epoch": epoch.number})
            self._kept_at = time.monotonic()

    def _loss_of_all(self, epoch: Epoch) -> float:
        """Give the mean loss over all processes, of which each knows its part of the batches."""
        if self._fabric is None:
            return epoch.loss
        own = torch.tensor(epoch.loss, dtype=torch.float64, device=self._options.device)
        return float(self._fabric.all_reduce(own, reduce_op="mean"))

    def _look(self, training: RepresentationTraining) -> dict[str, float]:
        if self._is_helping:
            return {}
        method, data = training.evaluated, self._data
        frozen = FrozenFeatures(method.backbone, data, self._options.device)
        precision = training.settings.precision
        return group_scores(look(method.head, frozen, data, precision))

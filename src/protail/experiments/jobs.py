"""Jobs: recipes run on data, several at once, each kept in the folder of a run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from protail.data.augment import CIFAR_MEAN, CIFAR_STD, InputSpec
from protail.data.images import DataSet, FeatureData, ImageSet
from protail.evaluation import Evaluation, results_table
from protail.experiments.checkpoint import as_json
from protail.experiments.pipeline import Options, Pipeline, Stage, evaluate_stages, stage_weights
from protail.experiments.run import EVALUATION, Run, is_finished
from protail.recipes import WORDS, Recipe, RecipeError
from protail.training import (
    Epoch,
    Processes,
    RepresentationSettings,
    RepresentationTraining,
    Steps,
    interleave,
    joined,
    make_streams,
)

if TYPE_CHECKING:
    from rich.table import Table

# How often scores are shown while training; they decide nothing.
_EVALUATIONS = 10


@dataclass(frozen=True)
class Job:
    """One execution of a recipe.

    Attributes
    ----------
    recipe : Recipe
        What to do. On features only stage 2 is left of it.
    data : DataSet or FeatureData
        With what.
    seed : int
        Same seed, same result.
    folder : Path
        Where its run is kept.
    """

    recipe: Recipe
    data: DataSet | FeatureData
    seed: int
    folder: Path

    def __post_init__(self) -> None:
        if not isinstance(self.data, FeatureData):
            return
        if self.recipe.classifier is None:
            raise ValueError(
                f"recipe {self.recipe.name!r} has no classifier stage, and {self.data.name} holds "
                "features and no images; expected a recipe that learns a classifier, such as "
                "'pc-la'. To learn a representation, train on images."
            )
        if self.recipe.classifier.start == "representation":
            raise ValueError(
                f"recipe {self.recipe.name!r} begins stage 2 with the classifier of stage 1, and "
                f"{self.data.name} holds features only; expected a recipe that begins from "
                "scratch, such as 'pc-la', or images."
            )
        if "experts" in self.recipe.classifier.head_options:
            raise ValueError(
                f"recipe {self.recipe.name!r} has a head for features of several experts, and "
                f"{self.data.name} holds those of one network; expected a recipe such as 'pc-la'."
            )
        # Whatever the recipe says of stage 1, these features come from elsewhere.
        alone = replace(self.recipe, pretraining=None, representation=None)
        object.__setattr__(self, "recipe", alone)

    @property
    def phases(self) -> dict[str, RepresentationSettings]:
        """Stage 1, which a job on images cannot do without, in its phases."""
        check_representation(self.recipe)
        return self.recipe.phases

    @property
    def resolved(self) -> dict[str, Any]:
        """Everything the result depends on."""
        return {"recipe": self.recipe.resolved(), "data": data_record(self.data), "seed": self.seed}

    def read(self, resolved: dict[str, Any]) -> dict[str, Any]:
        """Give the ``resolved`` of any version's job as this version would have written it.

        A setting that was added later has its default in older runs, and the words that are said
        about a recipe are those of this job's. A recipe that this version does not know is left
        as it is.
        """
        try:
            recipe = Recipe.from_resolved(resolved["recipe"]).resolved()
        except (KeyError, TypeError, AttributeError, RecipeError):
            return resolved
        words = {key: getattr(self.recipe, key) for key in WORDS}
        return {**resolved, "recipe": {**recipe, **words}}

    def create_run(self, folder: Path, options: Options) -> Run:
        """Start or resume its run, in a folder."""
        how = {"resume": options.resume, "overwrite": options.overwrite}
        return Run.create(folder, self.resolved, **how, read=self.read)


def check_representation(recipe: Recipe) -> None:
    """Raise unless a recipe has a stage 1."""
    if recipe.representation is None:
        raise ValueError(
            f"recipe {recipe.name!r} has no representation stage; expected one. Combine it with "
            f"one that has, as in 'wd/{recipe.name}'."
        )


def data_record(data: DataSet | FeatureData) -> dict[str, Any]:
    """Describe what a run was trained on.

    Parameters
    ----------
    data : DataSet or FeatureData
        Its data.

    Returns
    -------
    dict
        Name and description, and digests by which images or features are recognised.
    """
    record = {"name": data.name, **data.description}
    if isinstance(data, FeatureData):
        record["features"] = {"width": data.n_features, "sha256": _fingerprint(data)}
    else:
        record["images"] = {part: _fingerprint(images) for part, images in data.parts.items()}
    return record


# Jobs share their data, and each needs its digests several times.
_FINGERPRINTS: WeakKeyDictionary[ImageSet | FeatureData, str] = WeakKeyDictionary()


def _fingerprint(data: ImageSet | FeatureData) -> str:
    if data not in _FINGERPRINTS:
        _FINGERPRINTS[data] = data.fingerprint()
    return _FINGERPRINTS[data]


@dataclass(frozen=True)
class Progress:
    """What a job tells while it runs.

    Attributes
    ----------
    job : Job
        Which job.
    epoch : int
        Epochs done, of all phases.
    loss : float
        Mean loss of the last one.
    scores : dict of str to float
        Accuracy of each group on the test set after this epoch; empty where it was not evaluated.
    """

    job: Job
    epoch: int
    loss: float
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The phase of stage 1 that the last epoch was of."""
        phases = self.job.phases
        ends = accumulate(settings.epochs for settings in phases.values())
        return next(name for name, end in zip(phases, ends, strict=True) if self.epoch <= end)


Watcher = Callable[[Progress], None]
"""Told how far a job is."""


def run_jobs(
    jobs: Sequence[Job], options: Options, watch: Watcher | None = None
) -> list[dict[str, Any]]:
    """Run jobs, all at once in this process; on a GPU each has a stream.

    Where runs are resumed, those that are finished are not run again. Nothing is begun before
    every folder has been checked.

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
        with joined(options.device, options.timeout) as processes:
            own = replace(options, device=processes.fabric.device)
            return [_run_with_other_processes(job, own, watch, processes) for job in jobs]
    waiting = [job for job in jobs if not is_done(job, options)]
    with ExitStack() as stack:
        runs = [stack.enter_context(job.create_run(job.folder, options)) for job in waiting]
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
    if os.environ.get("RANK", "0") != "0":
        # The first process checks the folder, and may have begun to fill it.
        return options.resume and (job.folder / EVALUATION).exists()
    how: dict[str, Any] = {"resume": options.resume, "overwrite": options.overwrite}
    return is_finished(job.folder, as_json(job.resolved, "resolved"), **how, read=job.read)


def _run_with_other_processes(
    job: Job, options: Options, watch: Watcher | None, processes: Processes
) -> dict[str, Any]:
    """Run one job in every process of a group, as torchrun starts them; the first keeps the run."""
    fabric = processes.fabric
    with ExitStack() as stack:
        if is_done(job, options):
            return Run.open(job.folder).evaluation()
        # One process keeps the run; the others only take their part of every batch.
        run = None
        if fabric.global_rank == 0:
            run = stack.enter_context(job.create_run(job.folder, options))
        fabric.barrier()
        [record] = interleave([_steps(job, run, options, watch, processes)])
        fabric.barrier()
    return record


def _steps(
    job: Job,
    run: Run | None,
    options: Options,
    watch: Watcher | None,
    processes: Processes | None = None,
) -> Steps[dict[str, Any]]:
    """Run a job, keeping it in its run."""
    fabric: Any = None if processes is None else processes.fabric
    pipeline = Pipeline(job.data, job.seed, options, fabric=fabric)
    evaluate_every = max(1, job.recipe.n_epochs // _EVALUATIONS)

    def after_epoch(training: RepresentationTraining, epoch: Epoch) -> None:
        done, loss, scores = epoch.number + 1, epoch.loss, {}
        if fabric is not None:  # each process knows the loss of its part of the batches
            own = torch.tensor(loss, dtype=torch.float64, device=options.device)
            loss = float(fabric.all_reduce(own, reduce_op="mean"))
        if done % evaluate_every == 0 and done < job.recipe.n_epochs:
            with _first_alone(processes):
                if run is not None:
                    scores = group_scores(pipeline.evaluate_training(training))
        if run is not None:
            run.log(epoch.step, epoch.number, loss=loss, **scores)
        if watch is not None:
            watch(Progress(job, done, loss, scores))

    if isinstance(job.data, DataSet):
        yield from pipeline.train(
            job.phases,
            last=Run.open(job.folder).last_checkpoint(),
            save=None if run is None else run.checkpoint,
            after_epoch=after_epoch,
        )
    with _first_alone(processes):
        return {} if run is None else _finish(job, run, pipeline)


def _first_alone(processes: Processes | None) -> AbstractContextManager[None]:
    return nullcontext() if processes is None else processes.first_alone()


def _finish(job: Job, run: Run, pipeline: Pipeline) -> dict[str, Any]:
    """Learn stage 2, evaluate both stages and finish the run with what they came to."""
    has_images = isinstance(job.data, DataSet)
    stages = {"representation": pipeline.representation} if has_images else {}
    if job.recipe.classifier is not None:
        stages |= pipeline.learn({"classifier": job.recipe.classifier})
    record = evaluate_stages(stages)
    run.finish(record, stage_weights(stages), _network_record(job.data, stages))
    return record


def _network_record(data: DataSet | FeatureData, stages: Mapping[str, Stage]) -> dict[str, Any]:
    """Say what the network of a run needs beside recipe and weights."""
    if isinstance(data, FeatureData):
        return {"classes": list(map(str, data.classes))}
    record: dict[str, Any] = {"classes": list(map(str, data.train.classes))}
    features = stages["representation"].features
    inputs = getattr(getattr(features, "backbone", None), "input_spec", None) or InputSpec()
    if data.train.pixels is not None:
        height, width = data.train.pixels.shape[2:]
        if height != width:  # no photo of another shape can become one
            return record
        inputs = InputSpec(height, CIFAR_MEAN, CIFAR_STD, crop=1.0, squash=True)
    return {**record, "inputs": asdict(inputs)}


def group_scores(evaluation: Evaluation) -> dict[str, float]:
    """Give the accuracy of all images and of each group of classes, where there are such."""
    scores = {name: getattr(evaluation, name) for name in ("all", "many", "medium", "few")}
    return {name: value for name, value in scores.items() if value is not None}


def scores_by_row(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give the scores of a run, as in its ``evaluation.json``, by their row of a table."""
    return {
        f"{stage} (flip)" if view == "mirrored" else stage: scores
        for stage, views in record.items()
        for view, scores in views.items()
        if view != "cost"
    }


def scores_table(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Make a rich table of the scores of runs, by name: a row for each stage and view."""
    return results_table(
        {
            row if len(runs) == 1 else f"{name}: {row}": Evaluation.from_dict(scores)
            for name, record in runs.items()
            for row, scores in scores_by_row(record).items()
        }
    )

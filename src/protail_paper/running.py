"""Running the experiments that are missing: a representation together with all its classifiers."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor

from protail.data.images import DataSet
from protail.experiments import (
    Job,
    Options,
    Pipeline,
    Run,
    RunError,
    data_record,
    describe_surroundings,
    differing_keys,
    load_stages,
)
from protail.models.backbones import save_weights
from protail.recipes import Recipe, recipe_hash
from protail.training import (
    DivergenceError,
    Epoch,
    FrozenFeatures,
    RepresentationTraining,
    Steps,
    interleave,
    make_streams,
    weights_hash,
)
from protail.utils import OutputError, counted
from protail_paper._pool import Begun, Pool, timed_steps
from protail_paper.forecasts import expected_seconds
from protail_paper.groups import Group, missing_groups
from protail_paper.large import miniature_size
from protail_paper.results import Results
from protail_paper.scores import score_head
from protail_paper.wanted import Experiment, Subset

Say = Callable[[str], None]
LoadData = Callable[[Subset], DataSet]
# How often a training says where it is.
_EVALUATIONS = 5


def run_missing(
    wanted: Iterable[Experiment],
    results: Results,
    load: LoadData,
    options: Options,
    *,
    known: Iterable[Experiment] = (),
    budget: float | None = None,
    at_once: int = 4,
    weights: Path | None = None,
    say: Say = lambda text: None,
) -> int:
    """Run the experiments that are missing, as far as the time allows.

    Every finished result is kept at once, and the next training begins where one has ended. Nothing
    is begun that is not likely to end in time. A training that was killed goes on from its last
    checkpoint, which lies in a run in a folder ``runs`` beside the results, and is removed when
    the last of its results is there. An error in one training, or in what depends on it, is told,
    and raised when all others are done.

    Parameters
    ----------
    wanted : iterable of Experiment
        The most wanted first.
    results : Results
        What is there, and where new ones go.
    load : callable
        Gives the images of a subset.
    options : Options
        How to run.
    known : iterable of Experiment
        Experiments beside those wanted, which are run again where their representation is.
    budget : float, optional
        Seconds.
    at_once : int, default=4
        Trainings at once; on a GPU each has a stream.
    weights : Path, optional
        A folder to keep the trained backbones in.
    say : callable, optional
        Told what happens, line by line.

    Returns
    -------
    int
        How many experiments were run.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once!r}; expected at least 1 training.")
    work = _Work(results, cache(load), options, weights, say)

    def expected(group: Group) -> float | None:
        return expected_seconds(group, results, work.gpus)

    wanted = list(wanted)
    groups = missing_groups(wanted, results, known)
    work.tidy({group.file for group in missing_groups(wanted, ())} - {g.file for g in groups})
    pool = Pool(groups, expected, budget)
    n_slots = min(at_once, len(pool.waiting))
    streams = make_streams(options.device, n_slots)
    with ExitStack() as stack:  # whatever ends this, the runs of trainings are closed
        slots = [stack.enter_context(closing(work.slot(pool))) for _ in range(n_slots)]
        n_run = sum(interleave(slots, streams))
    if pool.waiting:
        left_over = counted(len(pool.waiting), "training is", "trainings are")
        unknown = any(expected(group) is None for group in pool.waiting)
        or_unknown = ", or nothing tells how long it takes" if unknown else ""
        say(f"{left_over} left: not enough time for another one{or_unknown}.")
    if work.errors:
        raise work.errors[0]
    return n_run


class _Work:
    """Train representations at once, then evaluate everything that depends on each."""

    def __init__(
        self, results: Results, load: LoadData, options: Options, weights: Path | None, say: Say
    ) -> None:
        self._results, self._load = results, load
        self._options = replace(options, resume=True, overwrite=False)
        self._weights, self._say = weights, say
        self._runs = results.folder.parent / "runs" / results.folder.name
        self._about = describe_surroundings()
        self.gpus: list[str] = self._about["gpus"] if options.device.type == "cuda" else []
        self._about["gpus"] = self.gpus
        self.errors: list[Exception] = []

    def tidy(self, finished: set[str]) -> None:
        """Remove the runs of groups whose results are there: they were killed at their very end."""
        for run in self._runs.glob("*"):
            if f"{run.name.rpartition('-')[0]}.safetensors" in finished:
                _remove(run)

    def slot(self, pool: Pool) -> Steps[int]:
        """Train one group after the other, and evaluate each; count the results that came of it."""
        n_run = 0
        while True:
            begun = pool.begin()
            if begun is None and pool.is_idle:
                return n_run
            yield  # to others, who begin theirs: what comes before the first step is shared too
            if begun is None:
                continue
            pipeline, n_results = None, 0
            with self._told(begun.group, OutputError):
                steps, tell = self._train(begun, pool), partial(pool.tell_step, begun)
                pipeline = yield from timed_steps(steps, tell, self._options.device)
            if pipeline is not None:
                if self._options.device.type == "cuda":
                    gc.collect()  # captured steps hold much of it
                with pool.aside(), self._told(begun.group, OSError):
                    n_results = self._evaluate(begun, pipeline)
                    _remove(begun.run)
            # Only now: what was evaluated may tell how long others take.
            pool.end(begun, well=n_results > 0)
            n_run += n_results

    @contextmanager
    def _told(self, group: Group, fatal: type[OSError]) -> Iterator[None]:
        """Go on after an error in one group; if nothing more can be kept, raise what is fatal."""
        try:
            yield
        except fatal:
            raise
        except Exception as error:
            self._say(f"{group.name}: {type(error).__name__}: {error}")
            clear_frames(error.__traceback__)  # which hold a network and all it was trained with
            self.errors.append(error)

    def _train(self, begun: Begun, pool: Pool) -> Steps[Pipeline | None]:
        """Train the representation of a group; None where it diverges."""
        group, first = begun.group, begun.group.first
        every = max(1, first.recipe.n_epochs // _EVALUATIONS)
        job = self._job(group)
        assert isinstance(job.data, DataSet)
        pipeline, begun.run = Pipeline(job.data, job.seed, self._options), job.folder

        def tell(training: RepresentationTraining, epoch: Epoch) -> None:
            if (epoch.number + 1) % every == 0:
                self._say(f"{group.name}: epoch {epoch.number + 1}, loss {epoch.loss:.3f}")

        def save(tensors: Mapping[str, Tensor], record: dict[str, Any]) -> None:
            with pool.aside():
                run.checkpoint(tensors, {**record, "took": begun.took})

        with job.create_run(job.folder, self._options) as run:
            last = run.last_checkpoint()
            if last is not None:
                begun.take_up(last.record["took"])
            try:
                yield from pipeline.train(job.phases, last=last, save=save, after_epoch=tell)
            except DivergenceError as error:
                self._say(f"{group.name}: {error}")
            else:
                return pipeline
        for experiment in group.experiments:
            self._results.add(experiment, {"diverged": True, "about": self._about})
        _remove(job.folder)
        return None

    def _job(self, group: Group) -> Job:
        """Say what is trained for a group, and in which run it is kept until its results are."""
        first = group.first
        data = self._load(first.subset)
        if miniature_size(first.subset, data) != first.subset.miniature:
            raise ValueError(
                f"{first.subset.folder} has {len(data.train):,} training images here; expected "
                "those that its name says. Mark experiments on other images with mark_miniatures."
            )
        job = Job(replace(first.recipe, classifier=None), data, first.seed, self._runs)
        # Another one where anything differs, so that what is there can always be gone on with.
        name = hashlib.sha256(json.dumps(job.resolved, sort_keys=True).encode()).hexdigest()[:10]
        return replace(job, folder=self._runs / f"{Path(group.file).stem}-{name}")

    def _evaluate(self, begun: Begun, pipeline: Pipeline) -> int:
        """Evaluate stage 1, learn the classifiers of a group and evaluate them."""
        group, (head, frozen) = begun.group, pipeline.representation
        assert isinstance(frozen, FrozenFeatures)
        backbone = weights_hash(frozen.backbone)[:16]
        shared = {"backbone": backbone, "about": self._about}
        # One that was stopped while it was evaluated goes on with what is missing.
        missing = [each for each in group.experiments if not self._is_of(each, backbone)]
        if self._weights is not None:
            save_weights(frozen.backbone.state_dict(), self._weights / group.file)
        took = {"representation": round(begun.seconds, 2)}
        if begun.step is not None:
            took |= {"step": round(begun.step, 6), "guessed": round(begun.guessed, 2)}
        classifiers = {experiment.key: experiment.recipe.classifier for experiment in missing}
        wanted = {key: one for key, one in classifiers.items() if one is not None}
        for experiment in missing:
            if experiment.key not in wanted:
                self._keep(experiment, {**score_head(head, frozen), "seconds": took, **shared})
        began = time.monotonic()
        learned = pipeline.learn(wanted, skip_diverged=True)
        if wanted:
            took = {**took, "classifier": round((time.monotonic() - began) / len(wanted), 3)}
        for experiment in missing:
            if experiment.key in learned:
                evaluated = score_head(*learned[experiment.key])
                self._keep(experiment, {**evaluated, "seconds": took, **shared})
            elif experiment.key in wanted:
                self._say(f"diverged  {experiment.command}")
                self._results.add(experiment, {"diverged": True, "seconds": took, **shared})
        return len(missing)

    def _is_of(self, experiment: Experiment, backbone: str) -> bool:
        """Say whether the result of an experiment is there, and of this trained backbone."""
        there = self._results.get(experiment)
        return there is not None and there.record.get("backbone") == backbone

    def _keep(self, experiment: Experiment, outcome: Mapping[str, Any]) -> None:
        self._results.add(experiment, outcome)
        self._say(f"{100 * outcome['scores']['plain']['all']:5.2f} %  {experiment.command}")


def _remove(run: Path) -> None:
    """Remove a run whose results are kept, and the folders above it that it leaves empty."""
    shutil.rmtree(run, ignore_errors=True)
    with suppress(OSError):
        run.parent.rmdir()
        run.parent.parent.rmdir()


def take_run(
    folder: Path,
    wanted: Iterable[Experiment],
    results: Results,
    load: LoadData,
    device: torch.device,
) -> Experiment:
    """Keep what a finished run came to as the result of the experiment that it is the same as.

    Parameters
    ----------
    folder : Path
        The run, as ``protail train`` writes it.
    wanted : iterable of Experiment
        The experiments that it may be.
    results : Results
        Where the result goes.
    load : callable
        Gives the images of a subset: they are predicted again, as a result says which are right.
    device : torch.device
        Where to predict them.

    Returns
    -------
    Experiment
        The one with the run's recipe, images and seed; where there is none, a RunError says so.
    """
    run = Run.open(folder)
    name = recipe_hash(Recipe.from_resolved(run.resolved["recipe"]).resolved())
    for experiment in wanted:
        same_recipe = recipe_hash(experiment.recipe.resolved()) == name
        if not same_recipe or experiment.seed != run.resolved["seed"]:
            continue
        data = load(experiment.subset)
        found = json.loads(json.dumps(data_record(data)))
        is_real = miniature_size(experiment.subset, data) == experiment.subset.miniature
        if not is_real or differing_keys(run.resolved["data"], found):
            continue
        stages = load_stages(run, data, device)
        first, last = stages["representation"].features, list(stages.values())[-1]
        assert isinstance(first, FrozenFeatures)
        shared = {"backbone": weights_hash(first.backbone)[:16], "about": run.sessions[-1]}
        results.add(experiment, {**score_head(last.head, last.features), **shared})
        return experiment
    raise RunError(
        f"{folder}: no experiment has the recipe, images and seed of this run; expected a run "
        "that is wanted. protail bench status --json lists those that are missing."
    )

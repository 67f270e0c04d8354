"""Search for settings of a recipe, scored on training images that no stage of it sees.

The test images never enter: a part of each class's training images takes their place
(`held_out_data`). Once the search has chosen, train the recipe it gives on all of them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
from numpy.typing import NDArray

from protail._messages import unknown_name
from protail.data.images import DataSet
from protail.evaluation import Evaluation
from protail.experiments.data_sets import held_out_data
from protail.experiments.jobs import Job, check_representation, group_scores, run_jobs
from protail.experiments.pipeline import Options, Pipeline, Stage, evaluate
from protail.experiments.run import EVALUATION, Run
from protail.experiments.trials import Journal, SearchedKey, SearchTrial, value_of
from protail.recipes import Recipe
from protail.training import (
    DivergenceError,
    Epoch,
    FeatureCache,
    RepresentationTraining,
    Steps,
    interleave,
    make_streams,
)

if TYPE_CHECKING:
    from optuna.trial import Trial

NextTrial = Callable[[], "Trial | None"]
Watcher = Callable[[SearchTrial], None]

SCORES = ("balanced", "few", "all")

# How often a training is evaluated on its way, at most.
_EVALUATIONS = 10
# Heads that learn together where only stage 2 is searched: enough to fill a GPU, few enough for
# the sampler to learn something between two groups.
_HEADS_AT_ONCE = 16


@dataclass(frozen=True)
class Search:
    """What to look for, and by which score.

    Parameters
    ----------
    recipe : Recipe
        Where to start from.
    data : DataSet
        Its training images are parted; its test images are never looked at.
    keys : tuple of SearchedKey
        What to vary.
    score : {"balanced", "few", "all"}
        What to maximise on the held-out images: the mean accuracy of the classes, of those with
        few training images, or the accuracy of all images.
    fraction : float
        How much of each class to hold out.
    seed : int
        Of the parts, of the trainings and of what is tried.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> from protail.experiments import Search, read_searched_keys
    >>> from protail.recipes import load_recipe
    >>> pixels = np.arange(12, dtype=np.uint8).repeat(3).reshape(12, 3, 1, 1)
    >>> images = ImageSet([0] * 8 + [1] * 4, ("ant", "bee"), pixels)
    >>> recipe = load_recipe("pc-la")
    >>> keys = read_searched_keys(["classifier.tau"], recipe)
    >>> search = Search(recipe, DataSet("insects", images, images), keys)
    >>> search.held_out, search.is_of_heads
    (DataSet(insects: 9 train, 3 test, 2 classes), True)
    """

    recipe: Recipe
    data: DataSet
    keys: tuple[SearchedKey, ...]
    score: str = "balanced"
    fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_representation(self.recipe)
        if not self.keys:
            raise ValueError("keys is empty; expected at least one setting to vary.")
        if self.score not in SCORES:
            raise ValueError(unknown_name("score", self.score, SCORES))
        truth, classes = self.held_out.test.labels, range(len(self.counts))
        perfect = Evaluation.from_predictions(truth, truth, classes=classes, counts=self.counts)
        if self.score not in _scores(perfect):
            raise ValueError(
                f"score={self.score!r}: no class with fewer than 20 training images has one held "
                "out; expected some. Take score='balanced'."
            )

    @cached_property
    def held_out(self) -> DataSet:
        """The training images, in a part to learn from and one to evaluate on."""
        return held_out_data(self.data, fraction=self.fraction, seed=self.seed)

    @property
    def counts(self) -> NDArray[np.int64]:
        """All training images of each class, the held-out ones too."""
        return self.data.train.profile.counts

    @property
    def is_of_heads(self) -> bool:
        """Whether only stage 2 is searched, so that one representation will do."""
        return all(key.stage == "classifier" for key in self.keys)

    @property
    def first(self) -> dict[str, Any]:
        """The recipe's own values, where the ranges hold them: they are tried first."""
        values = {key.key: value_of(self.recipe, key.key) for key in self.keys}
        return values if all(key.holds(values[key.key]) for key in self.keys) else {}

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything that the scores depend on, in plain values."""
        resolved = self.recipe.resolved()
        images = self.data.train.fingerprint()
        return {
            "recipe": {stage: resolved[stage] for stage in self.recipe.stages},
            "data": {"name": self.data.name, **self.data.description, "train": images},
            "over": {key.key: key.text for key in self.keys},
            "score": self.score,
            "held_out": self.fraction,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    search : Search
        What was searched.
    trials : tuple of SearchTrial
        Everything that was tried, by every worker.
    """

    search: Search
    trials: tuple[SearchTrial, ...]

    @property
    def best(self) -> SearchTrial | None:
        """The trial with the highest score, of equals the first; None while none is done."""
        done = [trial for trial in self.trials if trial.score is not None]
        return max(done, key=lambda trial: trial.score or 0.0, default=None)

    @property
    def recipe(self) -> Recipe:
        """The recipe with the best values in it."""
        if self.best is None:
            raise ValueError(
                "no trial has come to its end yet; expected one. Go on with the same journal and "
                "more trials or a larger budget."
            )
        return self.search.recipe.with_overrides(self.best.params)

    def to_dict(self) -> dict[str, Any]:
        """Turn the result into plain values: what was searched, the best trial, every trial."""
        trials = [{**asdict(trial), "looks": list(trial.looks)} for trial in self.trials]
        best = self.best
        found = next((one for one in trials if best and one["number"] == best.number), None)
        return {"format": "protail-search", **self.search.about, "best": found, "trials": trials}


def run_search(
    search: Search,
    journal: Path | str,
    *,
    n_trials: int = 20,
    budget: float | None = None,
    at_once: int | None = None,
    pruner: str = "none",
    options: Options | None = None,
    watch: Watcher | None = None,
    files: Path | None = None,
) -> SearchResult:
    """Try settings until there are enough trials or the time is used up.

    Several processes may share the journal. The trials of one that died are tried again by
    another, or by whoever goes on with the journal.

    Parameters
    ----------
    search : Search
        What to look for.
    journal : Path or str
        The file that trials are written to; one that is there is gone on with. Or the address of
        a PostgreSQL database, ``"postgresql://..."``, in which each search is a study of its own.
    n_trials : int, default=20
        Trials in all, those of other workers and of earlier times included.
    budget : float, optional
        Seconds. No trial is begun that is not likely to end in time, as far as earlier ones tell.
    at_once : int, optional
        Trainings in this process at once, on a GPU in a stream each; by default 1, and where only
        stage 2 is searched 16 heads, which learn together.
    pruner : {"none", "median", "hyperband"}
        Whether trainings are given up when they compare badly with others on their way.
    options : Options, optional
        How to run; by default on a GPU where there is one.
    watch : callable, optional
        Told of each trial that has ended.
    files : Path, optional
        With a database, where this machine keeps the representation that heads are learned on;
        by default ``search.files``.

    Returns
    -------
    SearchResult
        All trials in the journal.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> from protail.experiments import Options, Search, read_searched_keys, run_search
    >>> from protail.recipes import load_recipe
    >>> pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    >>> data = DataSet("noise", *[ImageSet([0] * 8 + [1] * 4, ("ant", "bee"), pixels)] * 2)
    >>> small = {"representation.backbone": "resnet32", "representation.epochs": 0}
    >>> recipe = load_recipe("pc").with_overrides(small)
    >>> search = Search(recipe, data, read_searched_keys(["classifier.tau"], recipe))
    >>> place = Path(tempfile.mkdtemp()) / "tau.journal"
    >>> result = run_search(search, place, n_trials=3, options=Options.automatic("cpu"))
    >>> len(result.trials), result.trials[0].params
    (3, {'classifier.tau': 0.0})
    """
    if n_trials < 1:
        raise ValueError(f"trials={n_trials}; expected a whole number from 1 on.")
    if budget is not None and not budget > 0:
        raise ValueError(f"budget={budget}; expected seconds above 0.")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once}; expected a whole number from 1 on.")
    began = time.monotonic()
    how: dict[str, Any] = {
        "first": search.first,
        "seed": search.seed,
        "pruner": pruner,
        "files": files,
    }
    n_evaluations = min(_EVALUATIONS, search.recipe.n_epochs)
    with Journal(journal, search.about, search.keys, **how, n_evaluations=n_evaluations) as opened:

        def next_trial() -> Trial | None:
            # A trial may take as long as the longest that was not given up.
            done = (trial for trial in opened.trials() if trial.state == "done")
            longest = max((trial.seconds or 0.0 for trial in done), default=0.0)
            if budget is not None and time.monotonic() - began + longest > budget:
                return None
            return opened.next_trial(n_trials)

        work = _Work(search, opened, options or Options.automatic(), watch or (lambda trial: None))
        run = work.learn_heads if search.is_of_heads else work.train
        run(next_trial, at_once or (_HEADS_AT_ONCE if search.is_of_heads else 1))
        return SearchResult(search, tuple(opened.trials()))


class _GiveUpError(Exception):
    """A pruner has seen enough of a training."""


class _Work:
    """Try the trials of a search, and write down what they come to."""

    def __init__(self, search: Search, journal: Journal, options: Options, watch: Watcher) -> None:
        self._search, self._journal = search, journal
        self._options, self._watch = options, watch

    def train(self, next_trial: NextTrial, at_once: int) -> None:
        """Train both stages of each trial; each of several lanes takes one after the other."""
        streams = make_streams(self._options.device, at_once)
        interleave([self._lane(next_trial) for _ in range(at_once)], streams)

    def _lane(self, next_trial: NextTrial) -> Steps[None]:
        while (trial := next_trial()) is not None:
            try:
                stage = yield from self._steps(trial)
            except DivergenceError:
                self._end(trial, "diverged")
            except _GiveUpError:
                self._end(trial, "pruned")
            else:
                self._end_well(trial, stage)
                del stage
            # A training and its driver know each other: only this frees what they hold on a GPU.
            if self._options.device.type == "cuda":
                gc.collect()

    def _steps(self, trial: Trial) -> Steps[Stage]:
        search = self._search
        recipe = search.recipe.with_overrides(trial.params)
        pipeline = Pipeline(search.held_out, search.seed, self._options)
        every = max(1, recipe.n_epochs // _EVALUATIONS)

        def after_epoch(training: RepresentationTraining, epoch: Epoch) -> None:
            done = epoch.number + 1
            if done % every or done == recipe.n_epochs:
                return
            trial.report(_scores(pipeline.evaluate_training(training))[search.score], done // every)
            if trial.should_prune():
                raise _GiveUpError

        yield from pipeline.train(recipe.phases, after_epoch=after_epoch)
        if recipe.classifier is None:
            return pipeline.representation
        return pipeline.learn({"": recipe.classifier})[""]

    def learn_heads(self, next_trial: NextTrial, at_once: int) -> None:
        """Train the representation once, then on it the heads of several trials together."""
        search = self._search
        cache = FeatureCache(self._options.cache)  # used by every group of heads
        pipeline = Pipeline(search.held_out, search.seed, self._options, cache=cache)
        pipeline.load(self._trained_run())
        while True:
            trials: list[Trial] = []
            while len(trials) < at_once and (trial := next_trial()) is not None:
                trials.append(trial)
            if not trials:
                return
            settings = {}
            for trial in trials:
                classifier = search.recipe.with_overrides(trial.params).classifier
                assert classifier is not None
                settings[str(trial.number)] = classifier
            learned = pipeline.learn(settings, skip_diverged=True)
            for trial in trials:
                stage = learned.get(str(trial.number))
                if stage is None:
                    self._end(trial, "diverged")
                else:
                    self._end_well(trial, stage)

    def _trained_run(self) -> Run:
        """Open the run of the representation; make it first, or wait for whoever does."""
        search = self._search
        recipe = replace(search.recipe, classifier=None)
        # Named by everything it depends on, for other workers and for the next time.
        stages = {stage: search.about["recipe"][stage] for stage in recipe.stages}
        about = {key: search.about[key] for key in ("data", "held_out", "seed")}
        about["recipe"] = stages if len(stages) > 1 else stages["representation"]
        name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        place = self._journal.files / "representation"
        place.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(place / "lock"):
            if not (place / name / EVALUATION).is_file():
                job = Job(recipe, search.held_out, search.seed, place / name)
                run_jobs([job], replace(self._options, resume=True, overwrite=False))
        return Run.open(place / name)

    def _end_well(self, trial: Trial, stage: Stage) -> None:
        scores = _scores(evaluate(stage))
        self._end(trial, "done", scores[self._search.score], scores)

    def _end(self, trial: Trial, *how: Any) -> None:
        self._watch(self._journal.end(trial, *how))


def _scores(evaluation: Evaluation) -> dict[str, float]:
    """Give everything a search may be scored by, and the other groups; what there is of them."""
    return {"balanced": evaluation.balanced_accuracy, **group_scores(evaluation)}

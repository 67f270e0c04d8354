"""The work of a search: trainings in lanes, or many heads on one backbone."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from protail.evaluation import Evaluation
from protail.recipes._search_data import judge, judge_features, scores_of
from protail.recipes._search_journal import Journal
from protail.recipes._search_locks import Mutex
from protail.recipes._search_trials import OpenTrial, SearchTrial
from protail.recipes.running import Job, Options, run_jobs
from protail.recipes.stage_one import training_maker
from protail.training._run_folder import EVALUATION
from protail.training.classifier import learn_heads, learn_stable_heads
from protail.training.feature_cache import FeatureCache
from protail.training.frozen import FrozenFeatures
from protail.training.loop import Steps, interleave, make_streams
from protail.training.making import build_method
from protail.training.phases import representation_steps
from protail.training.progress import DivergenceError, Epoch
from protail.training.representation import RepresentationTraining
from protail.training.runs import Run

if TYPE_CHECKING:
    from protail.recipes.search import Search

NextTrial = Callable[[], OpenTrial | None]
Watcher = Callable[[SearchTrial], None]

# How often a training is looked at, at most.
LOOKS = 10


class _GiveUpError(Exception):
    """A pruner has seen enough of a training."""


class Trainings:
    """Try trials by training both stages; each of several lanes takes one after the other.

    Parameters
    ----------
    search : Search
        What is searched.
    journal : Journal
        Where trials are written down.
    options : Options
        How to run.
    watch : callable
        Told of each trial that has ended.
    """

    def __init__(self, search: Search, journal: Journal, options: Options, watch: Watcher) -> None:
        self._search, self._journal = search, journal
        self._options, self._watch = options, watch

    def run(self, next_trial: NextTrial, at_once: int) -> None:
        """Try trials until there is no next one."""
        streams = make_streams(self._options.device, at_once)
        interleave([self._lane(next_trial) for _ in range(at_once)], streams)

    def _lane(self, next_trial: NextTrial) -> Steps[None]:
        while (trial := next_trial()) is not None:
            try:
                evaluation = yield from self._try(trial)
            except DivergenceError:
                ended = self._journal.diverged(trial)
            except _GiveUpError:
                ended = self._journal.pruned(trial)
            else:
                scores = scores_of(evaluation)
                ended = self._journal.done(trial, scores[self._search.score], scores)
            # A training and its driver know each other: only this frees what they hold on a GPU.
            gc.collect()
            self._watch(ended)

    def _try(self, trial: OpenTrial) -> Steps[Evaluation]:
        search, options = self._search, self._options
        recipe = search.recipe.with_overrides(trial.params)
        method = yield from representation_steps(
            recipe.phases,
            training_maker(search.held_out, search.seed, options),
            after_epoch=lambda training, epoch: self._look(trial, training, epoch, recipe.n_epochs),
        )
        head: nn.Module = method.head
        frozen = FrozenFeatures(method.backbone, search.held_out, options.device)
        if recipe.classifier is not None:
            wanted = {"": recipe.classifier}
            how: dict[str, Any] = {"driver": options.head_driver, "first_head": head}
            head = learn_heads(wanted, frozen, seed=search.seed, **how)[""]
            frozen = frozen.for_stage(recipe.classifier, search.seed)
        return judge(head, frozen, search.held_out, search.counts)

    def _look(
        self, trial: OpenTrial, training: RepresentationTraining, epoch: Epoch, n_epochs: int
    ) -> None:
        done = epoch.number + 1
        every = max(1, n_epochs // LOOKS)
        if done % every or done == n_epochs:
            return
        method, search = training.evaluated, self._search
        frozen = FrozenFeatures(method.backbone, search.held_out, self._options.device)
        # The precision of the training: a GPU has chosen its kernels for it already.
        precision = training.settings.precision
        seen = judge(method.head, frozen, search.held_out, search.counts, precision)
        scores = scores_of(seen)
        if trial.look(done // every, scores[search.score]):
            raise _GiveUpError


class Heads:
    """Try trials that differ in stage 2 only: train the representation once, then heads on it.

    Parameters
    ----------
    search, journal, options, watch
        As in `Trainings`. The representation is kept beside the journal, for other workers and
        for the next time.
    """

    def __init__(self, search: Search, journal: Journal, options: Options, watch: Watcher) -> None:
        self._search, self._journal = search, journal
        self._options, self._watch = options, watch

    def run(self, next_trial: NextTrial, at_once: int) -> None:
        """Try trials until there is no next one."""
        search = self._search
        frozen, first_head = self._trained()
        while trials := _up_to(at_once, next_trial):
            settings = {}
            for trial in trials:
                classifier = search.recipe.with_overrides(trial.params).classifier
                assert classifier is not None
                settings[str(trial.number)] = classifier
            heads = learn_stable_heads(
                settings,
                frozen,
                seed=search.seed,
                driver=self._options.head_driver,
                first_head=first_head,
            )
            for trial in trials:
                head = heads.get(str(trial.number))
                if head is None:
                    self._watch(self._journal.diverged(trial))
                else:
                    held_out = frozen.for_stage(settings[str(trial.number)], search.seed).test()
                    judged = judge_features(head, held_out, search.held_out, search.counts)
                    scores = scores_of(judged)
                    self._watch(self._journal.done(trial, scores[search.score], scores))

    def _trained(self) -> tuple[FrozenFeatures, nn.Module]:
        search, device = self._search, self._options.device
        settings = search.recipe.representation
        assert settings is not None
        weights = self._trained_run().weights()
        method = build_method(settings, search.held_out.train.profile.counts, search.seed)
        for module, part in ((method.backbone, "backbone."), (method.head, "representation.")):
            own = {k.removeprefix(part): w for k, w in weights.items() if k.startswith(part)}
            module.load_state_dict(own)
        cache = FeatureCache(self._options.cache)
        frozen = FrozenFeatures(method.backbone.to(device), search.held_out, device, cache)
        return frozen, method.head.to(device)

    def _trained_run(self) -> Run:
        """Open the run of the representation; make it first, or wait for whoever does."""
        search = self._search
        recipe = replace(search.recipe, classifier=None)
        place = self._journal.files / "representation"
        resolved = recipe.resolved()
        stages = {stage: resolved[stage] for stage in recipe.stages}
        about = stages if len(stages) > 1 else stages["representation"]
        folder = place / _name({**search.about, "recipe": about})
        place.mkdir(parents=True, exist_ok=True)
        with Mutex(place):
            if not (folder / EVALUATION).is_file():
                job = Job(recipe, search.held_out, search.seed, folder)
                run_jobs([job], replace(self._options, resume=True, overwrite=False))
        return Run.open(folder)


def _name(about: dict[str, Any]) -> str:
    """Name a representation by everything it hangs on."""
    parts = {key: about[key] for key in ("recipe", "data", "held_out", "seed")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _up_to(most: int, next_trial: NextTrial) -> Sequence[OpenTrial]:
    trials: list[OpenTrial] = []
    while len(trials) < most and (trial := next_trial()) is not None:
        trials.append(trial)
    return trials

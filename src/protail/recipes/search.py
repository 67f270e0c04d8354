"""Search for settings of a recipe, judged on training images that no stage of it sees.

The test images never enter: a part of each class's training images stands in their place
(`held_out_data`). Once the search has chosen, train the recipe it gives on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.sets import DataSet
from protail.recipes._aside_data import aside_data
from protail.recipes._recipe import Recipe
from protail.recipes._search_data import SCORES, check_score, held_out_data
from protail.recipes._search_journal import PRUNERS, Journal
from protail.recipes._search_keys import SearchedKey, read_searched_keys, value_of
from protail.recipes._search_trials import OpenTrial, SearchTrial
from protail.recipes._search_work import LOOKS, Heads, Trainings, Watcher
from protail.recipes.running import Options

__all__ = [
    "PRUNERS",
    "SCORES",
    "Search",
    "SearchResult",
    "SearchTrial",
    "SearchedKey",
    "aside_data",
    "held_out_data",
    "read_searched_keys",
    "run_search",
]

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
        few training images, or the share of images.
    share : float
        How much of each class to hold out.
    seed : int
        Of the parts, of the trainings and of what is tried.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets import DataSet, ImageSet
    >>> from protail.recipes import load_recipe
    >>> from protail.recipes.search import Search, read_searched_keys
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
    share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.recipe.representation is None:
            raise ValueError(
                f"recipe {self.recipe.name!r} has no representation stage; expected one. Combine "
                f"it with one that has, as in 'wd/{self.recipe.name}'."
            )
        if not self.keys:
            raise ValueError("keys is empty; expected at least one setting to vary.")
        check_score(self.score, self.held_out, self.counts)

    @cached_property
    def held_out(self) -> DataSet:
        """The training images, in a part to learn from and one to judge on."""
        return held_out_data(self.data, share=self.share, seed=self.seed)

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
        """What the recipe itself says, where the ranges hold it: it is tried first."""
        values = {key.key: value_of(self.recipe, key.key) for key in self.keys}
        return values if all(key.holds(values[key.key]) for key in self.keys) else {}

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything that the scores hang on, in plain values."""
        resolved = self.recipe.resolved()
        images = self.data.train.fingerprint()
        return {
            "recipe": {stage: resolved[stage] for stage in self.recipe.stages},
            "data": {"name": self.data.name, **self.data.description, "train": images},
            "over": {key.key: key.text for key in self.keys},
            "score": self.score,
            "held_out": self.share,
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
        """Turn the result into plain values that strict JSON can hold.

        Returns
        -------
        dict
            What was searched, the best trial, and every trial.
        """
        trials = [
            {
                "number": trial.number,
                "state": trial.state,
                "params": trial.params,
                "score": trial.score,
                "scores": trial.scores,
                "looks": list(trial.looks),
                "seconds": trial.seconds,
            }
            for trial in self.trials
        ]
        best = self.best
        found = next((one for one in trials if best and one["number"] == best.number), None)
        return {"format": "protail-search", **self.search.about, "best": found, "trials": trials}


def run_search(
    search: Search,
    journal: Path,
    *,
    n_trials: int = 20,
    budget: float | None = None,
    at_once: int | None = None,
    pruner: str = "none",
    options: Options | None = None,
    watch: Watcher | None = None,
) -> SearchResult:
    """Try settings until there are enough trials or the time is used up.

    Several processes may share the journal. The trials of one that died are tried again by
    another, or by whoever goes on with the journal.

    Parameters
    ----------
    search : Search
        What to look for.
    journal : Path
        The file that trials are written to; one that is there is gone on with.
    n_trials : int, default=20
        Trials in all, those of other workers and of earlier times included.
    budget : float, optional
        Seconds. No trial is begun that is not likely to end in time, as far as earlier ones tell.
    at_once : int, optional
        Trainings in this process at once, on a GPU in a stream each; by default 1, and where only
        stage 2 is searched 16 heads, which learn together.
    pruner : {"none", "median", "hyperband"}
        Whether trainings are given up after a look that compares badly with others.
    options : Options, optional
        How to run; by default on a GPU where there is one.
    watch : callable, optional
        Told of each trial that has ended.

    Returns
    -------
    SearchResult
        All trials in the journal.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from protail.data.sets import DataSet, ImageSet
    >>> from protail.recipes import load_recipe
    >>> from protail.recipes.running import Options
    >>> from protail.recipes.search import Search, read_searched_keys, run_search
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
    _check_numbers(n_trials, budget, at_once)
    began = time.monotonic()
    n_looks = min(LOOKS, search.recipe.n_epochs)
    with Journal(
        journal,
        search.about,
        search.keys,
        first=search.first,
        seed=search.seed,
        pruner=pruner,
        n_looks=n_looks,
    ) as opened:

        def next_trial() -> OpenTrial | None:
            if budget is not None:
                expected = _longest(opened.trials())
                if time.monotonic() - began + expected > budget:
                    return None
            return opened.next_trial(n_trials)

        kind: Callable[..., Heads | Trainings] = Heads if search.is_of_heads else Trainings
        work = kind(search, opened, options or Options.automatic(), watch or (lambda trial: None))
        work.run(next_trial, at_once or (_HEADS_AT_ONCE if search.is_of_heads else 1))
        return SearchResult(search, tuple(opened.trials()))


def _longest(trials: Iterable[SearchTrial]) -> float:
    """Say how long a trial may take: as long as the longest that was not given up."""
    return max((trial.seconds or 0.0 for trial in trials if trial.state == "done"), default=0.0)


def _check_numbers(n_trials: int, budget: float | None, at_once: int | None) -> None:
    if n_trials < 1:
        raise ValueError(f"trials={n_trials}; expected a whole number from 1 on.")
    if budget is not None and not budget > 0:
        raise ValueError(f"budget={budget}; expected seconds above 0.")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once}; expected a whole number from 1 on.")

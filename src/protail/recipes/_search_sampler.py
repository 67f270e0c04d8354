"""What to try next, and what to give up: Optuna's samplers and pruners, set up for trainings."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def make_sampler(seed: int) -> Any:
    """Make a sampler that draws each trial from its own seed.

    Workers that share a journal would all draw the same first trials from one seed, and a search
    that goes on would draw them again. Here a trial hangs on the seed, its number and the trials
    before it.

    Parameters
    ----------
    seed : int
        Of the search.

    Returns
    -------
    optuna.samplers.BaseSampler
        A tree-structured Parzen estimator over all keys together: some of them, such as radius
        and tau, are one choice.
    """
    from optuna.samplers import BaseSampler, TPESampler

    class SeededByTrial(BaseSampler):
        def before_trial(self, study: Any, trial: Any) -> None:
            mixed = np.random.SeedSequence([seed, trial.number]).generate_state(1)
            with warnings.catch_warnings():
                # What some versions of Optuna call experimental has been there for years.
                warnings.simplefilter("ignore")
                self._inner = TPESampler(seed=int(mixed[0]), multivariate=True, constant_liar=True)
            self._inner.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._inner.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._inner.sample_relative(study, trial, search_space)

        def sample_independent(
            self, study: Any, trial: Any, param_name: str, param_distribution: Any
        ) -> Any:
            return self._inner.sample_independent(study, trial, param_name, param_distribution)

    return SeededByTrial()


def make_pruner(name: str, n_looks: int) -> Any:
    """Make a pruner.

    Parameters
    ----------
    name : {"none", "median", "hyperband"}
        Which one.
    n_looks : int
        How often a training is looked at.

    Returns
    -------
    optuna.pruners.BasePruner
        For looks numbered from 1.

    Examples
    --------
    >>> from protail.recipes._search_sampler import make_pruner
    >>> type(make_pruner("median", 10)).__name__
    'MedianPruner'
    """
    from optuna import pruners

    if name == "median":
        # While the rate is high, scores say little about the end.
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=n_looks // 3)
    if name == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=max(n_looks, 1))
    return pruners.NopPruner()

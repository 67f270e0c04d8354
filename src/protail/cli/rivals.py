"""``--compare``: the fitted model beside the classifiers people would pick instead."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail.cli.tables import make_table

if TYPE_CHECKING:
    from protail import Evaluation
    from protail.cli.command import Voice

Array = NDArray[Any]

_GROUPS = ("many", "medium", "few")
# The least probability that counts, for the likelihood of a class that was ruled out.
_LEAST = 1e-12


@dataclass(frozen=True)
class Trial:
    """A classifier, fitted on some rows and evaluated on others.

    Attributes
    ----------
    evaluation : Evaluation
        Its scores.
    likelihood : float or None
        Mean logarithm of the probability of the true class, classes weighted alike; None where a
        classifier gives no probabilities.
    seconds : float
        What the fit took.
    """

    evaluation: Evaluation
    likelihood: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Give what ``--json`` prints."""
        shown = {name: getattr(self.evaluation, name) for name in ("all", *_GROUPS)}
        balanced = self.evaluation.balanced_accuracy
        others = {"likelihood": self.likelihood, "seconds": round(self.seconds, 3)}
        return {"balanced_accuracy": balanced, **shown, **others}


def compare_with_rivals(
    fitted: Any,
    seconds: float,
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    counts: Array,
) -> dict[str, Trial]:
    """Fit every classifier of `protail.baselines` and evaluate all on the same rows.

    Parameters
    ----------
    fitted : PrototypeClassifier
        The model, fitted on ``train``.
    seconds : float
        What that took.
    train, test : tuple of ndarray
        Rows and labels.
    counts : ndarray
        What classes are grouped by.

    Returns
    -------
    dict of str to Trial
        By what each is called; the model first.
    """
    from protail import baselines

    rivals = {
        "nearest class mean": baselines.nearest_class_mean(),
        "logistic regression, balanced": baselines.balanced_logistic_regression(),
        "logistic regression, logit-adjusted": baselines.logit_adjusted_regression(),
        "shrinkage LDA": baselines.shrinkage_lda(),
        "ridge, balanced": baselines.balanced_ridge(),
        "5 nearest neighbours": baselines.k_nearest_neighbours(min(5, len(train[0]))),
    }
    trials = {"prototypes": _trial(fitted, seconds, test, counts)}
    for name, rival in rivals.items():
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of steps that run out, and classes of one row
            rival.fit(np.asarray(train[0], np.float64), train[1])
        trials[name] = _trial(rival, time.perf_counter() - begin, test, counts)
    return trials


def _trial(classifier: Any, seconds: float, test: tuple[Array, Array], counts: Array) -> Trial:
    from protail import Evaluation

    rows, labels = test
    probabilities = _probabilities(classifier, rows)
    predicted = classifier.predict(rows)
    evaluation = Evaluation.from_predictions(
        labels,
        predicted,
        classes=classifier.classes_,
        counts=counts,
        confidence=None if probabilities is None else probabilities.max(1).clip(0, 1),
    )
    return Trial(evaluation, _likelihood(probabilities, labels, classifier.classes_), seconds)


def _probabilities(classifier: Any, rows: Array) -> Array | None:
    """Give what a classifier says of each class, if it does."""
    try:
        found: Array = np.asarray(classifier.predict_proba(rows))
    except AttributeError:
        return None
    return found


def _likelihood(probabilities: Array | None, labels: Array, classes: Array) -> float | None:
    if probabilities is None:
        return None
    known = np.isin(labels, classes)
    codes = np.searchsorted(classes, labels[known])
    logs = np.log(np.maximum(probabilities[known, codes], _LEAST))
    return float(np.mean([logs[codes == code].mean() for code in np.unique(codes)]))


def show_rivals(voice: Voice, trials: dict[str, Trial]) -> None:
    """Show a table with a row for each classifier, in per cent and seconds."""
    first = next(iter(trials.values())).evaluation
    groups = [name for name in _GROUPS if getattr(first, name) is not None]
    sizes = {name: len(group) for name, group in first.groups.items()}
    headings = ["in %", "balanced", *(f"{name} ({sizes[name]})" for name in groups)]
    rows = []
    for name, trial in trials.items():
        scores = [trial.evaluation.balanced_accuracy]
        scores += [getattr(trial.evaluation, group) for group in groups]
        likelihood = "-" if trial.likelihood is None else f"{trial.likelihood:.2f}"
        cells = [f"{100 * score:.1f}" for score in scores]
        rows.append([name, *cells, likelihood, f"{trial.seconds:.1f} s"])
    voice.show(make_table([*headings, "log-likelihood", "fit"], rows, right=1, simple=False))

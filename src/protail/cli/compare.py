"""Comparisons: ``protail compare`` of two models, and ``--compare`` with usual classifiers."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from protail._messages import counted
from protail.cli import options as opt
from protail.cli import sources
from protail.cli.command import Voice, command, make_app
from protail.cli.sources import Model, open_sources, tell_columns
from protail.cli.tables import make_table

if TYPE_CHECKING:
    from protail import Evaluation

Array = NDArray[Any]

_GROUPS = ("many", "medium", "few")
# The least probability that counts, for the likelihood of a class that was ruled out.
_LEAST = 1e-12

Second = Annotated[Path, typer.Argument(help="The other one.", show_default=False)]


@command
def compare(
    voice: Voice,
    first: opt.ModelFolder,
    second: Second,
    files: opt.LabelledFiles,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    labels: opt.LabelsKey = None,
    labels_file: opt.LabelsFiles = None,
    device: opt.Device = "auto",
) -> None:
    """Compare two models on the same labelled rows or photos.

    The 95 % intervals come from resampling rows, both models together. Groups follow the
    training counts of the first model.
    """
    sources.check_there(*files)
    from protail import Comparison

    models = [Model.load(folder, device) for folder in (first, second)]
    classes, counts = _all_classes(*models)
    options = opt.FeatureOptions(features, labels, columns, exclude)
    opened = [
        open_sources(model, files, options, labels_files=labels_file, need_labels=True)
        for model in models
    ]
    tell_columns(voice, [*opened[0], *opened[1]])
    evaluated = [
        sources.evaluate_rows(model, own, voice) for model, own in zip(models, opened, strict=True)
    ]
    # Models that take different columns may have answered different rows.
    _, in_first, in_second = np.intersect1d(
        evaluated[0].rows, evaluated[1].rows, return_indices=True
    )
    left_out = sum(len(one.rows) - len(in_first) for one in evaluated)
    if not len(in_first):
        raise ValueError("no row is finite for both models; expected some. Compare on other rows.")
    if left_out:
        rows = counted(left_out, "row is", "rows are")
        voice.say(f"{rows} finite for one of the models only: left out.")
    comparison = Comparison.from_predictions(
        evaluated[0].truth[in_first],
        evaluated[0].predicted[in_first],
        evaluated[1].predicted[in_second],
        classes=classes,
        counts=counts,
    )
    voice.show(comparison.table(str(first), str(second)))
    voice.finish(
        {
            "first": str(first),
            "second": str(second),
            "rows_left_out": left_out + sum(one.n_non_finite for one in evaluated),
            **comparison.to_dict(),
        }
    )


def _all_classes(leading: Model, other: Model) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Give the classes that either knows; where both do, the counts of the leading one."""
    if (leading.classes.dtype.kind in "UO") != (other.classes.dtype.kind in "UO"):
        raise ValueError(
            f"one model's classes are {leading.classes.dtype}, the other's "
            f"{other.classes.dtype}; expected models fitted with the same kind of labels."
        )
    counts = dict(zip(other.classes.tolist(), other.counts.tolist(), strict=True))
    counts.update(zip(leading.classes.tolist(), leading.counts.tolist(), strict=True))
    classes = sorted(counts)
    return np.array(classes), np.array([counts[label] for label in classes])


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
    named = hasattr(classifier, "top_k")  # which rejects nothing
    predicted = classifier.top_k(rows, 1)[0][:, 0] if named else classifier.predict(rows)
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
    from protail.evaluation import group_size

    first = next(iter(trials.values())).evaluation
    groups = [name for name in _GROUPS if getattr(first, name) is not None]
    headings = ["in %", "balanced", *(f"{name} ({group_size(first, name)})" for name in groups)]
    rows = []
    for name, trial in trials.items():
        scores = [trial.evaluation.balanced_accuracy]
        scores += [getattr(trial.evaluation, group) for group in groups]
        likelihood = "-" if trial.likelihood is None else f"{trial.likelihood:.2f}"
        cells = [f"{100 * score:.1f}" for score in scores]
        rows.append([name, *cells, likelihood, f"{trial.seconds:.1f} s"])
    voice.show(make_table([*headings, "log-likelihood", "fit"], rows, right=1, simple=False))


app = make_app(compare, "protail compare model-a model-b test.npz")

"""What fitting features and fitting photos have in common: held-out rows, rivals, saving."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted
from protail.cli.command import Voice
from protail.cli.sources import Array, Model, ask_all
from protail.cli.tables import show_evaluation, show_rejected

if TYPE_CHECKING:
    from protail import Evaluation
    from protail.cli.compare import Trial


@dataclass(frozen=True)
class TrainingRows:
    """The rows to learn from, those that are not finite left out.

    Attributes
    ----------
    path : Path
        Where they came from.
    rows, labels : ndarray
        What they are.
    duplicate_of : ndarray of int
        The first row that is the same.
    names : list of str or None
        Columns, where the file names them.
    found : dict
        What was found in the file, for machines.
    photos : sequence of Path or None
        What the rows are features of, where those are at hand.
    """

    path: Path
    rows: Any
    labels: Array
    duplicate_of: Array
    names: list[str] | None
    found: dict[str, Any]
    photos: Sequence[Path] | None = None

    @property
    def examples(self) -> Examples:
        """The rows with their labels and photos."""
        return Examples(self.rows, self.labels, self.photos)


@dataclass(frozen=True)
class Examples:
    """Labelled rows, and the photos they are of.

    Attributes
    ----------
    rows, labels : ndarray
        Rows and what they are.
    photos : sequence of Path or None
        Their files.
    """

    rows: Any
    labels: Array
    photos: Sequence[Path] | None = None

    def some(self, index: Array) -> Examples:
        """Take some of them."""
        from protail.data.tables import take

        photos = None if self.photos is None else [self.photos[i] for i in index]
        return Examples(take(self.rows, index), self.labels[index], photos)


@dataclass(frozen=True)
class Fitted:
    """A model and, where there were rows for it, how good it is.

    Attributes
    ----------
    model : Model
        Fitted on all rows.
    evaluation : Evaluation or None
        Scores of the same settings, on rows that had no part in learning.
    evaluated_on : str
        Which rows these were.
    head : PrototypeClassifier or None
        What was evaluated: it has learned from no row of ``held_out``.
    train, held_out : Examples or None
        What that one has learned from, and was evaluated on.
    rejected : pair of ndarray of bool, or None
        Which of those rows it does not name, and which are of a class that it knows.
    trials : dict of str to Trial
        Other classifiers on the same rows, where that was asked for.
    """

    model: Model
    evaluation: Evaluation | None
    evaluated_on: str
    head: Any = None
    train: Examples | None = None
    held_out: Examples | None = None
    rejected: tuple[Array, Array] | None = None
    trials: Mapping[str, Trial] = field(default_factory=dict)

    @property
    def classifier(self) -> Any:
        """What was fitted."""
        return self.model.head

    def compared(self) -> dict[str, Any]:
        """Give what ``--json`` prints of other classifiers; nothing where none was fitted."""
        if not self.trials:
            return {}
        return {"compared": {name: trial.to_dict() for name, trial in self.trials.items()}}


def fit_and_hold_out(
    data: TrainingRows,
    settings: dict[str, Any],
    voice: Voice,
    *,
    held_out: float,
    compare: bool = False,
    what: str = "row",
) -> Fitted:
    """Evaluate on rows held out of learning, then learn from all; ``what`` is one row's name.

    The rows of either part are kept where others are to be shown beside it, or there are photos.
    """
    from protail import PrototypeClassifier
    from protail.data.tables import split

    classifier = PrototypeClassifier(**settings)
    model = Model(data.path, classifier, data.names)
    kept = out = np.empty(0, np.int64)
    if held_out:
        kept, out = split(data.labels, fraction=held_out, groups=data.duplicate_of)
    if not len(out):
        why = "nothing is held out" if not held_out else f"no class has {what}s to spare"
        voice.say(f"Plan: learn from all {what}s; {why}, so nothing is evaluated.")
        classifier.fit(data.rows, data.labels)
        return Fitted(model, None, "nothing")

    n_evaluated = counted(len(np.unique(data.labels[out])), "class", "classes")
    evaluated_on = f"{counted(len(out), f'held-out {what}')} of {n_evaluated}"
    learned_from = counted(len(kept), what)
    voice.say(f"Plan: learn from {learned_from}, evaluate on {evaluated_on}, then learn from all.")
    train, test = data.examples.some(kept), data.examples.some(out)
    seconds = timed(lambda: classifier.fit(train.rows, train.labels))
    # Groups by all rows of a class, as the file has them, the held-out ones included.
    counts = np.unique(data.labels, return_counts=True)[1]
    evaluation = evaluate_examples(model, test, counts)
    fitted = Fitted(model, evaluation, evaluated_on, copy.deepcopy(classifier), train, test)
    if compare:
        fitted = compared(fitted, seconds)
    classifier.fit(data.rows, data.labels)
    if classifier.choices_["memorised"] and classifier.memorised == "auto":
        easy = classifier.choices_["leave_one_out_accuracy"]
        voice.say(
            f"Note: {easy:.1%} of the rows lie nearest to the mean of the others of their class. "
            "Either the classes are easy, or the network that made the features has learned from "
            f"these very {what}s. Then held-out scores are far too good: evaluate on {what}s that "
            "it has never seen, with --test."
        )
        evaluated_on += ", which the network that made the features may have learned from"
    return replace(fitted, evaluated_on=evaluated_on)


def timed(work: Callable[[], object]) -> float:
    """Do something and give the seconds that it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compared(fitted: Fitted, seconds: float) -> Fitted:
    """Fit other classifiers on the rows that the evaluated one has learned from."""
    from protail.cli.compare import compare_with_rivals

    assert fitted.train is not None
    assert fitted.held_out is not None
    train, test = ((each.rows, each.labels) for each in (fitted.train, fitted.held_out))
    counts = fitted.evaluation.counts if fitted.evaluation else fitted.head.class_counts_
    trials = compare_with_rivals(fitted.head, seconds, train, test, counts)
    return replace(fitted, trials=trials)


def evaluate_examples(model: Model, examples: Examples, counts: Array) -> Evaluation:
    """Evaluate a model on labelled rows, grouped by the counts of its classes."""
    from protail import Evaluation

    answers = ask_all(model, examples.rows)
    classes = model.classes
    is_known = np.isin(examples.labels, classes).all()
    return Evaluation.from_predictions(
        examples.labels,
        classes[answers.codes[:, 0]],
        classes=classes,
        counts=counts,
        confidence=answers.probabilities[:, 0],
        novelty=None if is_known else answers.novelty,
    )


def show_fitted(voice: Voice, fitted: Fitted) -> dict[str, Any]:
    """Show the scores, also of other classifiers where there are some; give more for --json."""
    told = {}
    if fitted.evaluation is not None:
        show_evaluation(voice, fitted.evaluation, "prototypes")
    if fitted.classifier.reject is not None and not fitted.model.rejects:
        voice.say("Note: no class has two rows to set a limit by, so --reject rejects nothing.")
    rejected = fitted.rejected
    if rejected is None and fitted.held_out is not None:
        evaluated = replace(fitted.model, head=fitted.head)
        if evaluated.rejects:
            known = np.isin(fitted.held_out.labels, fitted.head.classes_)
            answers = ask_all(evaluated, fitted.held_out.rows)
            rejected = None if answers.rejected is None else (answers.rejected, known)
    if rejected is not None:
        told = {"rejected": show_rejected(voice, *rejected)}
    if fitted.trials:
        from protail.cli.compare import show_rivals

        show_rivals(voice, dict(fitted.trials))
    return told


def save_with_picture(
    fitted: Fitted,
    output: Path,
    voice: Voice,
    *,
    made_by: str,
    overwrite: bool,
    drawn: Mapping[str, Evaluation] | None = None,
) -> Path | None:
    """Save the model with its card and a picture of ``drawn``, by default of its classes."""
    from protail.estimator import PICTURE

    picture = None
    if fitted.evaluation is not None:
        from protail.report import accuracy_picture

        try:
            picture = accuracy_picture(
                drawn or {"prototypes": fitted.evaluation},
                title="Accuracy of every class against its size",
            )
        except ImportError as error:
            voice.say(f"No picture: {error}")
    fitted.model.save(
        output,
        overwrite=overwrite,
        evaluation=fitted.evaluation,
        about=f"Made by {made_by}; evaluated on {fitted.evaluated_on}.",
        picture=picture,
    )
    return None if picture is None else output / PICTURE

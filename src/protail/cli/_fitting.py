"""From a file to a judged, saved model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted
from protail.cli._column_words import columns_in_words, identifiers
from protail.cli._judging import judge
from protail.cli._sources import (
    Array,
    Model,
    ask,
    check_some_finite,
    not_used,
    open_sources,
)
from protail.cli.command import Voice

if TYPE_CHECKING:
    from protail import Evaluation
    from protail.cli._feature_options import FeatureOptions
    from protail.data.tables import FeatureFile, Scan


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
    """

    path: Path
    rows: Array
    labels: Array
    duplicate_of: Array
    names: list[str] | None
    found: dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """A model and, where there were rows for it, how good it is.

    Attributes
    ----------
    model : Model
        Fitted on all rows.
    evaluation : Evaluation or None
        Scores of the same settings, on rows that had no part in learning.
    judged_on : str
        Which rows these were.
    """

    model: Model
    evaluation: Evaluation | None
    judged_on: str


def read_training_rows(
    path: Path, options: FeatureOptions, labels_file: Path | None, voice: Voice
) -> TrainingRows:
    """Read a file and tell what is in it."""
    from protail.data.tables import scan, take

    file = options.open(path, labels_file=labels_file, need_labels=True)
    truth, rows = file.labels(), file.rows()
    all_classes = np.unique(truth)
    looked = scan(rows, truth)
    n_non_finite = looked.n_non_finite
    if n_non_finite:
        kept = np.flatnonzero(looked.finite)
        check_some_finite(len(rows), len(kept), path)
        rows, truth = take(rows, kept), truth[kept]
        looked = scan(rows, truth)
    lost = np.setdiff1d(all_classes, truth).tolist()
    found = _found(rows, truth, looked, n_non_finite, lost)
    _tell(voice, file, found, rows)
    doubtful = {} if file.names is None else identifiers(file.names, rows)
    _doubt(voice, doubtful)
    found |= {"columns": file.names, "columns_like_identifiers": list(doubtful)}
    return TrainingRows(path, rows, truth, looked.duplicate_of, file.names, found)


def _found(
    rows: Array, labels: Array, looked: Scan, n_non_finite: int, lost: list[Any]
) -> dict[str, Any]:
    from protail import ClassProfile

    profile = ClassProfile(np.unique(labels, return_counts=True)[1])
    return {
        "rows": len(rows),
        "width": rows.shape[1],
        "classes": profile.n_classes,
        "imbalance": profile.imbalance,
        "groups": {name: len(group) for name, group in profile.groups().items()},
        "classes_of_one_row": int((profile.counts == 1).sum()),
        "non_finite_rows": n_non_finite,
        "classes_without_finite_rows": lost,
        "zero_rows": looked.n_zero,
        "duplicate_rows": looked.n_duplicates,
        "duplicates_with_another_label": looked.n_conflicts,
    }


def _tell(voice: Voice, file: FeatureFile, found: dict[str, Any], rows: Array) -> None:
    groups = found["groups"]
    voice.say(
        f"{file.path}: {counted(found['rows'], 'row')} of {counted(found['width'], 'number')} "
        f"({rows.dtype}), {counted(found['classes'], 'class', 'classes')}, imbalance "
        f"{found['imbalance']:.4g}"
    )
    voice.say(
        f"  classes by size: many (100 rows or more) {groups['many']:,}, medium "
        f"{groups['medium']:,}, few (under 20) {groups['few']:,}"
    )
    if file.names is not None:
        voice.say(f"  features: {columns_in_words(file.names)}{not_used(file)}")
    if found["non_finite_rows"]:
        voice.say(f"  rows with NaN or infinity, left out: {found['non_finite_rows']:,}")
    if lost := found["classes_without_finite_rows"]:
        some = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        voice.say(f"  classes of such rows only, lost with them: {len(lost):,} ({some})")
    if found["zero_rows"]:
        voice.say(f"  rows of zeros only: {found['zero_rows']:,}")
    if found["duplicate_rows"]:
        voice.say(
            f"  rows that repeat an earlier one: {found['duplicate_rows']:,} (with another label: "
            f"{found['duplicates_with_another_label']:,}); kept, and never both learned from and "
            "judged on"
        )


def _doubt(voice: Voice, doubtful: Mapping[str, str]) -> None:
    for name, reason in doubtful.items():
        voice.say(
            f"Note: column {name!r} looks like the number of a row ({reason}), and is used as a "
            f"feature. If it says nothing about the class: --exclude {shlex.quote(name)}"
        )


def fit_and_judge(
    data: TrainingRows,
    settings: dict[str, Any],
    voice: Voice,
    *,
    held_out: float,
    test: Path | None,
    test_labels_file: Path | None,
    options: FeatureOptions,
) -> Fitted:
    """Judge settings on rows that had no part in learning, then learn from all rows."""
    from protail import PrototypeClassifier
    from protail.data.tables import split, take

    classifier = PrototypeClassifier(**settings)
    model = Model(data.path, classifier, data.names)
    if test is not None:
        voice.say(f"Plan: learn from all rows, judge on {test}.")
        classifier.fit(data.rows, data.labels)
        files = open_sources(
            model,
            [test],
            replace(options, columns=None, exclude=None, keep=None),
            labels_files=[test_labels_file] if test_labels_file else None,
            need_labels=True,
        )
        judged = judge(model, files, voice)
        return Fitted(model, judged.evaluation, test.name)

    kept = out = np.empty(0, np.int64)
    if held_out:
        kept, out = split(data.labels, share=held_out, groups=data.duplicate_of)
    if not len(out):
        why = "nothing is held out" if not held_out else "no class has rows to spare"
        voice.say(f"Plan: learn from all rows; {why}, so nothing is judged.")
        classifier.fit(data.rows, data.labels)
        return Fitted(model, None, "nothing")

    n_judged = counted(len(np.unique(data.labels[out])), "class", "classes")
    judged_on = f"{counted(len(out), 'held-out row')} of {n_judged}"
    learned_from = counted(len(kept), "row")
    voice.say(f"Plan: learn from {learned_from}, judge on {judged_on}, then learn from all.")
    classifier.fit(take(data.rows, kept), data.labels[kept])
    evaluation = _judge_rows(model, data.rows, data.labels, out)
    classifier.fit(data.rows, data.labels)
    if classifier.choices_["memorised"]:
        share = classifier.choices_["leave_one_out_accuracy"]
        voice.say(
            f"Note: {share:.1%} of the rows lie nearest to the mean of the others of their class. "
            "Either the classes are easy, or the network that made the features has learned from "
            "these very rows. Then held-out scores are far too good: judge on rows that it has "
            "never seen, with --test."
        )
        judged_on += ", which the network that made the features may have learned from"
    return Fitted(model, evaluation, judged_on)


def _judge_rows(model: Model, rows: Array, labels: Array, index: Array) -> Evaluation:
    from protail import Evaluation
    from protail.data.tables import take

    answers = ask(model, take(rows, index))
    classes = model.classifier.classes_
    return Evaluation.from_predictions(
        labels[index],
        classes[answers.codes[:, 0]],
        classes=classes,
        # Groups by all rows of a class, as the file has them, the held-out ones included.
        counts=np.unique(labels, return_counts=True)[1],
        confidence=answers.probabilities[:, 0],
    )


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
        about=f"Made by {made_by}; judged on {fitted.judged_on}.",
        picture=picture,
    )
    return None if picture is None else output / PICTURE

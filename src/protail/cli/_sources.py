"""Feature files as a given model reads them, and what the model says about their rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.cli._column_words import columns_in_words

if TYPE_CHECKING:
    from protail import PrototypeClassifier
    from protail.cli._feature_options import FeatureOptions
    from protail.cli.command import Voice
    from protail.data.tables import FeatureFile

Array = NDArray[Any]


@dataclass(frozen=True)
class Model:
    """A loaded classifier and the names of its feature columns, where it has them.

    Attributes
    ----------
    folder : Path
        Where it came from.
    classifier : PrototypeClassifier
        What it holds; its rows are plain arrays.
    names : list of str or None
        Columns in the order the classifier takes them.
    checksum : str
        What tells it from every other model.
    about : str or None
        How it was made.
    """

    folder: Path
    classifier: PrototypeClassifier
    names: list[str] | None
    checksum: str = ""
    about: str | None = None

    @classmethod
    def load(cls, folder: Path, device: str = "auto") -> Model:
        """Load a model folder."""
        from protail import PrototypeClassifier
        from protail._files import read_folder
        from protail.cli._folders import check_model_folder

        def read(place: Path) -> tuple[PrototypeClassifier, dict[str, Any]]:
            check_model_folder(place)
            classifier = PrototypeClassifier.load(place, device=device)
            return classifier, json.loads((place / "model.json").read_text(encoding="utf-8"))

        classifier, document = read_folder(folder, read)
        # Commands hand over arrays with the columns already in order, which carry no names.
        names = None
        if hasattr(classifier, "feature_names_in_"):
            names = [str(name) for name in classifier.feature_names_in_]
            del classifier.feature_names_in_
        return cls(folder, classifier, names, document["checksum"], document["about"])

    def save(self, folder: Path, **options: Any) -> None:
        """Save the classifier with the names of its columns; options are those of its ``save``."""
        named = copy.copy(self.classifier)
        if self.names is not None:
            named.feature_names_in_ = np.array(self.names, dtype=object)
        named.save(folder, **options)


def open_sources(
    model: Model,
    paths: Sequence[Path],
    options: FeatureOptions,
    *,
    labels_files: Sequence[Path] | None = None,
    need_labels: bool = False,
) -> list[FeatureFile]:
    """Open files for a model; each must have the columns it takes.

    Parameters
    ----------
    model : Model
        Who is to read them.
    paths : sequence of Path
        The files.
    options : FeatureOptions
        How they are to be read.
    labels_files : sequence of Path, optional
        Where the labels are, a file for each of ``paths``.
    need_labels : bool
        Whether a file without labels is an error.

    Returns
    -------
    list of FeatureFile
        One a path, in the same order; columns in the order in which the model takes them.
    """
    if labels_files and len(labels_files) != len(paths):
        raise ValueError(
            f"{counted(len(labels_files), 'file')} of labels "
            f"{'was' if len(labels_files) == 1 else 'were'} given for "
            f"{counted(len(paths), 'file')} of features; expected one for each. Repeat "
            "--labels-file, in the same order."
        )
    labels: Sequence[Path | None] = labels_files or [None] * len(paths)
    return [
        _open_for(model, path, options, labels_file, need_labels)
        for path, labels_file in zip(paths, labels, strict=True)
    ]


def _open_for(
    model: Model,
    path: Path,
    options: FeatureOptions,
    labels_file: Path | None,
    need_labels: bool,
) -> FeatureFile:
    if model.names is not None:
        # Its own columns, whatever they are called, and all others are none: a look comes first.
        looked = replace(options, labels=None, columns=None, keep=None).open(path)
        if looked.columns is not None and looked.names is not None:
            _check_columns(model, path, looked.columns, options)
            options = replace(options, features=None, columns=model.names)
    file = options.open(path, labels_file=labels_file, need_labels=need_labels)
    width = model.classifier.n_features_in_
    if file.width != width:
        advice = "Give features of the same backbone."
        if file.names is not None:
            found = columns_in_words(file.names)
            advice = f"It gives {found}: choose others with --columns or --exclude."
        raise ValueError(
            f"{path} has rows of {counted(file.width, 'number')}; {model.folder} was fitted "
            f"on rows of {width}. {advice}"
        )
    return file


def _check_columns(
    model: Model, path: Path, present: Sequence[str], options: FeatureOptions
) -> None:
    """Raise where a table lacks columns that a model takes, or is asked for others."""
    names = model.names or []
    if options.columns:
        raise ValueError(
            f"--columns cannot be used here: {model.folder} takes the columns it was fitted on, "
            "by their names. Leave it out."
        )
    known = set(present)
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"{path} lacks {len(missing)} of the {counted(len(names), 'column')} "
            f"that {model.folder} was fitted on (first: {missing[:3]}); expected all of them. "
            "Name them as in the training file."
        )


def tell_columns(voice: Voice, files: Sequence[FeatureFile]) -> None:
    """Say which columns of tables are features; once where they are those of the table before."""
    before = None
    for file in files:
        if file.names is not None and before != (file.names, file.ignored):
            voice.say(f"{file.path}: features: {columns_in_words(file.names)}{not_used(file)}")
            before = (file.names, file.ignored)


def not_used(file: FeatureFile) -> str:
    """Name the columns or arrays of a file that are of no use here."""
    if not file.ignored:
        return ""
    some = ", ".join(file.ignored[:6]) + (", ..." if len(file.ignored) > 6 else "")
    return f"; not used: {some}"


@dataclass(frozen=True)
class Answers:
    """What a model says about a block of rows; rows that are not finite have no answer.

    Attributes
    ----------
    answered : ndarray of bool, shape (n_rows,)
        Which rows have an answer: the finite ones.
    codes, probabilities, distances : ndarray of shape (n_answered, k)
        The likeliest classes of each, likeliest first; by their place among the classes, because
        one long name would make an array of labels long.
    novelty : ndarray of shape (n_answered,)
        How little each looks like any class.
    """

    answered: NDArray[np.bool_]
    codes: NDArray[np.int64]
    probabilities: Array
    distances: Array
    novelty: Array


def ask(model: Model, rows: Array, k: int = 1) -> Answers:
    """Ask a model about a block of rows.

    Parameters
    ----------
    model : Model
        Whom to ask.
    rows : ndarray of shape (n_rows, n_features)
        What to ask about.
    k : int
        How many classes to name.

    Returns
    -------
    Answers
        What it says.
    """
    answered: NDArray[np.bool_] = np.isfinite(rows).all(axis=1)  # type: ignore[assignment]
    finite = rows if answered.all() else rows[answered]
    classifier = model.classifier
    k = min(k, len(classifier.classes_))
    if not len(finite):
        nothing = np.empty((0, k), classifier.prototypes_.dtype)
        return Answers(answered, nothing.astype(np.int64), nothing, nothing, nothing[:, 0])
    codes, probabilities, distances = classifier._inference(finite).top_k(k)
    return Answers(answered, codes, probabilities, distances, classifier.novelty_score(finite))


def check_some_finite(n_rows: int, n_finite: int, path: Path | None = None) -> None:
    """Raise where no row is finite.

    Parameters
    ----------
    n_rows, n_finite : int
        How many rows there are, and how many of them hold finite numbers only.
    path : Path, optional
        Where they all are from.
    """
    if not n_finite:
        where = "" if path is None else f"{path}: "
        raise ValueError(
            f"{where}{counted(n_rows, 'row holds', 'rows all hold')} NaN or infinity; expected "
            "finite numbers. Look at what made the features."
        )


def leave_out_non_finite(n_rows: int, n_finite: int, voice: Voice) -> None:
    """Say how many rows are left out because they are not finite; raise where none is left."""
    check_some_finite(n_rows, n_finite)
    if n_finite < n_rows:
        left_out = counted(n_rows - n_finite, "row holds", "rows hold")
        voice.say(f"{left_out} NaN or infinity: left out.")


def labels_for(classes: Array, labels: Array, path: Path) -> Array:
    """Give labels in the kind of the model's, so that the two can be compared.

    Parameters
    ----------
    classes : ndarray
        The labels a model knows.
    labels : ndarray
        Labels out of a file.
    path : Path
        That file.

    Returns
    -------
    ndarray
        The same labels; numbers are written out where the model's classes are text.
    """
    text = classes.dtype.kind in "UO"
    if text and labels.dtype.kind != "U":
        return labels.astype(str)
    if not text and labels.dtype.kind == "U":
        raise ValueError(
            f"{path} has text labels (first: {labels.tolist()[:3]}); the model's classes are "
            f"numbers (first: {classes.tolist()[:3]}). Give the labels it was fitted with."
        )
    return labels

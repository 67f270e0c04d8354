"""Feature files as a given model reads them, and what the model says about their rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted

if TYPE_CHECKING:
    from protail import PrototypeClassifier
    from protail.cli._command import Voice
    from protail.data.features import FeatureFile

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
        from protail.cli._folders import check_model_folder

        check_model_folder(folder)
        classifier = PrototypeClassifier.load(folder, device=device)
        document = json.loads((folder / "model.json").read_text(encoding="utf-8"))
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


@dataclass(frozen=True)
class Source:
    """The rows of one file, columns in the order a model takes them.

    Attributes
    ----------
    file : FeatureFile
        Where the rows lie.
    order : ndarray of int or None
        Which columns to take; None takes them as they come.
    """

    file: FeatureFile
    order: Array | None

    def blocks(self, start: int = 0, n_rows: int = 65_536) -> Iterator[Array]:
        """Give consecutive blocks of at most ``n_rows`` rows from row ``start`` on."""
        for block in self.file.blocks(start, n_rows):
            yield block if self.order is None else block[:, self.order]


def open_sources(
    model: Model,
    paths: Sequence[Path],
    features: str | None = None,
    labels: str | None = None,
    *,
    need_labels: bool = False,
) -> list[Source]:
    """Open files for a model; each must have the columns it takes.

    Parameters
    ----------
    model : Model
        Who is to read them.
    paths : sequence of Path
        The files.
    features, labels : str or None
        The names of arrays or columns; None finds them.
    need_labels : bool
        Whether a file without labels is an error.

    Returns
    -------
    list of Source
        One a file, in the same order.
    """
    from protail.data.features import open_features

    files = [
        open_features(path, features=features, labels=labels, need_labels=need_labels)
        for path in paths
    ]
    return [Source(file, _column_order(model, file)) for file in files]


def _column_order(model: Model, file: FeatureFile) -> Array | None:
    if model.names is not None and file.names is not None:
        places = {name: place for place, name in enumerate(file.names)}
        if missing := [name for name in model.names if name not in places]:
            raise ValueError(
                f"{file.path} lacks {len(missing)} of the {counted(len(model.names), 'column')} "
                f"that {model.folder} was fitted on (first: {missing[:3]}); expected all of them. "
                "Name them as in the training file."
            )
        return np.array([places[name] for name in model.names])
    width = model.classifier.n_features_in_
    if file.width != width:
        raise ValueError(
            f"{file.path} has rows of {counted(file.width, 'number')}; {model.folder} was fitted "
            f"on rows of {width}. Give features of the same backbone."
        )
    return None


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

"""What a report shows: a classifier, the examples it was asked about, and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.report._space import Space, space_of

if TYPE_CHECKING:
    import os

    from protail.evaluation import Evaluation
    from protail.network import Network

Array = NDArray[Any]

# Probabilities that are held at once.
_CELLS = 2**22


@dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
    """Labelled examples: their features, their photos, or both.

    Attributes
    ----------
    labels : array-like of shape (n,)
        The class of each.
    features : array-like of shape (n, n_features), optional
        Feature rows.
    photos : sequence, optional
        A photo for each: a path, a `PIL.Image.Image`, or an array (height, width, 3) of bytes.

    Examples
    --------
    >>> from protail.report import Examples
    >>> len(Examples(labels=["ant", "bee"], photos=["1.jpg", "2.jpg"]))
    2
    """

    labels: Array
    features: Array | None = None
    photos: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels))
        if self.features is not None:
            object.__setattr__(self, "features", np.asarray(self.features))
        for name in ("features", "photos"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.labels):
                raise ValueError(
                    f"{name} has {counted(len(values), 'entry', 'entries')} and labels has "
                    f"{len(self.labels)}; expected one for each example."
                )

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Say which example it is: its path, or its number."""
        photo = None if self.photos is None else self.photos[i]
        return str(photo) if hasattr(photo, "__fspath__") or isinstance(photo, str) else f"#{i + 1}"

    def some(self, rows: Array) -> Examples:
        """Take some of them."""
        return Examples(
            labels=self.labels[rows],
            features=None if self.features is None else self.features[rows],
            photos=None if self.photos is None else [self.photos[i] for i in rows],
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportData:
    """Hold what a report shows. What is None is left out of it, with a word on why.

    Made by `from_network` or `from_run`, or by hand from any classifier's answers.

    Attributes
    ----------
    title : str
        What stands on top.
    classes : ndarray of shape (n_classes,)
        The labels the classifier knows.
    counts : ndarray of int, shape (n_classes,)
        Training examples of each.
    held_out : Examples or None
        What it was evaluated on.
    predicted : ndarray of shape (n,) or None
        The class it gave each of them.
    confidence, label_probability : ndarray of shape (n,) or None
        The probability of the predicted class, and of the one the label says.
    novelty : ndarray of shape (n,) or None
        A score that is larger the stranger an example is.
    training : Examples or None
        What it was trained on: photos of the classes, and near-duplicates of held-out examples.
    suspected : tuple of three ndarrays, or None
        Training examples that look mislabelled, most suspicious first: their places, the class
        that explains each better, and the logarithm of how much likelier it is.
    space : Space or None
        Where prototypes and examples are.
    evaluation : Evaluation or None
        By default that of ``predicted``.
    facts : mapping of str to str
        What was run.
    commands : sequence of str
        What to type to run it again.
    notes : sequence of str
        What whoever reads it should know, such as photos that were left out.

    Examples
    --------
    >>> from protail.report import Examples, ReportData
    >>> data = ReportData(
    ...     classes=["ant", "bee"],
    ...     counts=[30, 3],
    ...     held_out=Examples(labels=["ant", "ant", "bee"]),
    ...     predicted=["ant", "ant", "ant"],
    ... )
    >>> data.evaluation
    Evaluation(3 rows, 2 classes, all 66.7 %, medium 100.0 %, few 0.0 %)
    """

    title: str = "Report"
    classes: Array
    counts: Array
    held_out: Examples | None = None
    predicted: Array | None = None
    confidence: Array | None = None
    label_probability: Array | None = None
    novelty: Array | None = None
    training: Examples | None = None
    suspected: tuple[Array, Array, Array] | None = None
    space: Space | None = None
    evaluation: Evaluation | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("classes", "counts", "predicted", "confidence", "label_probability"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name)))
        if self.counts.shape != self.classes.shape:
            raise ValueError(
                f"counts has shape {self.counts.shape} and classes {self.classes.shape}; expected "
                "the number of training examples of each class."
            )
        if self.evaluation is None and self.held_out is not None and self.predicted is not None:
            from protail.evaluation import Evaluation

            evaluation = Evaluation.from_predictions(
                self.held_out.labels,
                self.predicted,
                classes=self.classes,
                counts=np.round(self.counts).astype(np.int64),
                confidence=self.confidence,
                novelty=self.novelty,
            )
            object.__setattr__(self, "evaluation", evaluation)

    @classmethod
    def from_network(
        cls,
        network: Network,
        held_out: Examples | None = None,
        *,
        training: Examples | None = None,
        title: str | None = None,
        facts: Mapping[str, str] | None = None,
        commands: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> Self:
        """Ask a network about examples, and look at what it has learned.

        Parameters
        ----------
        network : Network
            With or without a backbone; it must know its ``class_counts_``.
        held_out : Examples, optional
            Labelled examples that it has not learned from. Features that are missing are computed
            from the photos; rows that hold NaN are left out, with a note.
        training : Examples, optional
            What it has learned from.
        title : str, optional
            What stands on top.
        facts : mapping of str to str, optional
            What was run, beside what the network says of itself.
        commands, notes : sequence of str
            As in `ReportData`.

        Returns
        -------
        ReportData
            For `write_report`.

        Examples
        --------
        >>> import numpy as np
        >>> from protail import Network, PrototypeClassifier
        >>> from protail.report import Examples, ReportData
        >>> rows, labels = np.eye(4), ["ant", "ant", "bee", "bee"]
        >>> network = Network(PrototypeClassifier(random_state=0).fit(rows, labels))
        >>> data = ReportData.from_network(network, Examples(labels=labels, features=rows))
        >>> data.evaluation.all
        1.0
        """
        if network.class_counts_ is None:
            raise ValueError(
                "the network does not say how many training examples each class has; expected "
                "their counts, which groups are made by. Make it with class_counts."
            )
        told = list(notes)
        answers: dict[str, Any] = {}
        if held_out is not None:
            held_out, left_out = _with_features(network, held_out)
            if left_out:
                told.append(f"{counted(left_out, 'row holds', 'rows hold')} NaN: left out.")
            answers = _answers(network, held_out)
        rows = None if held_out is None else held_out.features
        return cls(
            title=title or "Report of a classifier",
            classes=network.classes_,
            counts=network.class_counts_,
            held_out=held_out,
            training=training,
            suspected=None if training is None else _suspected(network, training),
            space=space_of(network.head, rows, np.asarray(network.class_counts_)),
            facts={**_facts(network), **(facts or {})},
            commands=commands,
            notes=told,
            **answers,
        )

    @classmethod
    def from_run(
        cls,
        folder: str | os.PathLike[str],
        *,
        dataset: str | None = None,
        data_root: str | os.PathLike[str] | None = None,
        lists: str | os.PathLike[str] | None = None,
        device: str = "auto",
        commands: Sequence[str] = (),
    ) -> Self:
        """Read a finished run, and ask its network about the test images of its data set.

        Where the data is not at hand, the report shows the scores that the run has kept.

        Parameters
        ----------
        folder : path-like
            The run's.
        dataset, data_root, lists : str or path-like, optional
            Where the data is, as for ``protail evaluate``.
        device : str, default="auto"
            Where to compute.
        commands : sequence of str
            As in `ReportData`; the command that trains it again is added.

        Returns
        -------
        ReportData
            For `write_report`.
        """
        from protail.report._runs import read_run

        parts = read_run(folder, dataset, data_root, lists, device)
        made: dict[str, Any] = {"title": parts.title, "facts": parts.facts, "notes": parts.notes}
        commands = [parts.command, *commands]
        if parts.held_out is not None:
            return cls.from_network(
                parts.network,
                parts.held_out,
                training=parts.training,
                commands=commands,
                **made,
            )
        network = parts.network
        return cls(
            classes=network.classes_,
            counts=parts.evaluation.counts,
            evaluation=parts.evaluation,
            space=space_of(network.head, None, parts.evaluation.counts),
            commands=commands,
            **{**made, "facts": {**_facts(network), **parts.facts}},
        )


def headless(network: Network) -> Any:
    """Give what answers on feature rows, even where the network takes photos."""
    from protail.network import Network

    head = network.head
    if hasattr(head, "novelty_score"):
        return head
    return Network(
        head,
        network.classes_,
        class_counts=network.class_counts_,
        temperature=network.temperature,
        device=network.device,
    )


def _with_features(network: Network, held_out: Examples) -> tuple[Examples, int]:
    """Compute features where they are missing, and leave out rows that are not finite."""
    if held_out.features is None:
        if network.backbone is None or held_out.photos is None:
            raise ValueError(
                "held_out has no features; expected feature rows, or photos and a network with a "
                "backbone. Give features."
            )
        features = network.features(list(held_out.photos))
        held_out = Examples(labels=held_out.labels, features=features, photos=held_out.photos)
    assert held_out.features is not None
    finite = np.isfinite(held_out.features).all(axis=1)
    if not finite.any():
        raise ValueError(
            f"none of {counted(len(held_out), 'row')} is finite; expected finite numbers. Look at "
            "what made the features."
        )
    if finite.all():
        return held_out, 0
    return held_out.some(np.flatnonzero(finite)), int((~finite).sum())


def _answers(network: Network, held_out: Examples) -> dict[str, Any]:
    """Ask a network about feature rows, a block at a time."""
    head, rows = headless(network), held_out.features
    assert rows is not None
    rows = rows if rows.dtype.kind == "f" and rows.itemsize >= 4 else rows.astype(np.float32)
    classes = network.classes_
    order = np.argsort(classes, kind="stable")
    known = np.isin(held_out.labels, classes)
    codes = np.zeros(len(rows), np.int64)
    codes[known] = order[np.searchsorted(classes, held_out.labels[known], sorter=order)]
    parts: list[tuple[Any, ...]] = []
    step = max(1, _CELLS // len(classes))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        probability = head.predict_proba(block)
        asked = np.take_along_axis(probability, codes[start : start + step, None], 1)[:, 0]
        novelty = _novelty(network, block)
        parts.append((head.top_k(block, 1)[0][:, 0], probability.max(1), asked, novelty))
    predicted, confidence, own, strange = zip(*parts, strict=True)
    return {
        "predicted": np.concatenate(predicted),
        # Rounding may leave a probability a hair above 1.
        "confidence": np.concatenate(confidence).clip(0, 1),
        "label_probability": np.where(known, np.concatenate(own), 0),
        "novelty": None if strange[0] is None else np.concatenate(strange),
    }


def _suspected(network: Network, training: Examples) -> tuple[Array, Array, Array] | None:
    """Ask a classifier which of its training rows look mislabelled, if these are its rows."""
    head: Any = network.head
    if not hasattr(head, "suspicious_rows") or head.choices_["method"] == "paper":
        return None
    names, counts = np.unique(training.labels, return_counts=True)
    same = np.array_equal(names, head.classes_) and np.array_equal(counts, head.class_counts_)
    if training.features is None or not same:
        return None
    rows, suggested, log_odds = head.suspicious_rows(training.features, training.labels)
    return rows, suggested, log_odds


def _novelty(network: Network, rows: Array) -> Array | None:
    """Say how far rows are from what they are nearest to; None for a head without distances."""
    head: Any = network.head
    knows = hasattr(head, "novelty_score") or hasattr(head, "distances")
    return np.asarray(headless(network).novelty_score(rows)) if knows else None


def _facts(network: Network) -> dict[str, str]:
    """Say what a network says of itself."""
    from protail import __version__

    head = network.head
    facts = {"protail": __version__}
    if network.about:
        facts["Made by"] = network.about
    if network.backbone is not None:
        made_by = getattr(network.backbone, "made_by", None)
        facts["Backbone"] = made_by[0] if made_by else type(network.backbone).__name__
    if network.inputs is not None:
        facts["Photos are resized to"] = f"{network.inputs.size} x {network.inputs.size} pixels"
    made_by = getattr(head, "made_by", None)
    facts["Head"] = made_by[0] if made_by else type(head).__name__
    for name, value in getattr(head, "choices_", {}).items():
        if isinstance(value, bool | np.bool_):
            value = "yes" if value else "no"
        elif isinstance(value, float):
            value = f"{value:.4g}"
        facts[f"Chosen: {name.replace('_', ' ')}"] = "none" if value is None else str(value)
    return facts

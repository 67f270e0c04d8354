"""Single examples that are worth a look, and their photos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.report._parts import Card, Section, Table, Thumbnails, percent
from protail.report._space import unit
from protail.report.data import Examples, ReportData

Array = NDArray[Any]

NO_PREDICTIONS = "This needs predictions on labelled examples: protail report MODEL DATA."
# Pixels of the longer side of a photo in a card.
_SIDE = 176
_SHOWN, _LISTED = 8, 100
# Log odds from which on a label is worth a doubt.
_SURE = 3
# Part of the usual distance from the nearest example; products that are worth a minute.
_ALIKE, _MOST_PRODUCTS = 0.35, 2e12
_ROWS_AT_A_TIME = 1024


class Gallery:
    """The held-out and training examples of a report, with codes of classes and photos.

    Attributes
    ----------
    truth, said : ndarray of int
        Codes of the true (-1: not a known class) and of the predicted class of what is held out.
    has_photos : bool
        Whether there is a photo of any example.
    """

    def __init__(self, data: ReportData, thumbnails: Thumbnails) -> None:
        self.data, self.thumbnails = data, thumbnails
        nothing = np.empty(0, np.int64)
        held_out = data.held_out
        self.truth = nothing if held_out is None else _codes(data.classes, held_out.labels)
        self.said = nothing if data.predicted is None else _codes(data.classes, data.predicted)
        parts = (held_out, data.training)
        self.has_photos = any(part is not None and part.photos is not None for part in parts)
        self._learned = (
            nothing if data.training is None else _codes(data.classes, data.training.labels)
        )
        self._typical: dict[int, tuple[Examples, int] | None] = {}

    def picture(self, i: int, caption: str, side: int = _SIDE) -> tuple[str | None, str]:
        """Give a held-out photo with its caption."""
        assert self.data.held_out is not None
        return self.thumbnails.of(self.data.held_out.photos, i, side), caption

    def typical(self, code: int, caption: str, side: int = _SIDE) -> tuple[str | None, str]:
        """Give a photo of a class: of training where there is one, near the mean of its class."""
        if code not in self._typical:
            self._typical[code] = self._find(code)
        found = self._typical[code]
        if found is None:
            return None, caption
        return self.thumbnails.of(found[0].photos, found[1], side), caption

    def mistaken(self, truth: int, said: int) -> Array:
        """List the held-out examples of one class that are taken for another, surest first."""
        found = np.flatnonzero((self.truth == truth) & (self.said == said))
        sure = self.data.confidence
        return found if sure is None else found[np.argsort(-sure[found], kind="stable")]

    def _find(self, code: int) -> tuple[Examples, int] | None:
        data = self.data
        if data.training is not None and data.training.photos is not None:
            members = np.flatnonzero(self._learned == code)
            if len(members):
                return data.training, _middle(data.training, members)
        if data.held_out is None or data.held_out.photos is None:
            return None
        members = np.flatnonzero(self.truth == code)
        right = members[self.said[members] == code] if len(self.said) else members
        members = right if len(right) else members
        return (data.held_out, _middle(data.held_out, members)) if len(members) else None


def _codes(classes: Array, labels: Array) -> Array:
    """Turn labels into codes, those that are not known into -1."""
    order = np.argsort(classes, kind="stable")
    place = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
    found = order[place]
    return np.where(classes[found] == labels, found, -1)


def _middle(examples: Examples, members: Array) -> int:
    """Choose the member that is most like the mean of all."""
    if examples.features is None:
        return int(members[0])
    rows = unit(np.asarray(examples.features[members], np.float32))
    return int(members[(rows @ rows.mean(0)).argmax()])


def surprises_section(data: ReportData, gallery: Gallery) -> Section:
    """Show the examples that most deserve a look."""
    if data.held_out is None:
        return Section("surprises", "Surprising examples", missing=NO_PREDICTIONS)
    parts = [
        *_suspected(data, gallery),
        _wrong_labels(data, gallery),
        _near_duplicates(data, gallery),
        _novelties(data, gallery),
    ]
    says = ["The examples that most deserve a look. None of this is proof: look, then decide."]
    return Section("surprises", "Surprising examples", says, parts=parts)


def _suspected(data: ReportData, gallery: Gallery) -> list[Section]:
    """Show training examples that look mislabelled, where the classifier can tell."""
    if data.suspected is None or data.training is None:
        return []
    title, training = "Training labels that may be wrong", data.training
    rows, suggested, log_odds = (each[:_LISTED] for each in data.suspected)
    if not len(rows):
        says = ["The other training examples explain every label best."]
        return [Section("wrong-training-labels", title, says)]
    n_cards = _SHOWN if training.photos is not None else 0
    labelled, looked = (_codes(data.classes, each) for each in (training.labels[rows], suggested))
    cards = [
        Card(
            f"{training.labels[row]}, or {suggested[i]}?",
            [f"the others speak for {suggested[i]}, log odds {log_odds[i]:.2g}"],
            [
                (gallery.thumbnails.of(training.photos, row, _SIDE), "the photo in question"),
                gallery.typical(int(labelled[i]), f"typical {training.labels[row]}"),
                gallery.typical(int(looked[i]), f"typical {suggested[i]}"),
            ],
            training.name(row),
        )
        for i, row in enumerate(rows[:n_cards].tolist())
    ]
    table = Table(
        "wrong-training-labels",
        "Training examples whose label the others doubt most",
        {"Example": "text", "Label": "text", "Looks like": "text", "Log odds": "number"},
        [
            (training.name(i), str(training.labels[i]), str(looks), odds)
            for i, looks, odds in zip(
                rows.tolist(), suggested.tolist(), log_odds.tolist(), strict=True
            )
        ],
        is_open=not cards,
    )
    n, sure = len(data.suspected[0]), int((data.suspected[2] > _SURE).sum())
    words = f"Judged by the others, {n:,} of {counted(len(training), 'training example')} "
    words += "looks more like another class" if n == 1 else "look more like another class"
    if sure:
        worth = "is worth a look; the rest may just look alike" if sure < n else "is worth a look"
        words += f"; {sure:,} with log odds above {_SURE} (20 times likelier) "
        words += worth if sure == 1 else worth.replace("is worth", "are worth")
    says = [f"{words}. A wrong label costs most where a class has few examples."]
    return [Section("wrong-training-labels", title, says, cards=cards, tables=[table])]


def _wrong_labels(data: ReportData, gallery: Gallery) -> Section:
    title = "Held-out labels that may be wrong"
    if data.held_out is None or data.confidence is None or data.label_probability is None:
        why = "This needs the probability of each label on held-out examples."
        return Section("wrong-labels", title, missing=why)
    doubt = np.where(gallery.truth >= 0, data.confidence - data.label_probability, 0)
    order = np.argsort(-doubt, kind="stable")[:_LISTED]
    order = order[doubt[order] > 0]
    if not len(order):
        return Section("wrong-labels", title, ["No prediction speaks against its label."])
    cards = []
    for i in order[:_SHOWN] if gallery.has_photos else ():
        labelled, looks = data.held_out.labels[i], data.predicted[i]  # type: ignore[index]
        cards.append(
            Card(
                f"{labelled}, or {looks}?",
                [
                    f"labelled {labelled} ({percent(data.label_probability[i])}), "
                    f"looks like {looks} ({percent(data.confidence[i])})",
                ],
                [
                    gallery.picture(i, "the photo in question"),
                    gallery.typical(int(gallery.truth[i]), f"typical {labelled}"),
                    gallery.typical(int(gallery.said[i]), f"typical {looks}"),
                ],
                data.held_out.name(i),
            )
        )
    table = Table(
        "wrong-labels",
        "Examples whose label the classifier doubts most",
        {
            "Example": "text",
            "Label": "text",
            "Looks like": "text",
            "Probability of that": "percent",
            "Of the label": "percent",
        },
        [
            (
                data.held_out.name(i),
                str(data.held_out.labels[i]),
                str(data.predicted[i]),  # type: ignore[index]
                float(data.confidence[i]),
                float(data.label_probability[i]),
            )
            for i in order
        ],
        is_open=not cards,
    )
    says = [
        "The classifier is surest here that the label is another one: a wrong label, two classes "
        "in one photo, or a real mistake of the classifier."
    ]
    return Section("wrong-labels", title, says, cards=cards, tables=[table])


def _novelties(data: ReportData, gallery: Gallery) -> Section:
    title = "Unlike every class"
    if data.held_out is None or data.novelty is None:
        why = "This needs the novelty score of a prototype classifier on held-out examples."
        return Section("novelties", title, missing=why)
    order = np.argsort(-data.novelty, kind="stable")[:_LISTED]
    middle = float(np.median(data.novelty))
    says = ["Least like any class: a class that is not known, a bad photo, or an unusual one."]
    unseen = int((gallery.truth < 0).sum())
    if unseen:
        among = int((gallery.truth[order[:unseen]] < 0).sum())
        says.append(
            f"{counted(unseen, 'example is', 'examples are')} of classes that the model does not "
            f"know; {among} of them are among the {min(unseen, len(order))} strangest."
        )
    labels = data.held_out.labels
    cards = [
        Card(
            f"labelled {labels[i]}",
            [f"novelty {data.novelty[i]:.3g}, the median is {middle:.3g}"],
            [gallery.picture(i, _said(data, i))],
            data.held_out.name(i),
        )
        for i in (order[:_SHOWN] if gallery.has_photos else ())
    ]
    table = Table(
        "novelties",
        "Examples that are least like any class",
        {"Example": "text", "Label": "text", "Prediction": "text", "Novelty": "number"},
        [
            (
                data.held_out.name(i),
                str(labels[i]),
                "" if data.predicted is None else str(data.predicted[i]),
                float(data.novelty[i]),
            )
            for i in order
        ],
        is_open=not cards,
    )
    return Section("novelties", title, says, cards=cards, tables=[table])


def _said(data: ReportData, i: int) -> str:
    return "" if data.predicted is None else f"predicted {data.predicted[i]}"


def _near_duplicates(data: ReportData, gallery: Gallery) -> Section:
    title = "Near-duplicates"
    held_out, training = data.held_out, data.training
    if held_out is None or held_out.features is None:
        return Section("duplicates", title, missing="This needs features of held-out examples.")
    parts = [held_out]
    if training is not None and training.features is not None:
        parts.append(training)
    n_all = sum(map(len, parts))
    if len(held_out) * n_all * held_out.features.shape[1] > _MOST_PRODUCTS:
        why = "There are too many examples to compare each with each."
        return Section("duplicates", title, missing=why)
    pairs, usual = _alike([part.features for part in parts])  # type: ignore[misc]
    looked = "held-out examples" + (" and training examples" if len(parts) == 2 else "")
    if not pairs:
        return Section("duplicates", title, [f"Among the {looked} no two are nearly the same."])
    listed: list[tuple[Any, ...]] = []
    cards: list[Card] = []
    for gap, i, j in pairs[:_LISTED]:
        place = "held out" if j < len(held_out) else "training"
        other, j = (held_out, j) if j < len(held_out) else (parts[1], j - len(held_out))
        one_label, other_label = str(held_out.labels[i]), str(other.labels[j])
        part = gap / usual
        listed.append((held_out.name(i), one_label, other.name(j), other_label, place, part))
        if gallery.has_photos and len(cards) < _SHOWN:
            same = "the same label" if one_label == other_label else "different labels"
            photo = gallery.thumbnails.of(other.photos, j, _SIDE)
            cards.append(
                Card(
                    one_label if one_label == other_label else f"{one_label}, {other_label}",
                    [f"like {other.name(j)}", f"{percent(part)} of the usual distance, {same}"],
                    [
                        gallery.picture(i, f"{one_label}, held out"),
                        (photo, f"{other_label}, {place}"),
                    ],
                    held_out.name(i),
                )
            )
    leaked = sum(j >= len(held_out) for _, _, j in pairs)
    says = [
        f"{counted(len(pairs), 'pair is', 'pairs are')} nearly the same among the {looked}: "
        f"at most {100 * _ALIKE:.0f}\u00a0% as far from each other as an example usually is from "
        "the most similar one."
    ]
    if leaked:
        says.append(
            f"In {leaked:,} of them the other one is a training example: what was learned by heart "
            "makes an evaluation look better than it is."
        )
    table = Table(
        "near-duplicates",
        "Pairs of examples that are nearly the same, the most alike first",
        {
            "Example": "text",
            "Label": "text",
            "Like": "text",
            "Its label": "text",
            "Which is": "text",
            "Of the usual distance": "percent",
        },
        listed,
        is_open=not cards,
    )
    return Section("duplicates", title, says, cards=cards, tables=[table])


def _alike(parts: Sequence[Array]) -> tuple[list[tuple[float, int, int]], float]:
    """Find rows of the first part whose nearest row of all parts is unusually near.

    Gives the distance, the row and its nearest one for each, and the usual such distance.
    """
    n = len(parts[0])
    every = np.concatenate([np.asarray(part, np.float32) for part in parts])
    every = unit(every - every.mean(0))
    gaps, nearest = np.empty(n), np.empty(n, np.int64)
    for start in range(0, n, _ROWS_AT_A_TIME):
        block = np.arange(start, min(n, start + _ROWS_AT_A_TIME))
        cosine = every[block] @ every.T
        cosine[np.arange(len(block)), block] = -2
        nearest[block] = cosine.argmax(1)
        # By subtraction: a cosine next to 1 has lost what tells rows apart.
        gaps[block] = np.linalg.norm(every[block] - every[nearest[block]], axis=1)
    usual = float(np.median(gaps))
    found: dict[tuple[int, int], tuple[float, int, int]] = {}
    for i in np.flatnonzero(gaps <= _ALIKE * usual).tolist():
        j = int(nearest[i])
        found.setdefault((min(i, j), max(i, j)), (float(gaps[i]), i, j))
    return sorted(found.values()), usual or 1.0

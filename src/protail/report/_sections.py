"""The sections of predictions: accuracy by class and group, look-alikes, calibration."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.report._examples import NO_PREDICTIONS, Gallery
from protail.report._parts import (
    GROUPS,
    MARKS,
    Card,
    Figure,
    Section,
    Table,
    in_chart,
    percent,
    plain,
)
from protail.report.data import ReportData

if TYPE_CHECKING:
    from protail.evaluation import Evaluation

Array = NDArray[Any]

_BINS = 10
_PAIRS_SHOWN, _PAIRS_LISTED, _MISTAKES = 6, 200, 2
_MATRIX_CLASSES = 30
_PER_CENT = {"range": [-3, 103], "ticksuffix": " %"}


def group_names(evaluation: Evaluation) -> Array:
    """Name the group of each class."""
    names = np.full(len(evaluation.counts), "", dtype=object)
    for name, members in evaluation.groups.items():
        names[members] = name
    return names


def size_axis(sizes: Array) -> dict[str, Any]:
    """Make a logarithmic axis of class sizes, with numbers to read at 1, 2, 5, 10, ..."""
    top = int(math.log10(max(sizes.max(initial=1), 1))) + 1
    ticks = [digit * 10**power for power in range(top) for digit in (1, 2, 5)]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [f"{tick:,}" for tick in ticks],
        "title": {"text": "training examples of the class"},
    }


def group_words(evaluation: Evaluation) -> dict[str, str]:
    """Say what each group is."""
    many, few = evaluation.many_from, evaluation.few_below
    return {
        "many": f"{many} training examples or more",
        "medium": f"{few} to {many - 1} training examples",
        "few": f"fewer than {few} training examples",
    }


def wilson(right: Array, rows: Array) -> tuple[Array, Array]:
    """Give the 95 % interval of fractions of few rows."""
    z = 1.96
    with np.errstate(invalid="ignore", divide="ignore"):
        p, n = right / rows, rows.astype(float)
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half).clip(0, 1), (middle + half).clip(0, 1)


def intervals(evaluation: Evaluation) -> dict[str, tuple[float, float] | None]:
    """Give the 95 % interval of the scores, from resampled rows."""
    from protail.evaluation import Comparison

    classes = np.arange(len(evaluation.counts))
    names = ("all", "balanced_accuracy", *GROUPS)
    if len(classes) < 2:
        return dict.fromkeys(names)
    # All that a score sees of a row is its class and whether it is right: beside a classifier that
    # is always wrong the difference is the score.
    truth = np.repeat(classes, evaluation.class_rows)
    place = np.arange(len(truth)) - np.repeat(
        np.cumsum(evaluation.class_rows) - evaluation.class_rows, evaluation.class_rows
    )
    wrong, right = (truth + 1) % len(classes), evaluation.class_right
    said = np.where(place < np.repeat(right, evaluation.class_rows), truth, wrong)
    compared = Comparison.from_predictions(
        truth,
        wrong,
        said,
        classes=classes,
        counts=evaluation.counts,
        many=evaluation.many_from,
        few=evaluation.few_below,
        n_resamples=1000,
    )
    given: dict[str, tuple[float, float] | None] = {}
    for name, found in compared.differences.items():
        given[name] = None if found is None else (found.low, found.high)
        if found is not None and found.low == found.high:
            # All right or all wrong: to draw these rows again says nothing.
            members = evaluation.groups.get(name, classes)
            counted_rows = (each[members].sum() for each in (right, evaluation.class_rows))
            low, high = wilson(*(np.array([n]) for n in counted_rows))
            given[name] = float(low[0]), float(high[0])
    return given


def accuracy_section(data: ReportData, evaluation: Evaluation) -> Section:
    """Show the accuracy of each class against its size."""
    names, classes = group_names(evaluation), data.classes
    low, high = wilson(evaluation.class_right, evaluation.class_rows)
    accuracy, sizes = evaluation.class_accuracy, np.maximum(evaluation.counts, 1)
    tested = np.isfinite(accuracy)
    traces: list[dict[str, Any]] = []
    for group in GROUPS:
        inside = np.flatnonzero((names == group) & tested)
        if not len(inside):
            continue
        said = [
            f"<b>{in_chart(classes[c])}</b><br>{percent(accuracy[c])}, "
            f"{evaluation.class_right[c]:,} of {evaluation.class_rows[c]:,} right"
            f"<br>{counted(int(evaluation.counts[c]), 'training example')}"
            for c in inside
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{group} ({len(inside)})",
                "x": plain(sizes[inside]),
                "y": plain(100 * accuracy[inside]),
                "text": said,
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": f"--{group}",
                    "symbol": MARKS[group],
                    "size": 9 if len(classes) <= 200 else 6,
                    "opacity": 0.75,
                },
            }
        )
        ends = sizes[inside].min() / 1.05, sizes[inside].max() * 1.05
        mean = 100 * accuracy[inside].mean()
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": list(map(float, ends)),
                "y": [mean, mean],
                "line": {"color": f"--{group}", "width": 3},
                "showlegend": False,
                "hovertemplate": f"mean of {group}: {mean:.1f} %<extra></extra>",
            }
        )
    worst = [c for c in np.argsort(accuracy, kind="stable")[:3] if tested[c] and accuracy[c] < 1]
    says = ["Each mark is a class; a line is the mean of its group."]
    if worst:
        listed = ", ".join(f"{classes[c]} ({percent(accuracy[c])})" for c in worst)
        says.append(f"Lowest: {listed}.")
    order = np.argsort(-evaluation.counts, kind="stable")
    table = Table(
        "classes",
        "Every class, the largest first",
        {
            "Class": "text",
            "Group": "text",
            "Training": "count",
            "Held out": "count",
            "Right": "count",
            "Accuracy": "percent",
            "From": "percent",
            "To": "percent",
            "Predicted": "count",
        },
        [
            (
                str(classes[c]),
                names[c],
                int(evaluation.counts[c]),
                int(evaluation.class_rows[c]),
                int(evaluation.class_right[c]),
                *(None if not tested[c] else float(each[c]) for each in (accuracy, low, high)),
                int(evaluation.class_predicted[c]),
            )
            for c in order
        ],
    )
    says_all = f"Accuracy of {len(classes)} classes against their training examples. " + says[-1]
    figure = Figure(
        "accuracy-by-class",
        "Accuracy of each class against its size",
        says_all,
        traces,
        {"xaxis": size_axis(sizes[tested]), "yaxis": {**_PER_CENT, "title": {"text": "accuracy"}}},
        420,
    )
    return Section("classes", "Accuracy by class", says, [figure], tables=[table])


def group_section(evaluation: Evaluation) -> Section:
    """Show the accuracy of the groups with intervals, and where their errors go."""
    found = intervals(evaluation)
    labels = {"all": "all examples", "balanced_accuracy": "mean of classes"}
    rows: list[tuple[Any, ...]] = []
    for name in ("all", "balanced_accuracy", *GROUPS):
        score = getattr(evaluation, name)
        if score is None:
            continue
        members = evaluation.groups.get(name, np.arange(len(evaluation.counts)))
        calibration = (
            evaluation.group_calibration_error[name]
            if name in GROUPS
            else evaluation.calibration_error
        )
        rows.append(
            (
                labels.get(name, name),
                int((evaluation.class_rows[members] > 0).sum()),
                int(evaluation.class_rows[members].sum()),
                score,
                *(found[name] or (None, None)),
                calibration,
            )
        )
    shown = rows[::-1]
    colours = [f"--{row[0]}" if row[0] in GROUPS else "--ink" for row in shown]
    score = np.array([row[3] for row in shown])
    low, high = (
        np.array([row[i] if row[i] is not None else row[3] for row in shown], float) for i in (4, 5)
    )
    figure = Figure(
        "accuracy-by-group",
        "Accuracy of the groups, with 95 % intervals",
        "; ".join(
            f"{row[0]} {percent(row[3])}, from {percent(row[4])} to {percent(row[5])}"
            for row in rows
        ),
        [
            {
                "type": "scatter",
                "mode": "markers",
                "x": plain(100 * score),
                "y": [row[0] for row in shown],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": plain(100 * (high - score)),
                    "arrayminus": plain(100 * (score - low)),
                    "thickness": 2,
                    "width": 6,
                    "color": "--muted",
                },
                "marker": {
                    "color": colours,
                    "size": 13,
                    "symbol": [MARKS.get(row[0], "circle") for row in shown],
                },
                "text": [
                    f"{percent(row[3])} ({percent(row[4])} to {percent(row[5])})" for row in shown
                ],
                "hovertemplate": "%{y}: %{text}<extra></extra>",
                "showlegend": False,
            }
        ],
        {
            "xaxis": {**_PER_CENT, "title": {"text": "accuracy"}},
            "yaxis": {"automargin": True, "type": "category"},
        },
        120 + 44 * len(rows),
    )
    groups = Table(
        "groups",
        "Accuracy of the groups",
        {
            "Group": "text",
            "Classes": "count",
            "Held out": "count",
            "Accuracy": "percent",
            "From": "percent",
            "To": "percent",
            "Calibration error": "percent",
        },
        rows,
        is_open=True,
    )
    says = [
        "A group's accuracy is the mean of its classes. The intervals are about the held-out "
        "examples: drawn again, 95 % of the results lie in them."
    ]
    return Section(
        "groups", "Many, medium, few", says, [figure], tables=[groups, _error_table(evaluation)]
    )


def _error_table(evaluation: Evaluation) -> Table:
    rows = [
        (name, 1 - float(fractions.sum()), *map(float, fractions))
        for name, fractions in zip(GROUPS, evaluation.confusion, strict=True)
        if not np.isnan(fractions).any()
    ]
    return Table(
        "errors",
        "Where the examples of each group go",
        {
            "Group": "text",
            "Right": "percent",
            **{f"Wrong, to {name}": "percent" for name in GROUPS},
        },
        rows,
    )


def confusion_section(data: ReportData, gallery: Gallery) -> Section:
    """Show which classes are taken for each other."""
    title = "Look-alike classes"
    if data.held_out is None or data.predicted is None:
        return Section("confusion", title, missing=NO_PREDICTIONS)
    truth, said = gallery.truth, gallery.said
    wrong = np.flatnonzero((truth >= 0) & (truth != said))
    if not len(wrong):
        return Section("confusion", title, ["No class is taken for another: nothing is wrong."])
    ways = Counter(zip(truth[wrong].tolist(), said[wrong].tolist(), strict=True))
    pairs: Counter[tuple[int, int]] = Counter()
    for (one, other), n in ways.items():
        pairs[min(one, other), max(one, other)] += n
    ranked = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    rows_of = np.bincount(truth[truth >= 0], minlength=len(data.classes))
    names, counts = data.classes, data.counts
    rows: list[tuple[Any, ...]] = []
    cards: list[Card] = []
    for (one, other), n in ranked[:_PAIRS_LISTED]:
        # The larger class first.
        if counts[other] > counts[one]:
            one, other = other, one
        there, back = ways[one, other], ways[other, one]
        rows.append(
            (
                str(names[one]),
                str(names[other]),
                n,
                n / max(1, rows_of[one] + rows_of[other]),
                there,
                back,
                int(counts[one]),
                int(counts[other]),
            )
        )
        if len(cards) < _PAIRS_SHOWN and gallery.has_photos:
            cards.append(_pair(data, gallery, one, other, there, back))
    table = Table(
        "look-alikes",
        "Pairs of classes that are taken for each other",
        {
            "Class": "text",
            "Other class": "text",
            "Confused": "count",
            "Of both": "percent",
            "Class taken for other": "count",
            "Other taken for class": "count",
            "Training, class": "count",
            "Training, other": "count",
        },
        rows,
        is_open=not cards,
    )
    where = f"{counted(len(ranked), 'pair')} of classes"
    words = f"{counted(len(wrong), 'example is', 'examples are')} wrong, in {where}"
    if len(ranked) > 10:
        share = sum(n for _, n in ranked[:10]) / len(wrong)
        words += f"; the first 10 hold {percent(share)} of the errors"
    says = [f"{words}."]
    figures = [_matrix(data, ways)] if len(names) <= _MATRIX_CLASSES else []
    return Section("confusion", title, says, figures, cards, [table])


def _pair(data: ReportData, gallery: Gallery, one: int, other: int, there: int, back: int) -> Card:
    a, b = str(data.classes[one]), str(data.classes[other])
    lines = []
    if there:
        lines.append(f"{counted(there, 'example')} of {a} taken for {b}")
    if back:
        lines.append(f"{counted(back, 'example')} of {b} taken for {a}")
    pictures = [gallery.typical(one, f"{a}"), gallery.typical(other, f"{b}")]
    each = _MISTAKES // 2 if there and back else _MISTAKES
    for t, s in ((one, other), (other, one)):
        mistaken = gallery.mistaken(t, s)[:each]
        pictures += [
            gallery.picture(i, f"{data.classes[t]}, taken for {data.classes[s]}") for i in mistaken
        ]
    return Card(f"{a} and {b}", lines, pictures)


def _matrix(data: ReportData, ways: Counter[tuple[int, int]]) -> Figure:
    order = np.argsort(-data.counts, kind="stable")
    place = np.argsort(order)
    matrix = np.zeros((len(order), len(order)), int)
    for (t, s), n in ways.items():
        matrix[place[t], place[s]] = n
    names = [in_chart(data.classes[c], 22) for c in order]
    return Figure(
        "confusion-matrix",
        "Errors by true and predicted class",
        "Which classes are taken for which; the table below has the same numbers.",
        [
            {
                "type": "heatmap",
                "z": matrix.tolist(),
                "x": names,
                "y": names,
                "colorscale": [[0, "--card"], [1, "--few"]],
                "showscale": False,
                "text": [[str(n) if n else "" for n in row] for row in matrix.tolist()],
                "texttemplate": "%{text}",
                "hovertemplate": "%{y} taken for %{x}: %{z}<extra></extra>",
                "xgap": 1,
                "ygap": 1,
            }
        ],
        {
            "xaxis": {
                "title": {"text": "predicted"},
                "automargin": True,
                "type": "category",
                "tickangle": -60,
                "showgrid": False,
            },
            "yaxis": {
                "title": {"text": "true"},
                "automargin": True,
                "dtick": 1,
                "autorange": "reversed",
                "showgrid": False,
                "type": "category",
            },
        },
        260 + 20 * len(order),
    )


def calibration_section(data: ReportData, evaluation: Evaluation, gallery: Gallery) -> Section:
    """Show how often predictions of each probability are right."""
    title = "Can its probabilities be trusted?"
    if data.confidence is None or data.held_out is None:
        why = "This needs the probability of each prediction. " + NO_PREDICTIONS
        return Section("calibration", title, missing=why)
    known = gallery.truth >= 0
    confidence, right = data.confidence[known], (gallery.truth == gallery.said)[known]
    edges = np.linspace(0, 1, _BINS + 1)
    which = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, _BINS - 1)
    rows = []
    for b in range(_BINS):
        inside = which == b
        n = int(inside.sum())
        low, high = wilson(np.array([right[inside].sum()]), np.array([n]))
        rows.append(
            (
                f"{100 * edges[b]:.0f} to {100 * edges[b + 1]:.0f} %",
                n,
                float(confidence[inside].mean()) if n else None,
                float(right[inside].mean()) if n else None,
                float(low[0]) if n else None,
                float(high[0]) if n else None,
            )
        )
    table = Table(
        "calibration",
        "Probability of the prediction, and how often it is right",
        {
            "Probability": "text",
            "Examples": "count",
            "Mean probability": "percent",
            "Right": "percent",
            "From": "percent",
            "To": "percent",
        },
        rows,
    )
    gap = float(confidence.mean() - right.mean())
    error = evaluation.calibration_error or 0.0
    way = "too sure" if gap > 0 else "too unsure"
    says = [
        f"On average it gives its answer {percent(confidence.mean())}, and "
        f"{percent(right.mean())} are right: it is {abs(100 * gap):.1f} points {way}. The expected "
        f"calibration error is {percent(error)}."
    ]
    if abs(gap) < 0.01:
        says = [
            f"Its probabilities say how often it is right, within {abs(100 * gap):.1f} points on "
            f"average. The expected calibration error is {percent(error)}."
        ]
    return Section("calibration", title, says, [_reliability(rows, says[0])], tables=[table])


def _reliability(rows: list[tuple[Any, ...]], says: str) -> Figure:
    filled = [row for row in rows if row[1]]
    x = [100 * row[2] for row in filled]
    y = [100 * row[3] for row in filled]
    sizes = [7 + 15 * math.sqrt(row[1] / max(r[1] for r in filled)) for row in filled]
    return Figure(
        "reliability",
        "How often predictions of each probability are right",
        says,
        [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [0, 100],
                "y": [0, 100],
                "line": {"color": "--muted", "dash": "dot", "width": 1.5},
                "name": "as it should be",
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "held-out examples",
                "x": x,
                "y": y,
                "line": {"color": "--many", "width": 2},
                "marker": {"color": "--many", "size": sizes},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * (row[5] - row[3]) for row in filled],
                    "arrayminus": [100 * (row[3] - row[4]) for row in filled],
                    "color": "--muted",
                    "thickness": 1.2,
                    "width": 4,
                },
                "text": [counted(row[1], "example") for row in filled],
                "hovertemplate": "said %{x:.1f} %, right %{y:.1f} %, %{text}<extra></extra>",
            },
        ],
        {
            "xaxis": {**_PER_CENT, "title": {"text": "probability of the prediction"}},
            "yaxis": {**_PER_CENT, "title": {"text": "right"}},
        },
        420,
    )

"""The sections about prototypes: where they are, which are neighbours, and how long they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.report._examples import Gallery
from protail.report._parts import Figure, Section, Table, in_chart, plain
from protail.report._sections import group_names, size_axis
from protail.report.data import ReportData

Array = NDArray[Any]

_MOST_CLASSES, _NAMED = 300, 25
_NO_PROTOTYPES = "This head has no prototypes that could be placed."
_THUMBNAIL = 96


def map_section(data: ReportData, gallery: Gallery) -> tuple[Section, dict[str, Any] | None]:
    """Show prototypes and examples in two dimensions; also what the page needs to explore it."""
    title = "Map of prototypes"
    space = data.space
    if space is None:
        return Section("map", title, missing=_NO_PROTOTYPES), None
    neighbours = _neighbours(data)
    placed = np.flatnonzero(np.isfinite(space.prototypes).all(1))
    if len(placed) > _MOST_CLASSES:
        met = np.intersect1d(placed, gallery.truth[space.rows]) if len(space.rows) else placed
        placed = met if len(met) > 1 else placed
    if len(placed) > _MOST_CLASSES:
        by_size = placed[np.argsort(-data.counts[placed], kind="stable")]
        spread = np.linspace(0, len(by_size) - 1, _MOST_CLASSES).astype(int)
        placed = np.sort(by_size[spread])
    if len(placed) < 2:
        return Section("map", title, missing="A map needs two prototypes at least."), None
    shown = np.arange(0)
    if len(space.rows):
        truth = gallery.truth[space.rows]
        shown = np.flatnonzero(np.isin(truth, placed) | (truth < 0))
    points = np.concatenate([space.prototypes[placed], space.positions[shown]])
    flat = flattened(points)
    prototypes, examples = flat[: len(placed)], flat[len(placed) :]
    rows = space.rows[shown]
    figure = _map_figure(data, gallery, placed, prototypes, rows, examples)
    says = [
        "A cross is the prototype of a class; every other mark is a held-out example, a ring where "
        "the prediction is wrong. Near each other means alike to the classifier; far distances "
        "say little. Point at a mark to see it, or choose a class."
    ]
    n_all = 0 if data.held_out is None else len(data.held_out)
    if len(placed) < len(data.classes) or len(rows) < n_all:
        says.append(
            f"Shown are {len(placed):,} of {len(data.classes):,} classes and {len(rows):,} of "
            f"{n_all:,} held-out examples."
        )
    if not len(rows):
        says = ["A cross is the prototype of a class. Near each other means alike."]
    explored = {
        "classes": [str(data.classes[c]) for c in placed],
        "prototypes": [_about_class(data, gallery, int(c)) for c in placed],
        "examples": [_about_example(data, gallery, int(i)) for i in rows],
        "of": [
            int(np.searchsorted(placed, gallery.truth[i])) if gallery.truth[i] >= 0 else -1
            for i in rows
        ],
    }
    tables = [] if neighbours is None else [neighbours]
    return Section("map", title, says, [figure], tables=tables), explored


def _map_figure(
    data: ReportData,
    gallery: Gallery,
    placed: Array,
    prototypes: Array,
    rows: Array,
    examples: Array,
) -> Figure:
    groups = _groups_of(data)
    truth = gallery.truth[rows]
    right = truth == gallery.said[rows] if len(gallery.said) else np.ones(len(rows), bool)
    colours = ["--muted" if c < 0 else f"--{groups[c]}" for c in truth]
    named = [
        {
            "text": in_chart(data.classes[c], 24),
            "x": float(x),
            "y": float(y),
            "yshift": 17,
            "showarrow": False,
            "font": {"size": 12, "color": "--ink"},
        }
        for c, (x, y) in zip(placed, prototypes, strict=True)
    ]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "held-out examples",
            "x": plain(examples[:, 0].round(3)),
            "y": plain(examples[:, 1].round(3)),
            "hoverinfo": "none",
            "marker": {
                "size": 7,
                "color": colours,
                "opacity": 0.6,
                "symbol": ["circle" if ok else "circle-open" for ok in right.tolist()],
            },
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "prototypes",
            "x": plain(prototypes[:, 0].round(3)),
            "y": plain(prototypes[:, 1].round(3)),
            "hoverinfo": "none",
            "marker": {
                "size": 14,
                "symbol": "x",
                "color": [f"--{groups[c]}" for c in placed],
                "line": {"width": 1.5, "color": "--card"},
            },
        },
    ]
    hidden = {"visible": False, "zeroline": False}
    return Figure(
        "prototype-map",
        "Prototypes and held-out examples in two dimensions",
        f"{counted(len(placed), 'prototype')} and {counted(len(rows), 'held-out example')} in two "
        "dimensions. The table below lists the nearest prototype of each class.",
        traces,
        {
            "xaxis": hidden,
            "yaxis": hidden,
            "showlegend": False,
            "annotations": named if len(placed) <= _NAMED else [],
            "hovermode": "closest",
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        },
        560,
    )


def flattened(points: Array) -> Array:
    """Bring points to two dimensions: as they are, or with neighbours kept (t-SNE).

    Parameters
    ----------
    points : ndarray of shape (n, n_channels)
        Where they are.

    Returns
    -------
    ndarray of shape (n, 2)
        The same ones each time.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.report._places import flattened
    >>> flattened(np.eye(3)[:, :1]).shape
    (3, 2)
    """
    points = np.asarray(points, np.float64)
    points = points - points.mean(0)
    left, sizes, _ = np.linalg.svd(points, full_matrices=False)
    turned = left[:, :50] * sizes[:50]
    n, width = turned.shape
    if width <= 2 or n < 10:
        return np.pad(turned[:, :2], ((0, 0), (0, max(0, 2 - width))))
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (n - 1) / 4)
    start = turned[:, :2] / max(turned[:, 0].std(), 1e-12) * 1e-4
    tsne = TSNE(perplexity=perplexity, init=start, random_state=0, max_iter=600)
    return np.asarray(tsne.fit_transform(turned.astype(np.float32)), np.float64)


def _groups_of(data: ReportData) -> Array:
    if data.evaluation is not None:
        return group_names(data.evaluation)
    counts = data.counts
    return np.where(counts >= 100, "many", np.where(counts < 20, "few", "medium"))


def _about_class(data: ReportData, gallery: Gallery, code: int) -> dict[str, Any]:
    lines = [counted(int(data.counts[code]), "training example")]
    if data.evaluation is not None and data.evaluation.class_rows[code]:
        right, rows = data.evaluation.class_right[code], data.evaluation.class_rows[code]
        lines.append(f"{right:,} of {rows:,} held out right")
    photo, _ = gallery.typical(code, "", _THUMBNAIL)
    return {"name": f"Prototype of {data.classes[code]}", "lines": lines, "photo": photo}


def _about_example(data: ReportData, gallery: Gallery, i: int) -> dict[str, Any]:
    assert data.held_out is not None
    lines = [f"labelled {data.held_out.labels[i]}"]
    if data.predicted is not None:
        sure = "" if data.confidence is None else f" ({100 * data.confidence[i]:.0f} %)"
        lines.append(f"predicted {data.predicted[i]}{sure}")
    name = data.held_out.name(i).replace("\\", "/").rsplit("/", 1)[-1]
    photo, _ = gallery.picture(i, "", _THUMBNAIL)
    return {"name": name, "lines": lines, "photo": photo}


def _neighbours(data: ReportData) -> Table | None:
    assert data.space is not None
    nearest, far = data.space.nearest()
    if (nearest < 0).all():
        return None
    order = np.argsort(np.where(nearest < 0, np.inf, far), kind="stable")
    rows = [
        (
            str(data.classes[c]),
            str(data.classes[nearest[c]]),
            float(far[c]),
            int(data.counts[c]),
            int(data.counts[nearest[c]]),
        )
        for c in order
        if nearest[c] >= 0
    ]
    return Table(
        "neighbours",
        "The nearest other prototype of each class, the closest first",
        {
            "Class": "text",
            "Nearest": "text",
            "Distance": "number",
            "Training, class": "count",
            "Training, nearest": "count",
        },
        rows,
    )


def norms_section(data: ReportData) -> Section:
    """Show how long prototypes are against class size: the paper's Figure 2."""
    title = "Prototype norms"
    if data.space is None:
        return Section("norms", title, missing=_NO_PROTOTYPES)
    norms, counts = data.space.norms, data.counts
    looks = {"prototypes": ("--many", "x"), "class means": ("--medium", "circle-open")}
    traces, says, order = [], [], np.argsort(-counts, kind="stable")
    for name, values in reversed(norms.items()):
        inside = np.flatnonzero(np.isfinite(values) & (counts > 0))
        colour, symbol = looks.get(name, ("--few", "circle"))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": plain(counts[inside]),
                "y": plain(values[inside]),
                "text": [in_chart(data.classes[c]) for c in inside],
                "hovertemplate": "%{text}: %{y:.3g}<br>%{x:,} training examples<extra>"
                f"{in_chart(name)}</extra>",
                "marker": {"color": colour, "symbol": symbol, "size": 8},
            }
        )
        if len(inside) > 2:
            says.append(_told(name, values[inside], counts[inside]))
    says.append(
        "A softmax whose weights grow with the class favours large classes; the paper's Figure 2 "
        "shows that learned prototypes are nearly equally long."
    )
    table = Table(
        "norms",
        "Length of the vectors of each class, the largest class first",
        {
            "Class": "text",
            "Training": "count",
            **dict.fromkeys(map(str.capitalize, norms), "number"),
        },
        [
            (str(data.classes[c]), int(counts[c]), *(float(each[c]) for each in norms.values()))
            for c in order
        ],
    )
    figure = Figure(
        "norms-by-size",
        "Length of prototypes against class size",
        " ".join(says[:-1]),
        traces,
        {
            "xaxis": size_axis(counts),
            "yaxis": {"rangemode": "tozero", "title": {"text": "length"}},
        },
        380,
    )
    return Section("norms", title, says, [figure], tables=[table])


def _told(name: str, norms: Array, counts: Array) -> str:
    """Say whether vectors are longer in larger classes."""
    times = f"the longest is {norms.max() / max(norms.min(), 1e-12):.2f} times the shortest"
    grows = _rank_correlation(counts, norms)
    if norms.max() < 1.1 * norms.min() or np.isnan(grows):
        return f"{name.capitalize()} are equally long in small and large classes: {times}."
    if abs(grows) < 0.3:
        how = "differ in length, but not with the size of the class"
    else:
        how = f"are {'longer' if grows > 0 else 'shorter'} in larger classes"
    return f"{name.capitalize()} {how}: {times}, rank correlation {grows:.2f}."


def _rank_correlation(one: Array, other: Array) -> float:
    first, second = _ranks(one), _ranks(other)
    if not (np.ptp(first) and np.ptp(second)):
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Array) -> Array:
    """Rank values; equal ones have the mean of their ranks, all of them twice as large."""
    ordered = np.sort(values)
    sides = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.add(*sides)

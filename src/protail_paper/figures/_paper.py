"""The paper's Figures 1 to 4, and what all figures have in common."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail.profile import ClassProfile
from protail.utils import counted, new_file, not_installed, unknown_name
from protail_paper.analysis import (
    Boundaries,
    ClassNorms,
    PlaneClassifier,
    Separation,
    mean_class_norms,
)
from protail_paper.paper import paper_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Accuracies over seeds, by group, by value of a setting.
Curve = Mapping[float, Mapping[str, Sequence[float]]]

# Told apart by people who see no red or green, and in print.
GREY, BLUE, ORANGE, PURPLE = "#8c8c8c", "#1f6fb4", "#e08214", "#7b4fa3"
DARK, PALE = "#333333", "#cccccc"

# Figure 1: points along a panel, and how far its longest weight vector reaches, in half widths.
_COLOURS = (GREY, BLUE, PURPLE, ORANGE)
_SAMPLING = {"instance": "every row equally often", "class-balanced": "every class equally often"}
_GRID = 400
_REACH = 0.6
# Figure 3. All pairs lie between the others and often on one of them: a broad line shows through.
_PAIRS = {
    "all-all": (GREY, "-", 5.0),
    "head-head": (BLUE, "--", 2.0),
    "head-tail": (PURPLE, "-.", 2.0),
    "tail-tail": (ORANGE, ":", 2.0),
}
_MEASURES = {
    "distance": ("mean Euclidean distance", "Euclidean separation"),
    "cosine": ("mean cosine similarity", "Angular separation (low is wide)"),
}
# Figure 4.
_LABELS = {"lr": "rate of the prototypes", "epochs": "epochs", "tau": "tau"}
_CHOICE = "the paper's choice"
_GROUPS = {"many": (BLUE, "^"), "medium": (PURPLE, "s"), "few": (ORANGE, "v"), "all": (DARK, "o")}


def write_picture(path: str | os.PathLike[str], picture: bytes, *, overwrite: bool = False) -> None:
    """Write a picture; the file is complete or not there.

    Parameters
    ----------
    path : path-like
        Where it is to stand. Missing folders above it are made.
    picture : bytes
        As the figures give it.
    overwrite : bool, default=False
        Whether a file that is already there may be replaced.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail_paper.figures import figure3, write_picture
    >>> from protail_paper.analysis import class_separation
    >>> place = Path(tempfile.mkdtemp()) / "figure3.png"
    >>> write_picture(place, figure3([0], [class_separation([[0, 1], [1, 0]], [200, 5])]))
    >>> place.read_bytes()[1:4]
    b'PNG'
    """
    with new_file(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(picture)


def new_figure(width: float, height: float) -> Figure:
    """Give an empty sheet, its size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("a picture", "matplotlib", "report")) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def as_png(figure: Figure) -> bytes:
    """Give the finished sheet as a PNG file."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A sign that the font lacks becomes a box in the picture; that is no news for the reader.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(picture, format="png")
    return picture.getvalue()


def shared_legend(
    figure: Figure, panels: Iterable[Axes], order: Sequence[str] = (), **options: Any
) -> None:
    """Explain beside all panels what stands in any of them, each name once."""
    named: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels = [label for label in order if label in named] or list(named)
    handles = [named[label] for label in labels]
    figure.legend(handles, labels, loc="outside right upper", frameon=False, **options)


def tidy(axes: Axes) -> None:
    """Leave only the lines that carry a scale."""
    axes.spines[["top", "right"]].set_visible(False)


def _mark_groups(axes: Axes, profile: ClassProfile) -> None:
    """Name the groups above classes that stand from the largest to the smallest."""
    begin = 0
    for name, members in profile.groups().items():
        end = begin + len(members)
        if not len(members):
            continue
        middle, above = (begin + end - 1) / 2, axes.get_xaxis_transform()
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8, "color": "#555555"}
        axes.text(middle, 1.01, name, transform=above, **style)
        if end < profile.n_classes:
            axes.axvline(end - 0.5, color=PALE, lw=1, ls="--", zorder=0)
        begin = end


def figure1(boundaries: Boundaries) -> bytes:
    """Draw the regions of each class under softmax and under prototypes.

    Parameters
    ----------
    boundaries : Boundaries
        As `protail_paper.analysis.learn_boundaries` gives them.

    Returns
    -------
    bytes
        The picture, a PNG file: a panel for each classifier, two in a row. Arrows are softmax
        weights with their norms; crosses are prototypes.

    Examples
    --------
    >>> from protail_paper.analysis import learn_boundaries
    >>> from protail_paper.figures import figure1
    >>> figure1(learn_boundaries())[1:4]
    b'PNG'
    """
    n_classes = len(boundaries.counts)
    if n_classes > len(_COLOURS):
        raise ValueError(
            f"boundaries has {n_classes} classes; expected at most {len(_COLOURS)}, so that "
            "colours can be told apart."
        )
    n_rows = -(-len(boundaries.classifiers) // 2)
    figure = new_figure(10.5, 0.3 + 4.3 * n_rows)
    panels = figure.subplots(n_rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, classifier in zip(panels, boundaries.classifiers, strict=False):
        _draw_panel(axes, classifier, boundaries)
    for axes in panels[len(boundaries.classifiers) :]:
        axes.set_visible(False)
    for count, colour in zip(boundaries.counts, _COLOURS, strict=False):
        label = f"class of {counted(count, 'row')}"
        panels[0].plot([], [], "o", color=colour, markersize=7, label=label)
    panels[0].plot([], [], color=DARK, lw=2, marker=">", label="softmax weight, its norm")
    panels[0].plot([], [], "X", color=DARK, markersize=9, label="prototype, its norm")
    shared_legend(figure, panels, title="shade: where a class wins", alignment="left")
    return as_png(figure)


def _draw_panel(axes: Axes, classifier: PlaneClassifier, boundaries: Boundaries) -> None:
    half = 1.08 * float(np.abs(boundaries.features).max())
    _draw_regions(axes, classifier, half)
    for label, colour in enumerate(_COLOURS[: len(boundaries.counts)]):
        rows = boundaries.features[boundaries.labels == label]
        size = 9 if len(rows) > 100 else 22
        axes.scatter(rows[:, 0], rows[:, 1], size, color=colour, alpha=0.8, linewidths=0, zorder=2)
    norms = np.linalg.norm(classifier.vectors, axis=1)
    for vector, norm in zip(classifier.vectors, norms, strict=True):
        if classifier.model == "softmax":
            tip = vector / norms.max() * _REACH * half
            arrow = {"arrowstyle": "-|>", "color": DARK, "lw": 2}
            axes.annotate("", tip, (0, 0), arrowprops=arrow, zorder=3)
            beyond = tip + 0.1 * half * vector / norm
            _write(axes, f"{norm:.2f}", beyond, ha="center", va="center")
        else:
            x, y = vector
            axes.scatter(x, y, s=120, marker="X", color=DARK, edgecolors="white", zorder=3)
            _write(axes, f"{norm:.1f}", vector, xytext=(9, 6), textcoords="offset points")
    axes.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", xticks=[], yticks=[])
    by_class = ", ".join(f"{100 * accuracy:.0f}" for accuracy in classifier.accuracy)
    axes.set_title(
        f"{classifier.model}, {_SAMPLING[classifier.sampling]}\n"
        f"accuracy {100 * classifier.accuracy.mean():.0f} % (by class {by_class})",
        fontsize=10,
        loc="left",
    )


def _draw_regions(axes: Axes, classifier: PlaneClassifier, half: float) -> None:
    from matplotlib.colors import ListedColormap

    line = np.linspace(-half, half, _GRID)
    points = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    n_classes = len(classifier.vectors)
    axes.imshow(
        classifier.predict(points).reshape(_GRID, _GRID),
        extent=(-half, half, -half, half),
        origin="lower",
        cmap=ListedColormap(_COLOURS[:n_classes]),
        vmin=-0.5,
        vmax=n_classes - 0.5,
        alpha=0.22,
        interpolation="nearest",
        zorder=0,
    )


def _write(axes: Axes, text: str, place: NDArray[np.float64], **options: Any) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
    axes.annotate(text, (place[0], place[1]), fontsize=9, zorder=4, bbox=box, **options)


def figure2(
    counts: ArrayLike | ClassProfile,
    softmax_norms: ArrayLike,
    centroid_norms: ArrayLike,
    prototype_norms: ArrayLike,
) -> bytes:
    """Draw class sizes and the norms of three kinds of vectors, the largest class first.

    Parameters
    ----------
    counts : array-like of int or ClassProfile, shape (n_classes,)
        Training rows of every class.
    softmax_norms, centroid_norms, prototype_norms : array-like, shape (n_classes,)
        Norms in the same order, as `protail_paper.analysis.class_norms` gives them; or of several
        seeds, shape (n_seeds, n_classes), of which the mean is drawn.

    Returns
    -------
    bytes
        The picture, a PNG file: four panels. Titles say the rank correlation with class size and
        the variation (standard deviation over mean), of each seed by itself, then averaged.

    Examples
    --------
    >>> from protail_paper.figures import figure2
    >>> figure2([300, 40, 3], [3.0, 2.0, 1.0], [1.0, 2.0, 2.0], [2.0, 2.1, 2.0])[1:4]
    b'PNG'
    """
    profile = ClassProfile.of(counts)
    named = {
        "Softmax weights": (_checked("softmax_norms", softmax_norms, profile), ORANGE),
        "Centroids": (_checked("centroid_norms", centroid_norms, profile), PURPLE),
        "Prototypes": (_checked("prototype_norms", prototype_norms, profile), BLUE),
    }
    figure = new_figure(13, 3.5)
    sizes, *panels = figure.subplots(1, 4)
    _draw_sizes(sizes, profile)
    for axes, (name, (norms, colour)) in zip(panels, named.items(), strict=True):
        measured = mean_class_norms(norms, profile)
        _draw_classes(axes, measured.norms, profile, colour)
        axes.set_ylim(0, 1.08 * measured.norms.max() or 1)
        axes.set_title(f"{name}\n{_in_words(measured)}", pad=18, fontsize=10)
    panels[0].set_ylabel("norm")
    return as_png(figure)


def _checked(argument: str, norms: ArrayLike, profile: ClassProfile) -> NDArray[np.float64]:
    values = np.asarray(norms, dtype=np.float64)
    shaped = values.ndim in (1, 2) and values.size and values.shape[-1] == profile.n_classes
    if not shaped or not (values >= 0).all():
        raise ValueError(
            f"{argument} has shape {values.shape}; expected ({profile.n_classes},), a norm of 0 or "
            "more for each of the counts, or a row of these for each seed."
        )
    return np.atleast_2d(values)


def _draw_sizes(axes: Axes, profile: ClassProfile) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    _draw_classes(axes, profile.counts, profile, GREY)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("training images")
    axes.set_title("Class size", pad=18, fontsize=10)


def _draw_classes(axes: Axes, values: ArrayLike, profile: ClassProfile, colour: str) -> None:
    ordered = np.asarray(values)[profile.head_first()]
    axes.plot(range(len(ordered)), ordered, ".", color=colour, markersize=5, clip_on=False)
    axes.set_xlabel("class, the largest first")
    _mark_groups(axes, profile)
    tidy(axes)


def _in_words(measured: ClassNorms) -> str:
    correlation, variation = measured.rank_correlation, measured.variation
    return (
        f"rank correlation {'-' if correlation is None else f'{correlation:+.2f}'}, "
        f"variation {'-' if variation is None else f'{100 * variation:.0f} %'}"
    )


def figure3(steps: Sequence[int], separations: Sequence[Separation]) -> bytes:
    """Draw the separation of prototypes against the steps they have learned for.

    Parameters
    ----------
    steps : sequence of int
        Steps taken at each measurement; 0 is where prototypes start.
    separations : sequence of Separation
        What was measured then.

    Returns
    -------
    bytes
        The picture, a PNG file: distance and cosine similarity, a line for each kind of pair
        that there is.

    Examples
    --------
    >>> from protail_paper.analysis import class_separation
    >>> from protail_paper.figures import figure3
    >>> measured = [class_separation([[0, far], [far, 0]], [200, 5]) for far in (1, 2)]
    >>> figure3([0, 10], measured)[1:4]
    b'PNG'
    """
    if len(steps) != len(separations) or not len(steps):
        raise ValueError(
            f"steps has {len(steps)} entries and separations {len(separations)}; expected as many, "
            "and at least one."
        )
    figure = new_figure(10, 3.8)
    panels = figure.subplots(1, 2)
    marker = "o" if len(steps) == 1 else None
    for axes, (measure, (label, title)) in zip(panels, _MEASURES.items(), strict=True):
        for pair, (colour, dashes, width) in _PAIRS.items():
            values = [getattr(each, measure)[pair] for each in separations]
            if None not in values:
                style: dict[str, Any] = {"color": colour, "ls": dashes, "lw": width}
                axes.plot(steps, values, label=pair, marker=marker, **style)
        axes.set(xlabel="steps of stage 2", ylabel=label, xmargin=0.02)
        axes.set_title(title, loc="left")
        tidy(axes)
    title = "pairs (head: many, tail: few)"
    options = {"title": title, "alignment": "left", "handlelength": 3}
    shared_legend(figure, panels, order=list(_PAIRS), **options)
    return as_png(figure)


def figure4(curves: Mapping[str, Curve]) -> bytes:
    """Draw accuracy against settings of stage 2, with the values that the paper chose.

    Parameters
    ----------
    curves : mapping of str to mapping
        For "lr", "epochs" and "tau", or some of them: for each value that was tried the accuracies
        of "many", "medium", "few" and "all", from 0 to 1, one a seed.

    Returns
    -------
    bytes
        The picture, a PNG file: a panel for each setting; points are means over seeds, bars
        standard deviations.

    Examples
    --------
    >>> from protail_paper.figures import figure4
    >>> tried = {0.0: {"all": [0.50, 0.51]}, 0.25: {"all": [0.52, 0.53]}}
    >>> figure4({"tau": tried})[1:4]
    b'PNG'
    """
    _check(curves)
    figure = new_figure(1.2 + 4.1 * len(curves), 4.0)
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    chosen = dict(paper_figure(4).chosen)
    for axes, (setting, curve) in zip(panels, curves.items(), strict=True):
        _draw_curve(axes, curve)
        _set_scale(axes, setting, sorted(curve), chosen[setting])
        axes.axvline(chosen[setting], color=GREY, lw=1.2, ls="--", zorder=0, label=_CHOICE)
        axes.set_xlabel(_LABELS[setting])
        tidy(axes)
    panels[0].set_ylabel("accuracy, %")
    shared_legend(figure, panels, order=[*_GROUPS, _CHOICE])
    return as_png(figure)


def _check(curves: Mapping[str, Curve]) -> None:
    if not curves or not all(curves.values()):
        raise ValueError(f"curves={dict(curves)!r}; expected at least one value for each setting.")
    for setting, curve in curves.items():
        if setting not in _LABELS:
            raise ValueError(unknown_name("setting", setting, _LABELS))
        for value, groups in curve.items():
            for group, scores in groups.items():
                if group not in _GROUPS:
                    raise ValueError(unknown_name("group", group, _GROUPS))
                if not len(scores) or not all(0 <= score <= 1 for score in scores):
                    raise ValueError(
                        f"curves[{setting!r}][{value!r}][{group!r}]={list(scores)}; expected "
                        "accuracies from 0 to 1, one a seed."
                    )


def _draw_curve(axes: Axes, curve: Curve) -> None:
    for group, (colour, marker) in _GROUPS.items():
        values = [value for value in sorted(curve) if group in curve[value]]
        if not values:
            continue
        scores = [100 * np.asarray(curve[value][group]) for value in values]
        means = [one.mean() for one in scores]
        spreads = [one.std(ddof=1) if len(one) > 1 else 0.0 for one in scores]
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "capsize": 3}
        style["lw"] = 2.4 if group == "all" else 1.4
        axes.errorbar(values, means, yerr=spreads, label=group, **style)


def _set_scale(axes: Axes, setting: str, values: Sequence[float], chosen: float) -> None:
    from matplotlib.ticker import NullLocator

    if setting == "lr":
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        named = set(values)
    else:
        named = _with_room(values, chosen)
    labels = [f"{value:g}" if value in named else "" for value in values]
    axes.set_xticks(values, labels, fontsize=9)


def _with_room(values: Sequence[float], chosen: float) -> set[float]:
    """Choose values whose labels do not touch on a linear axis; the paper's first."""
    room = 0.1 * (values[-1] - values[0])
    named: set[float] = set()
    for value in sorted(values, key=lambda value: (value != chosen, value)):
        if all(abs(value - other) >= room for other in named):
            named.add(value)
    return named

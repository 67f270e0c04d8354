"""Figure 1: where softmax and prototypes draw the line between large and small classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted
from protail.analysis import Boundaries, PlaneClassifier
from protail.report.figures._picture import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    PURPLE,
    as_png,
    new_figure,
    shared_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (GREY, BLUE, PURPLE, ORANGE)
_SAMPLING = {"instance": "every row equally often", "class-balanced": "every class equally often"}
_GRID = 400
# How far the longest weight vector reaches, as a part of the half width of a panel.
_REACH = 0.6


def figure1(boundaries: Boundaries) -> bytes:
    """Draw the regions of each class under softmax and under prototypes.

    Parameters
    ----------
    boundaries : Boundaries
        As `protail.analysis.learn_boundaries` gives them.

    Returns
    -------
    bytes
        The picture, a PNG file: a panel for each classifier, two in a row. Arrows are softmax
        weights with their norms; crosses are prototypes.

    Examples
    --------
    >>> from protail.analysis import learn_boundaries
    >>> from protail.report.figures import figure1
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
    _explain(panels[0], boundaries)
    shared_legend(figure, panels, title="shade: where a class wins", alignment="left")
    return as_png(figure)


def _draw_panel(axes: Axes, classifier: PlaneClassifier, boundaries: Boundaries) -> None:
    half = 1.08 * float(np.abs(boundaries.features).max())
    _draw_regions(axes, classifier, half)
    for label, colour in enumerate(_COLOURS[: len(boundaries.counts)]):
        rows = boundaries.features[boundaries.labels == label]
        axes.scatter(
            rows[:, 0],
            rows[:, 1],
            s=9 if len(rows) > 100 else 22,
            color=colour,
            alpha=0.8,
            linewidths=0,
            zorder=2,
        )
    if classifier.model == "softmax":
        _draw_weights(axes, classifier, half)
    else:
        _draw_prototypes(axes, classifier)
    axes.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", xticks=[], yticks=[])
    said = ", ".join(f"{100 * accuracy:.0f}" for accuracy in classifier.accuracy)
    axes.set_title(
        f"{classifier.model}, {_SAMPLING[classifier.sampling]}\n"
        f"accuracy {100 * classifier.accuracy.mean():.0f} % (by class {said})",
        fontsize=10,
        loc="left",
    )


def _draw_regions(axes: Axes, classifier: PlaneClassifier, half: float) -> None:
    from matplotlib.colors import ListedColormap

    line = np.linspace(-half, half, _GRID)
    points = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    regions = classifier.predict(points).reshape(_GRID, _GRID)
    n_classes = len(classifier.vectors)
    axes.imshow(
        regions,
        extent=(-half, half, -half, half),
        origin="lower",
        cmap=ListedColormap(_COLOURS[:n_classes]),
        vmin=-0.5,
        vmax=n_classes - 0.5,
        alpha=0.22,
        interpolation="nearest",
        zorder=0,
    )


def _draw_weights(axes: Axes, classifier: PlaneClassifier, half: float) -> None:
    norms = np.linalg.norm(classifier.vectors, axis=1)
    for vector, norm in zip(classifier.vectors, norms, strict=True):
        tip = vector / norms.max() * _REACH * half
        axes.annotate(
            "", tip, (0, 0), arrowprops={"arrowstyle": "-|>", "color": DARK, "lw": 2}, zorder=3
        )
        beyond = tip + 0.1 * half * vector / norm
        _say(axes, f"{norm:.2f}", beyond, ha="center", va="center")


def _draw_prototypes(axes: Axes, classifier: PlaneClassifier) -> None:
    for vector in classifier.vectors:
        axes.scatter(
            vector[0], vector[1], s=120, marker="X", color=DARK, edgecolors="white", zorder=3
        )
        norm = float(np.linalg.norm(vector))
        _say(axes, f"{norm:.1f}", vector, xytext=(9, 6), textcoords="offset points")


def _say(axes: Axes, text: str, place: NDArray[np.float64], **options: Any) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
    axes.annotate(text, (place[0], place[1]), fontsize=9, zorder=4, bbox=box, **options)


def _explain(axes: Axes, boundaries: Boundaries) -> None:
    """Put into the legend what stands for what."""
    for count, colour in zip(boundaries.counts, _COLOURS, strict=False):
        label = f"class of {counted(count, 'row')}"
        axes.plot([], [], "o", color=colour, markersize=7, label=label)
    axes.plot([], [], color=DARK, lw=2, marker=">", label="softmax weight, its norm")
    axes.plot([], [], "X", color=DARK, markersize=9, label="prototype, its norm")

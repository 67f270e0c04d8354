"""Accuracy against what training takes: one point a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted, unknown_name
from protail.report.figures._labels import place_labels
from protail.report.figures._picture import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    as_png,
    new_figure,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Kinds of methods: colour and marker.
KINDS = {
    "one training, its own loss or mixing": (DARK, "o"),
    "experts, views or contrast": (ORANGE, "^"),
    "classifier on frozen features": (PURPLE, "s"),
    "prototypes on frozen features": (BLUE, "D"),
}
# Seeds from which on a deviation says something.
_WHOLE = 3
_MARKER = 6.5
# Free space left and right of the outermost points, as a factor.
_ROOM = 1.6


@dataclass(frozen=True)
class CostPoint:
    """What a method takes and what it gives.

    Attributes
    ----------
    label : str
        What the reader sees.
    kind : str
        One of ``KINDS``.
    backbone : str
        What it was trained on, for the reader.
    seconds : float
        Of training, mean over seeds; more than 0.
    accuracies : tuple of float
        In per cent, one a seed.

    Examples
    --------
    >>> from protail.report.figures import CostPoint
    >>> kind = "prototypes on frozen features"
    >>> CostPoint("PC", kind, "ResNet-34", 80.0, (51.0, 52.0)).accuracy
    51.5
    """

    label: str
    kind: str
    backbone: str
    seconds: float
    accuracies: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(unknown_name("kind", self.kind, KINDS))
        if not self.seconds > 0 or not self.accuracies:
            raise ValueError(
                f"{self.label!r} has seconds={self.seconds!r} and {len(self.accuracies)} "
                "accuracies; expected more than 0 of both."
            )

    @property
    def accuracy(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float | None:
        """Standard deviation (of a sample) over seeds; None of fewer than three."""
        few = len(self.accuracies) < _WHOLE
        return None if few else float(np.std(self.accuracies, ddof=1))


def cost_figure(points: Sequence[CostPoint], title: str, note: str = "") -> bytes:
    """Draw accuracy against the seconds that training takes, every point named.

    Parameters
    ----------
    points : sequence of CostPoint
        At least one; on at most two backbones.
    title : str
        What stands above.
    note : str, default=""
        What stands below.

    Returns
    -------
    bytes
        The picture, a PNG file: points are means over seeds, bars standard deviations of three
        or more; labels say where seeds are fewer.

    Examples
    --------
    >>> from protail.report.figures import CostPoint, cost_figure
    >>> kind = "prototypes on frozen features"
    >>> point = CostPoint("PC", kind, "ResNet-34", 80.0, (51.0, 52.0, 52.5))
    >>> cost_figure([point], "CIFAR-100-LT")[1:4]
    b'PNG'
    """
    backbones = sorted({point.backbone for point in points}, reverse=True)
    if not 1 <= len(backbones) <= 2:
        raise ValueError(
            f"points have {len(points)} entries on {len(backbones)} backbones; expected at least "
            "one entry, and one or two backbones, so that they can be told apart."
        )
    figure = new_figure(12, 9)
    axes = figure.subplots()
    for point in points:
        _draw(axes, point, filled=point.backbone == backbones[0])
    _set_scales(axes, points)
    axes.set_title(title, loc="left")
    figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color="#555555")
    _explain(figure, axes, points, backbones)
    tidy(axes)
    _name(figure, axes, points)
    return as_png(figure)


def _draw(axes: Axes, point: CostPoint, *, filled: bool) -> None:
    colour, marker = KINDS[point.kind]
    if point.deviation is not None:
        axes.errorbar(
            point.seconds, point.accuracy, yerr=point.deviation, color=colour, lw=1, capsize=2
        )
    axes.plot(
        point.seconds,
        point.accuracy,
        marker,
        color=colour,
        markerfacecolor=colour if filled else "white",
        markersize=_MARKER,
        zorder=3,
    )


def _set_scales(axes: Axes, points: Sequence[CostPoint]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    seconds = [point.seconds for point in points]
    axes.set_xlim(min(seconds) / _ROOM, max(seconds) * _ROOM)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("GPU seconds of training, one seed (log scale)")
    axes.set_ylabel("accuracy over all classes, mirrored, %")
    axes.set_ymargin(0.08)
    axes.grid(color=PALE, lw=0.5, zorder=0)


def _explain(
    figure: Figure, axes: Axes, points: Sequence[CostPoint], backbones: Sequence[str]
) -> None:
    for kind, (colour, marker) in KINDS.items():
        if any(point.kind == kind for point in points):
            axes.plot([], [], marker, color=colour, markersize=_MARKER, label=kind)
    for backbone, face in zip(backbones, (GREY, "white"), strict=False):
        axes.plot(
            *([], [], "o"),
            color=GREY,
            markerfacecolor=face,
            markersize=_MARKER,
            label=f"{'filled' if face == GREY else 'hollow'}: {backbone}",
        )
    figure.legend(loc="outside upper left", ncols=3, frameon=False)


def _name(figure: Figure, axes: Axes, points: Sequence[CostPoint]) -> None:
    """Write the labels where the finished sheet has room for them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    texts = [
        axes.text(0, 0, _label(point), fontsize=8, color=KINDS[point.kind][0], parse_math=False)
        for point in points
    ]
    sizes = np.array([text.get_window_extent().size for text in texts])
    places = axes.transData.transform([(point.seconds, point.accuracy) for point in points])
    boxes = place_labels(
        places, sizes, _marks(axes, points), np.array(axes.bbox.extents, dtype=np.float64)
    )
    to_data = axes.transData.inverted()
    for text, place, box in zip(texts, places, boxes, strict=True):
        line = [place, np.clip(place, box[:2], box[2:])]
        (x, *xs), (y, *ys) = to_data.transform([box[:2], *line]).T.tolist()
        text.set(x=x, y=y, verticalalignment="bottom")
        axes.plot(xs, ys, color=text.get_color(), lw=0.6, zorder=1)


def _label(point: CostPoint) -> str:
    n = len(point.accuracies)
    return point.label if n >= _WHOLE else f"{point.label} ({counted(n, 'seed')})"


def _marks(axes: Axes, points: Sequence[CostPoint]) -> NDArray[np.float64]:
    """Give the boxes of markers and bars, in pixels."""
    half = _MARKER / 2 * axes.figure.dpi / 72
    found = []
    for point in points:
        spread = point.deviation or 0.0
        low, high = axes.transData.transform(
            [
                (point.seconds, point.accuracy - spread),
                (point.seconds, point.accuracy + spread),
            ]
        )
        x, y = (low + high) / 2
        found.append([x - half, min(y - half, low[1]), x + half, max(y + half, high[1])])
    return np.array(found)

"""Accuracy against what training takes: one point a method, and its label where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail.utils import counted, unknown_name
from protail_paper.figures._paper import (
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

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
# Lengths of the line from a point to its label that are tried, in heights of a label; directions.
_LENGTHS = np.array([0.8, 1, 1.3, 1.7, 2.3, 3, 4, 5, 6.2, 7.5, 9])
_ANGLES = np.arange(24) * 2 * np.pi / 24
# Free space between labels, and between a label and a mark, in heights.
_GAP, _GAP_TO_MARKS = 0.12, 0.3
# What a label costs beside the length of its line, in heights: where it leaves the frame or lies
# on something, and where its line crosses another or runs through something.
_ON_SOMETHING, _CROSSED = 100.0, 8.0
_ROUNDS = 30
_ALONG_A_LINE = np.linspace(0, 1, 12)


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
    >>> from protail_paper.figures import CostPoint
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
    >>> from protail_paper.figures import CostPoint, cost_figure
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
    x, y = point.seconds, point.accuracy
    if point.deviation is not None:
        axes.errorbar(x, y, yerr=point.deviation, color=colour, lw=1, capsize=2)
    style: dict[str, Any] = {"color": colour, "markersize": _MARKER, "zorder": 3}
    axes.plot(x, y, marker, markerfacecolor=colour if filled else "white", **style)


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
    for backbone, face, word in zip(backbones, (GREY, "white"), ("filled", "hollow"), strict=False):
        style: dict[str, Any] = {"color": GREY, "markerfacecolor": face, "markersize": _MARKER}
        axes.plot([], [], "o", label=f"{word}: {backbone}", **style)
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


def _marks(axes: Axes, points: Sequence[CostPoint]) -> Floats:
    """Give the boxes of markers and bars, in pixels."""
    half = _MARKER / 2 * axes.figure.dpi / 72
    found = []
    for point in points:
        spread = point.deviation or 0.0
        ends = [(point.seconds, point.accuracy + each) for each in (-spread, spread)]
        low, high = axes.transData.transform(ends)
        x, y = (low + high) / 2
        found.append([x - half, min(y - half, low[1]), x + half, max(y + half, high[1])])
    return np.array(found)


def place_labels(points: Floats, sizes: Floats, marks: Floats, frame: Floats) -> Floats:
    """Find a box for the label of each point: left, bottom, right, top.

    Each label in turn takes the place that costs least as long as the others stay where they are,
    until none moves any more. No label may lie on a box of ``marks`` or leave that of ``frame``.
    """
    height = float(sizes[:, 1].max())
    tried_nk = _places(points, sizes, height)
    begins = np.broadcast_to(points[:, None], (*tried_nk.shape[:2], 2))
    lines_nk = np.stack([begins, np.clip(begins, tried_nk[..., :2], tried_nk[..., 2:])], axis=2)
    costs_nk = _costs_alone(tried_nk, lines_nk, marks, frame, height)
    chosen = np.full(len(points), -1)
    for _ in range(_ROUNDS):
        before = chosen.copy()
        for i in _crowded_first(points):
            others = np.flatnonzero((chosen >= 0) & (np.arange(len(points)) != i))
            boxes, lines = (each[others, chosen[others]] for each in (tried_nk, lines_nk))
            crossed = _cross(lines_nk[i], lines) | _run_through(lines_nk[i], boxes)
            crossed |= _run_through(lines, tried_nk[i]).T
            overlaps = _overlap(tried_nk[i], boxes, _GAP * height)
            among = _ON_SOMETHING * overlaps.sum(1) + _CROSSED * crossed.sum(1)
            chosen[i] = np.argmin(costs_nk[i] + among)
        if np.array_equal(chosen, before):
            break
    found: Floats = tried_nk[np.arange(len(points)), chosen]
    return found


def _places(points: Floats, sizes: Floats, height: float) -> Floats:
    """List boxes around each point: at every length, in every direction."""
    lengths, angles = (each.ravel() for each in np.meshgrid(_LENGTHS * height, _ANGLES))
    ways = np.stack([np.cos(angles), np.sin(angles)], 1)
    half = sizes[:, None] / 2
    middles = points[:, None] + ways * (lengths[:, None] + half)
    return np.concatenate([middles - half, middles + half], axis=-1)


def _costs_alone(
    tried_nk: Floats, lines_nk: Floats, marks: Floats, frame: Floats, height: float
) -> Floats:
    """Say what each place costs whatever the other labels do."""
    costs = []
    for tried, lines in zip(tried_nk, lines_nk, strict=True):
        length = np.hypot(*(lines[:, 1] - lines[:, 0]).T) / height
        outside = (tried[:, :2] < frame[:2]).any(1) | (tried[:, 2:] > frame[2:]).any(1)
        # The line begins in the mark of its own point.
        on = _overlap(tried, marks, _GAP_TO_MARKS * height).sum(1) + outside
        through = _run_through(lines, marks).sum(1)
        costs.append(length + _ON_SOMETHING * on + _CROSSED * through)
    return np.array(costs)


def _crowded_first(points: Floats) -> NDArray[np.intp]:
    apart = np.hypot(*np.moveaxis(points[:, None] - points, -1, 0))
    return np.argsort(np.sort(apart, axis=1)[:, :6].sum(1), kind="stable")


def _overlap(boxes: Floats, others: Floats, gap: float) -> Bools:
    """Say which boxes (rows) lie on which others (columns), or nearer than a gap."""
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    on: Bools = np.all((low < others[:, 2:] + gap) & (high > others[:, :2] - gap), axis=-1)
    return on


def _run_through(lines: Floats, boxes: Floats) -> Bools:
    """Say which lines (rows) run through which boxes (columns)."""
    begin, end = lines[:, None, 0], lines[:, None, 1]
    points = (begin + _ALONG_A_LINE[:, None] * (end - begin))[:, None]
    inside = np.all((points > boxes[:, None, :2]) & (points < boxes[:, None, 2:]), axis=-1)
    through: Bools = np.any(inside, axis=-1)
    return through


def _cross(lines: Floats, others: Floats) -> Bools:
    """Say which lines (rows) cross which others (columns)."""

    def side(line: Floats, point: Floats) -> Floats:
        along, to = line[..., 1, :] - line[..., 0, :], point - line[..., 0, :]
        return along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0]

    one, two = lines[:, None], others[None]
    apart = side(one, two[..., 0, :]) * side(one, two[..., 1, :]) < 0
    return apart & (side(two, one[..., 0, :]) * side(two, one[..., 1, :]) < 0)

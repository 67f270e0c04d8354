"""Labels beside points, so that none lies on another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Lengths of the line from a point to its label that are tried, in heights of a label; directions.
_LENGTHS = np.array([0.8, 1, 1.3, 1.7, 2.3, 3, 4, 5, 6.2, 7.5, 9])
_ANGLES = np.arange(24) * 2 * np.pi / 24
# Free space between labels, and between a label and a mark, in heights.
_GAP, _GAP_TO_MARKS = 0.12, 0.3
# What a label costs beside the length of its line, in heights: where it leaves the frame or lies
# on something, and where its line crosses another or runs through something.
_ON_SOMETHING, _CROSSED = 100.0, 8.0
_ROUNDS = 30
_LOOKS_AT_A_LINE = np.linspace(0, 1, 12)


def place_labels(points: Floats, sizes: Floats, marks: Floats, frame: Floats) -> Floats:
    """Find a place for the label of each point.

    Each label in turn takes the place that costs least as long as the others stay where they
    are, until none moves any more.

    Parameters
    ----------
    points : ndarray of float, shape (n, 2)
        Where the points are.
    sizes : ndarray of float, shape (n, 2)
        Width and height of their labels.
    marks : ndarray of float, shape (n_marks, 4)
        Boxes that no label may lie on: left, bottom, right, top.
    frame : ndarray of float, shape (4,)
        The box that labels stay in.

    Returns
    -------
    ndarray of float, shape (n, 4)
        The box of each label.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.report.figures._labels import place_labels
    >>> point, frame = np.array([[90.0, 50.0]]), np.array([0.0, 0.0, 100.0, 100.0])
    >>> [box] = place_labels(point, np.array([[40.0, 10.0]]), np.empty((0, 4)), frame)
    >>> bool(box[2] <= 100)
    True
    """
    height = float(sizes[:, 1].max())
    tried_nk = _places(points, sizes, height)
    lines_nk = np.stack(
        [
            np.broadcast_to(points[:, None], (*tried_nk.shape[:2], 2)),
            _nearest(points[:, None], tried_nk),
        ],
        axis=2,
    )
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


def _nearest(points: Floats, boxes: Floats) -> Floats:
    return np.clip(points, boxes[..., :2], boxes[..., 2:])


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
    looks = (begin + _LOOKS_AT_A_LINE[:, None] * (end - begin))[:, None]
    inside = np.all((looks > boxes[:, None, :2]) & (looks < boxes[:, None, 2:]), axis=-1)
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

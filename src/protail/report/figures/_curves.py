"""Figure 4: accuracy against rate, epochs and tau of stage 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from protail._messages import unknown_name
from protail.bench import paper_figure
from protail.report.figures._picture import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    PURPLE,
    as_png,
    new_figure,
    shared_legend,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Accuracies over seeds, by group, by value of a setting.
Curve = Mapping[float, Mapping[str, Sequence[float]]]

_LABELS = {"lr": "rate of the prototypes", "epochs": "epochs", "tau": "tau"}
_CHOICE = "the paper's choice"
_LOOKS = {
    "many": (BLUE, "^"),
    "medium": (PURPLE, "s"),
    "few": (ORANGE, "v"),
    "all": (DARK, "o"),
}


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
    >>> from protail.report.figures import figure4
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
    shared_legend(figure, panels, order=[*_LOOKS, _CHOICE])
    return as_png(figure)


def _check(curves: Mapping[str, Curve]) -> None:
    if not curves or not all(curves.values()):
        raise ValueError(f"curves={dict(curves)!r}; expected at least one value for each setting.")
    for setting, curve in curves.items():
        if setting not in _LABELS:
            raise ValueError(unknown_name("setting", setting, _LABELS))
        for value, groups in curve.items():
            for group, scores in groups.items():
                if group not in _LOOKS:
                    raise ValueError(unknown_name("group", group, _LOOKS))
                if not len(scores) or not all(0 <= score <= 1 for score in scores):
                    raise ValueError(
                        f"curves[{setting!r}][{value!r}][{group!r}]={list(scores)}; expected "
                        "accuracies from 0 to 1, one a seed."
                    )


def _draw_curve(axes: Axes, curve: Curve) -> None:
    for group, (colour, marker) in _LOOKS.items():
        values = [value for value in sorted(curve) if group in curve[value]]
        if not values:
            continue
        scores = [100 * np.asarray(curve[value][group]) for value in values]
        axes.errorbar(
            values,
            [one.mean() for one in scores],
            yerr=[one.std(ddof=1) if len(one) > 1 else 0.0 for one in scores],
            color=colour,
            marker=marker,
            markersize=5,
            lw=2.4 if group == "all" else 1.4,
            capsize=3,
            label=group,
        )


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

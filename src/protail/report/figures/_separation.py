"""Figure 3: how far apart prototypes are while they learn."""

from __future__ import annotations

from collections.abc import Sequence

from protail.analysis import Separation
from protail.report.figures._picture import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    as_png,
    new_figure,
    shared_legend,
    tidy,
)

# All pairs lie between the others and often on one of them: a broad line shows through.
_LOOKS = {
    "all-all": (GREY, "-", 5.0),
    "head-head": (BLUE, "--", 2.0),
    "head-tail": (PURPLE, "-.", 2.0),
    "tail-tail": (ORANGE, ":", 2.0),
}
_PANELS = {"distance": "mean Euclidean distance", "cosine": "mean cosine similarity"}


def figure3(steps: Sequence[int], separations: Sequence[Separation]) -> bytes:
    """Draw the separation of prototypes against the steps they have learned for.

    Parameters
    ----------
    steps : sequence of int
        Steps taken at each look; 0 is where prototypes start.
    separations : sequence of Separation
        One a look.

    Returns
    -------
    bytes
        The picture, a PNG file: distance and cosine similarity, a line for each kind of pair
        that there is.

    Examples
    --------
    >>> from protail.analysis import class_separation
    >>> from protail.report.figures import figure3
    >>> looks = [class_separation([[0, far], [far, 0]], [200, 5]) for far in (1, 2)]
    >>> figure3([0, 10], looks)[1:4]
    b'PNG'
    """
    if len(steps) != len(separations) or not len(steps):
        raise ValueError(
            f"steps has {len(steps)} entries and separations {len(separations)}; expected as many, "
            "and at least one."
        )
    figure = new_figure(10, 3.8)
    panels = figure.subplots(1, 2)
    for axes, (measure, label) in zip(panels, _PANELS.items(), strict=True):
        for pair, (colour, dashes, width) in _LOOKS.items():
            values = [getattr(look, measure)[pair] for look in separations]
            if None not in values:
                marker = "o" if len(steps) == 1 else None
                axes.plot(
                    steps, values, color=colour, ls=dashes, lw=width, marker=marker, label=pair
                )
        axes.set_xlabel("steps of stage 2")
        axes.set_ylabel(label)
        axes.set_xmargin(0.02)
        tidy(axes)
    panels[0].set_title("Euclidean separation", loc="left")
    panels[1].set_title("Angular separation (low is wide)", loc="left")
    shared_legend(
        figure,
        panels,
        order=list(_LOOKS),
        title="pairs (head: many, tail: few)",
        alignment="left",
        handlelength=3,
    )
    return as_png(figure)

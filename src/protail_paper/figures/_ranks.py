"""Average ranks of classifiers, and how far apart they are by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

from protail_paper.figures._paper import BLUE, GREY, ORANGE, PALE, as_png, new_figure, tidy


def rank_figure(
    ranks: Mapping[str, float], difference: float, kinds: Mapping[str, Sequence[str]]
) -> bytes:
    """Draw average ranks, the best at the top; chance reaches as far as the grey area.

    Parameters
    ----------
    ranks : mapping of str to float
        By what each is called, the best first.
    difference : float
        The least difference of two that is none by chance.
    kinds : mapping of str to sequence of str
        At most three; a name is of the first that has a pattern like it.

    Returns
    -------
    bytes
        The picture, a PNG file.

    Examples
    --------
    >>> from protail_paper.figures import rank_figure
    >>> rank_figure({"ours": 1.2, "theirs": 1.8}, 0.7, {"all": ["*"]})[1:4]
    b'PNG'
    """
    figure = new_figure(9, 1.2 + 0.22 * len(ranks))
    axes = figure.add_subplot()
    best = min(ranks.values())
    axes.axvspan(best, best + difference, color="#eeeeee", lw=0, zorder=0)
    for kind, colour in zip(kinds, (BLUE, ORANGE, GREY), strict=False):
        own = {
            i: rank
            for i, (name, rank) in enumerate(ranks.items())
            if next(k for k, each in kinds.items() if any(fnmatch(name, p) for p in each)) == kind
        }
        axes.hlines([*own], 1, [*own.values()], color=PALE, lw=1, zorder=1)
        axes.plot([*own.values()], [*own], "o", color=colour, label=kind, zorder=2)
    axes.set_yticks(range(len(ranks)), labels=[*ranks])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlim(1, max(ranks.values()) + 1)
    axes.set_xlabel(
        f"average rank; grey: not told apart from the best (Nemenyi, 5 %: {difference:.1f})"
    )
    axes.legend(loc="upper right")
    tidy(axes)
    return as_png(figure)

"""What all figures have in common: colours, an empty sheet, a finished file."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from protail._files import new_file
from protail._messages import not_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protail.profile import ClassProfile

# Told apart by people who see no red or green, and in print.
GREY, BLUE, ORANGE, PURPLE = "#8c8c8c", "#1f6fb4", "#e08214", "#7b4fa3"
DARK, PALE = "#333333", "#cccccc"


def write_picture(path: str | os.PathLike[str], picture: bytes, *, overwrite: bool = False) -> None:
    """Write a picture; the file is whole or not there.

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
    >>> from protail.report.figures import figure3, write_picture
    >>> from protail.analysis import class_separation
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


def mark_groups(axes: Axes, profile: ClassProfile) -> None:
    """Name the groups above classes that stand from the largest to the smallest."""
    begin = 0
    for name, members in profile.groups().items():
        end = begin + len(members)
        if not len(members):
            continue
        axes.text(
            (begin + end - 1) / 2,
            1.01,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8,
            color="#555555",
        )
        if end < profile.n_classes:
            axes.axvline(end - 0.5, color=PALE, lw=1, ls="--", zorder=0)
        begin = end

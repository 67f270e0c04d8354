"""Figure 2: lengths of softmax weights, centroids and prototypes against class size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail.analysis import ClassNorms, mean_class_norms
from protail.profile import ClassProfile
from protail.report.figures._picture import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    as_png,
    mark_groups,
    new_figure,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        Norms in the same order, as `protail.analysis.class_norms` gives them; or of several
        seeds, shape (n_seeds, n_classes), of which the mean is drawn.

    Returns
    -------
    bytes
        The picture, a PNG file: four panels. Titles say the rank correlation with class size and
        the variation (standard deviation over mean), of each seed by itself, then averaged.

    Examples
    --------
    >>> from protail.report.figures import figure2
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
        axes.set_title(f"{name}\n{_said(measured)}", pad=18, fontsize=10)
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


def _draw_classes(
    axes: Axes,
    values: NDArray[np.float64] | NDArray[np.int64],
    profile: ClassProfile,
    colour: str,
) -> None:
    ordered = values[profile.head_first()]
    axes.plot(range(len(ordered)), ordered, ".", color=colour, markersize=5, clip_on=False)
    axes.set_xlabel("class, the largest first")
    mark_groups(axes, profile)
    tidy(axes)


def _said(measured: ClassNorms) -> str:
    correlation, variation = measured.rank_correlation, measured.variation
    return (
        f"rank correlation {'-' if correlation is None else f'{correlation:+.2f}'}, "
        f"variation {'-' if variation is None else f'{100 * variation:.0f} %'}"
    )

"""What a search found: the score against each setting that was varied."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted, not_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from protail.experiments import SearchedKey, SearchResult, SearchTrial

# Told apart by people who see no red or green, and in print.
_DONE, _GIVEN_UP, _BEST = "#1f6fb4", "#b0b0b0", "#e08214"
_PANELS_A_ROW = 3


def search_picture(result: SearchResult) -> bytes:
    """Draw the score of every trial against each setting that was varied.

    Parameters
    ----------
    result : SearchResult
        With at least one trial that is done.

    Returns
    -------
    bytes
        The picture, a PNG file: a panel for each setting, the best trial marked in all of them.
        Trials that were pruned stand at their last look, in grey.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> from protail.recipes import load_recipe
    >>> from protail.experiments import (
    ...     Search,
    ...     SearchResult,
    ...     SearchTrial,
    ...     read_searched_keys,
    ... )
    >>> from protail.report.search_picture import search_picture
    >>> pixels = np.arange(12, dtype=np.uint8).repeat(3).reshape(12, 3, 1, 1)
    >>> data = DataSet("insects", *[ImageSet([0] * 8 + [1] * 4, ("ant", "bee"), pixels)] * 2)
    >>> recipe = load_recipe("pc-la")
    >>> search = Search(recipe, data, read_searched_keys(["classifier.tau"], recipe))
    >>> trial = SearchTrial(0, "done", {"classifier.tau": 0.25}, score=0.5)
    >>> search_picture(SearchResult(search, (trial,)))[1:4]
    b'PNG'
    """
    best = result.best
    if best is None:
        raise ValueError("result has no trial that is done; expected one to draw.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("a picture", "matplotlib", "report")) from error

    keys = result.search.keys
    n_columns = min(len(keys), _PANELS_A_ROW)
    n_rows = -(-len(keys) // n_columns)
    figure = Figure(
        figsize=(1.5 + 3.6 * n_columns, 0.9 + 3.1 * n_rows), dpi=150, layout="constrained"
    )
    panels = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
    for axes, key in zip(panels, keys, strict=False):
        _draw_panel(axes, key, result.trials, best)
    for axes in panels[len(keys) :]:
        axes.set_visible(False)
    for axes in panels[::n_columns]:
        axes.set_ylabel(f"{result.search.score}, held out, %")
    n_done = sum(trial.state == "done" for trial in result.trials)
    n_trials = counted(n_done, "trial")
    title = f"{result.search.recipe.name}: best of {n_trials} {100 * (best.score or 0):.1f} %"
    figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A sign that the font lacks becomes a box in the picture; that is no news for the reader.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_panel(
    axes: Axes, key: SearchedKey, trials: Sequence[SearchTrial], best: SearchTrial
) -> None:
    pruned = [trial for trial in trials if trial.state == "pruned" and trial.looks]
    axes.scatter(
        _places(key, pruned),
        [100 * trial.looks[-1] for trial in pruned],
        s=16,
        facecolors="none",
        edgecolors=_GIVEN_UP,
    )
    done = [trial for trial in trials if trial.score is not None]
    axes.scatter(
        _places(key, done),
        [100 * (trial.score or 0.0) for trial in done],
        s=18,
        color=_DONE,
        alpha=0.75,
        linewidths=0,
    )
    place, score = _places(key, [best])[0], 100 * (best.score or 0.0)
    axes.axvline(place, color=_BEST, lw=1, ls="--", zorder=0)
    axes.scatter([place], [score], s=90, marker="*", color=_BEST, zorder=3)
    value = best.params[key.key]
    shown = value if isinstance(value, str) else f"{value:.4g}"
    axes.set_title(f"best: {shown}", color=_BEST, fontsize=9, parse_math=False)
    axes.set_xlabel(key.key, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    _set_scale(axes, key)


def _set_scale(axes: Axes, key: SearchedKey) -> None:
    if key.choices:
        axes.set_xlim(-0.6, len(key.choices) - 0.4)
        axes.set_xticks(range(len(key.choices)), [str(choice) for choice in key.choices])
    elif key.is_log:
        axes.set_xscale("log")
        axes.set_xlim(key.low / 1.15, key.high * 1.15)
    else:
        margin = 0.05 * (key.high - key.low)
        axes.set_xlim(key.low - margin, key.high + margin)


def _places(key: SearchedKey, trials: Sequence[SearchTrial]) -> list[float]:
    """Say where trials stand: at their values, or spread a little around their choice."""
    values: list[Any] = [trial.params[key.key] for trial in trials]
    if not key.choices:
        return values
    spread = [np.random.default_rng(trial.number).uniform(-0.18, 0.18) for trial in trials]
    return [key.choices.index(value) + aside for value, aside in zip(values, spread, strict=True)]

"""Pictures as PNG files: accuracy and number of images by class, and the trials of a search."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted, not_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protail.data.images import DataSet, FeatureData
    from protail.evaluation import Evaluation
    from protail.experiments import SearchedKey, SearchResult, SearchTrial

# Told apart by people who see no red or green, and in print: grey, blue, orange, purple.
_COLOURS = ("#8c8c8c", "#1f6fb4", "#e08214", "#7b4fa3")
_NAMED_CLASSES = 20
_DONE, _PRUNED, _BEST = "#1f6fb4", "#b0b0b0", "#e08214"
_PANELS_A_ROW = 3


def accuracy_picture(results: Mapping[str, Evaluation], *, title: str | None = None) -> bytes:
    """Draw the accuracy of every class against its training rows.

    Parameters
    ----------
    results : mapping of str to Evaluation
        What to draw, by name; at most four. The last one is drawn on top.
    title : str, optional
        What stands above.

    Returns
    -------
    bytes
        The picture, a PNG file.

    Examples
    --------
    >>> from protail import Evaluation
    >>> from protail.report import accuracy_picture
    >>> truth, predicted = ["cat", "cat", "lynx"], ["cat", "cat", "cat"]
    >>> result = Evaluation.from_predictions(
    ...     truth, predicted, classes=["cat", "lynx"], counts=[120, 3]
    ... )
    >>> accuracy_picture({"prototypes": result})[1:4]
    b'PNG'
    """
    if not 1 <= len(results) <= len(_COLOURS):
        raise ValueError(
            f"results has {len(results)} entries; expected 1 to {len(_COLOURS)}, so that colours "
            "can be told apart. Draw fewer at once."
        )
    figure = _figure(8, 4.5)
    axes = figure.subplots()
    for colour, (name, result) in zip(_colours(len(results)), results.items(), strict=True):
        _draw_classes(axes, name, result, colour)
    last = list(results.values())[-1]
    _draw_groups(axes, last)
    _name_classes(axes, last)
    axes.set_xlabel("training rows of the class")
    axes.set_ylabel("accuracy of the class, %")
    axes.set_ylim(-4, 104)
    axes.spines[["top", "right"]].set_visible(False)
    if title is not None:
        axes.set_title(title, loc="left", pad=22, parse_math=False)
    axes.plot([], [], color="#333333", lw=2, label="mean of the group")
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, handlelength=1)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return _png(figure)


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
    >>> from protail.report import search_picture
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
    keys = result.search.keys
    n_columns = min(len(keys), _PANELS_A_ROW)
    n_rows = -(-len(keys) // n_columns)
    figure = _figure(1.5 + 3.6 * n_columns, 0.9 + 3.1 * n_rows)
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
    return _png(figure)


def _figure(width: float, height: float) -> Figure:
    """Make an empty figure of this size in inches, without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(not_installed("a picture", "matplotlib", "report")) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _png(figure: Figure) -> bytes:
    """Draw the figure as a PNG file."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A sign that the font lacks becomes a box in the picture; that is no news for the reader.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(picture, format="png")
    return picture.getvalue()


def _colours(n: int) -> tuple[str, ...]:
    return _COLOURS[1:2] if n == 1 else _COLOURS[:n]


def _draw_classes(axes: Axes, name: str, result: Evaluation, colour: str) -> None:
    evaluated = ~np.isnan(result.class_accuracy)
    axes.scatter(
        np.maximum(result.counts, 1)[evaluated],
        100 * result.class_accuracy[evaluated],
        s=22 if evaluated.sum() <= 200 else 8,
        color=colour,
        alpha=0.75,
        linewidths=0,
        label=name,
        clip_on=False,
    )
    for group in result.groups.values():
        members = group[evaluated[group]]
        if len(members):
            sizes = np.maximum(result.counts[members], 1)
            mean = 100 * result.class_accuracy[members].mean()
            axes.hlines(mean, sizes.min() / 1.08, sizes.max() * 1.08, color=colour, lw=2)


def _draw_groups(axes: Axes, result: Evaluation) -> None:
    """Name the groups and mark where one ends."""
    from matplotlib.ticker import LogLocator, NullFormatter

    sizes = np.maximum(result.counts, 1)
    axes.set_xscale("log")
    axes.set_xlim(sizes.min() / 1.3, sizes.max() * 1.3)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.xaxis.set_minor_formatter(NullFormatter())
    for name, group in result.groups.items():
        if len(group):
            low, high = sizes[group].min(), sizes[group].max()
            axes.text(
                np.sqrt(low * high),
                1.02,
                f"{name} ({len(group)})",
                transform=axes.get_xaxis_transform(),
                ha="center",
                color="#555555",
            )
    for border in (result.few_below, result.many_from):
        if sizes.min() < border <= sizes.max():
            axes.axvline(border * 0.97, color="#cccccc", lw=1, ls="--", zorder=0)


def _name_classes(axes: Axes, result: Evaluation) -> None:
    if len(result.classes) > _NAMED_CLASSES:
        return
    for label, count, accuracy in zip(
        result.classes, result.counts, result.class_accuracy, strict=True
    ):
        if not np.isnan(accuracy):
            text = str(label)
            axes.annotate(
                text if len(text) <= 20 else text[:19] + "…",
                (max(count, 1), 100 * accuracy),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=7,
                color="#333333",
                parse_math=False,
            )


def _draw_panel(
    axes: Axes, key: SearchedKey, trials: Sequence[SearchTrial], best: SearchTrial
) -> None:
    pruned = [trial for trial in trials if trial.state == "pruned" and trial.looks]
    axes.scatter(
        _places(key, pruned),
        [100 * trial.looks[-1] for trial in pruned],
        s=16,
        facecolors="none",
        edgecolors=_PRUNED,
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


def counts_picture(dataset: DataSet | FeatureData) -> bytes:
    """Draw the class counts, largest first, on a logarithmic axis.

    Parameters
    ----------
    dataset : DataSet or FeatureData
        Its training part is drawn.

    Returns
    -------
    bytes
        The picture, a PNG file.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.report import counts_picture
    >>> from protail.data.images import DataSet, ImageSet
    >>> images = ImageSet([0, 0, 1], ("ant", "bee"), np.zeros((3, 3, 8, 8), np.uint8))
    >>> counts_picture(DataSet("ants", images, images))[1:4]
    b'PNG'
    """
    figure = _figure(8, 4)
    from matplotlib.ticker import LogLocator, NullFormatter

    profile = dataset.train.profile
    order = profile.head_first()
    axes = figure.subplots()
    floor = 0.7 * max(profile.counts.min(), 1)
    for (name, group), colour in zip(profile.groups().items(), _COLOURS[1:], strict=True):
        # Largest first, the classes of a group stand side by side.
        places = np.flatnonzero(np.isin(order, group))
        if len(places):
            classes = counted(len(places), "class", "classes")
            label = f"{name} ({classes}, {counted(profile.counts[group].sum(), 'image')})"
            edges = np.arange(places[0], places[-1] + 2)
            heights = np.maximum(profile.counts[order[places]], floor)
            axes.stairs(heights, edges, baseline=floor, fill=True, color=colour, label=label)
    axes.set_yscale("log")
    axes.set_ylim(bottom=floor)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("class, from the largest to the smallest")
    axes.set_ylabel("training images")
    axes.set_title(
        f"{dataset.name}, imbalance {profile.imbalance:.4g}", loc="left", parse_math=False
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return _png(figure)

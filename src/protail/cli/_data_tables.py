"""What ``protail data`` shows: tables, bars and a picture of class counts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted, not_installed
from protail.cli.command import console

if TYPE_CHECKING:
    from rich.table import Table

    from protail.cli.command import Voice
    from protail.data.images import DataSet, FeatureData
    from protail.profile import ClassProfile

_BARS, _BAR_WIDTH = 20, 50
_COLOURS = {"many": "#1f6fb4", "medium": "#e08214", "few": "#7b4fa3"}


def sets_table(listed: list[dict[str, Any]]) -> Table:
    """Make a table of data sets and what they take."""
    from rich import box
    from rich.table import Table

    table = Table("data set", "what", "options", box=box.SIMPLE)
    for entry in listed:
        table.add_row(entry["name"], entry["what"], ", ".join(entry["options"]))
    return table


def stats(dataset: DataSet | FeatureData) -> dict[str, Any]:
    """Count the classes and images of a data set, in values that JSON can hold."""
    profile = dataset.train.profile
    return {
        "name": dataset.name,
        "description": dataset.description,
        "images": {part: len(images) for part, images in dataset.parts.items()},
        "features": getattr(dataset, "n_features", None),
        "classes": profile.n_classes,
        "imbalance": profile.imbalance,
        "counts": profile.counts.tolist(),
        "groups": {
            name: {"classes": len(group), "samples": int(profile.counts[group].sum())}
            for name, group in profile.groups().items()
        },
    }


def show_stats(voice: Voice, dataset: DataSet | FeatureData, found: dict[str, Any]) -> None:
    """Show what `stats` found: a line, a table of groups, bars."""
    images = ", ".join(f"{n:,} {part}" for part, n in found["images"].items())
    each = f" as {counted(found['features'], 'feature')} each" if found["features"] else ""
    voice.show(
        f"{found['name']}: {counted(found['classes'], 'class', 'classes')}, {images} images{each}, "
        f"imbalance {found['imbalance']:.4g}"
    )
    voice.show(_groups_table(found))
    for line in bars(dataset.train.profile, console().width):
        voice.show(line)


def _groups_table(found: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    headings = ["group", "classes", "images", "share"]
    table = Table(*headings, box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    everything = {"classes": found["classes"], "samples": sum(found["counts"])}
    for name, group in {**found["groups"], "all": everything}.items():
        cells = [f"{group['classes']:,}", f"{group['samples']:,}"]
        cells.append(f"{100 * group['samples'] / everything['samples']:.1f} %")
        table.add_row(name, *cells)
    return table


def bars(profile: ClassProfile, width: int = 80) -> list[str]:
    r"""Draw the class counts, largest first, as lines of text.

    Parameters
    ----------
    profile : ClassProfile
        The counts.
    width : int
        How many signs a line holds; bars are at most fifty long.

    Returns
    -------
    list of str
        At most twenty lines; where there are more classes, each stands for the mean of several.

    Examples
    --------
    >>> from protail.cli._data_tables import bars
    >>> from protail.profile import ClassProfile
    >>> print("\n".join(bars(ClassProfile([4, 8]))))
    1  ##################################################  8
    2  #########################  4
    """
    ordered = profile.counts[profile.head_first()]
    labels, means = [], []
    for chunk in np.array_split(np.arange(len(ordered)), min(_BARS, len(ordered))):
        first, last = f"{chunk[0] + 1}", f"{chunk[-1] + 1}"
        labels.append(first if first == last else f"{first}-{last}")
        means.append(ordered[chunk].mean())
    wide = max(map(len, labels))
    room = width - wide - len(f"{means[0]:,.0f}") - 4
    longest = max(1, min(_BAR_WIDTH, room))
    lines = []
    for label, mean in zip(labels, means, strict=True):
        bar = "#" * max(round(longest * mean / ordered[0]), int(mean > 0))
        lines.append(f"{label:>{wide}}  " + (f"{bar}  {mean:,.0f}" if bar else "0"))
    return lines


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
    >>> from protail.cli._data_tables import counts_picture
    >>> from protail.data.images import DataSet, ImageSet
    >>> images = ImageSet([0, 0, 1], ("ant", "bee"), np.zeros((3, 3, 8, 8), np.uint8))
    >>> counts_picture(DataSet("ants", images, images))[1:4]
    b'PNG'
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter
    except ImportError as error:
        raise ImportError(not_installed("a picture", "matplotlib", "report")) from error
    profile = dataset.train.profile
    order = profile.head_first()
    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    floor = 0.7 * max(profile.counts.min(), 1)
    for name, group in profile.groups().items():
        # Largest first, the classes of a group stand side by side.
        places = np.flatnonzero(np.isin(order, group))
        if len(places):
            classes = counted(len(places), "class", "classes")
            label = f"{name} ({classes}, {counted(profile.counts[group].sum(), 'image')})"
            edges = np.arange(places[0], places[-1] + 2)
            heights = np.maximum(profile.counts[order[places]], floor)
            axes.stairs(
                heights, edges, baseline=floor, fill=True, color=_COLOURS[name], label=label
            )
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()

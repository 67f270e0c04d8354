"""``protail data``: which data sets there are, what is in them, and subsets that travel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from protail._messages import counted, first_few
from protail.cli import options as opt
from protail.cli.command import Voice, command, console
from protail.cli.tables import make_table

if TYPE_CHECKING:
    from protail.data.images import DataSet, FeatureData
    from protail.profile import ClassProfile

_BARS, _BAR_WIDTH = 20, 50

app = typer.Typer(
    help="Data sets: list them, count them, fetch and check them, export a subset.",
    short_help="List, count, fetch, check or export data sets.",
    epilog="Example: protail data stats cifar100-lt --imbalance 100",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

# Where nothing else has a seed, the short name will do.
Seed = Annotated[
    int | None,
    typer.Option(
        "--data-seed", "--seed", min=0, metavar="NUMBER", help="Of the subset or the split."
    ),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Picture of the counts to write, PNG.")
]
Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="File to write: NAME.protail-draw.zip.", show_default=False
    ),
]


@app.command("list", epilog="Example: protail data list")
@command
def data_list(voice: Voice) -> None:
    """List the data sets there are and the options each takes."""
    from protail.data.images import DATA_SETS, dataset_names

    listed = [
        {
            "name": name,
            "what": (DATA_SETS.factory(name).__doc__ or "").split("\n")[0],
            "options": list(DATA_SETS.options(name)),
        }
        for name in dataset_names()
    ]
    rows = [(each["name"], each["what"], ", ".join(each["options"])) for each in listed]
    voice.show(make_table(["data set", "what", "options"], rows))
    voice.finish({"datasets": listed})


@app.command("stats", epilog="Example: protail data stats cifar100-lt --plot counts.png")
@command
def data_stats(
    voice: Voice,
    name: opt.DatasetName,
    imbalance: opt.Imbalance = None,
    kind: opt.Kind = None,
    selection: opt.Selection = None,
    seed: Seed = None,
    test_fraction: opt.TestFraction = None,
    data_root: opt.DataRoot = None,
    lists: opt.Lists = None,
    plot: Plot = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Count the images of each class: groups, imbalance, a picture.

    A data set of the paper is shown beside its Table 7, with the errors of that table. Nothing is
    downloaded, and list files are counted without their images.
    """
    from protail._files import check_free, new_file
    from protail.report import counts_picture

    if plot is not None:
        check_free(plot, overwrite=overwrite)
    options = {**_draw(imbalance, kind, selection, seed), **_taken(name, check_files=False)}
    dataset = _load(
        name, data_root, download=False, lists=lists, test_share=test_fraction, **options
    )
    found = stats(dataset)
    show_stats(voice, dataset, found)
    if plot is not None:
        picture = counts_picture(dataset)
        with new_file(plot, overwrite=overwrite) as temporary:
            temporary.write_bytes(picture)
        voice.say(f"Picture: {plot}")
    voice.finish({**found, "plot": None if plot is None else str(plot)})


@app.command("prepare", epilog="Example: protail data prepare cifar100-lt --data-root data")
@command
def data_prepare(
    voice: Voice, name: opt.DatasetName, data_root: opt.DataRoot = None, lists: opt.Lists = None
) -> None:
    """Download a data set where that is possible, and check all of it.

    Files with a published checksum are checked by it; all other images are read once.
    """
    from protail.data.images import data_root as resolved_root
    from protail.data.images import require_images

    # Balanced where there is a choice: all images are read, whatever will be drawn from them.
    loaded = _load(name, data_root, lists=lists, **_taken(name, imbalance=1))
    dataset = require_images(loaded, "prepare")
    if not dataset.train.is_resident:
        voice.say(f"Reading {counted(sum(map(len, dataset.parts.values())), 'image')} ...")
        _read_all(dataset)
    is_draw = name.endswith(".zip")
    place = Path(name) if is_draw else _place(dataset, resolved_root(data_root))
    voice.show(f"{dataset} is ready in {place}: every image was checked.")
    voice.finish(
        {
            "name": dataset.name,
            "place": str(place.absolute()),
            "images": {part: len(images) for part, images in dataset.parts.items()},
        }
    )


@app.command("export", epilog="Example: protail data export cifar100-lt --imbalance 10 -o draw.zip")
@command
def data_export(
    voice: Voice,
    name: opt.DatasetName,
    output: Output,
    imbalance: opt.Imbalance = None,
    kind: opt.Kind = None,
    selection: opt.Selection = None,
    seed: Seed = None,
    data_root: opt.DataRoot = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Write a subset, train and test images, to one compact file without loss.

    Every command takes its path in place of a data set's name, and any imbalance from the stored
    one up: subsets nest.
    """
    from protail._files import OutputError, check_free
    from protail.data.images import require_images, save_subset

    if output.suffix != ".zip":
        raise OutputError(
            22, f"{output} cannot be written: its name should end in .protail-draw.zip."
        )
    check_free(output, overwrite=overwrite)
    loaded = _load(name, data_root, **_draw(imbalance, kind, selection, seed))
    dataset = require_images(loaded, "export")
    voice.say(f"Writing {dataset} ...")
    save_subset(dataset, output, overwrite=overwrite)
    size = output.stat().st_size
    voice.say(f"Subset: {output} ({size / 2**20:.1f} MiB)")
    voice.finish(
        {
            "draw": str(output),
            "bytes": size,
            "description": dataset.description,
            "images": {part: len(images) for part, images in dataset.parts.items()},
            "sha256": {part: images.fingerprint() for part, images in dataset.parts.items()},
        }
    )


def _load(name: str, root: Path | None, **options: Any) -> DataSet | FeatureData:
    from protail.data.images import load_dataset

    given = {option: value for option, value in options.items() if value is not None}
    return load_dataset(name, root=root, **given)


def _draw(
    imbalance: float | None, kind: str | None, selection: str | None, seed: int | None
) -> dict[str, Any]:
    return {"imbalance": imbalance, "kind": kind, "selection": selection, "seed": seed}


def _taken(name: str, **options: Any) -> dict[str, Any]:
    """Keep the options that a registered data set takes; others are no fault of the user."""
    from protail.data.images import DATA_SETS

    takes = DATA_SETS.options(name) if name in DATA_SETS.names() else {}
    return {option: value for option, value in options.items() if option in takes}


def _read_all(dataset: DataSet) -> None:
    from protail.data.images import DataSetError, unreadable

    paths = [path for images in dataset.parts.values() for path in images.paths]
    bad = [paths[i] for i in unreadable(paths)]
    if bad:
        raise DataSetError(
            f"{dataset.name}: {len(bad):,} of {counted(len(paths), 'image')} cannot be read "
            f"({first_few(bad)}); expected whole image files. Replace them, or train with "
            "--on-bad-image skip."
        )


def _place(dataset: DataSet, root: Path) -> Path:
    return root if dataset.train.is_resident else dataset.train.folder


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


def _groups_table(found: dict[str, Any]) -> Any:
    everything = {"classes": found["classes"], "samples": sum(found["counts"])}
    rows = [
        (
            name,
            f"{group['classes']:,}",
            f"{group['samples']:,}",
            f"{100 * group['samples'] / everything['samples']:.1f} %",
        )
        for name, group in {**found["groups"], "all": everything}.items()
    ]
    return make_table(["group", "classes", "images", "fraction"], rows, right=1)


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
    >>> from protail.cli.data import bars
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

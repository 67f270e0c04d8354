"""``protail data``: which data sets there are, what is in them, and draws that travel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail._messages import counted
from protail.cli import _completion as completion
from protail.cli.command import Debug, Json, Overwrite, Voice
from protail.cli.command import command as _command

if TYPE_CHECKING:
    from protail.data.images import DataSet, FeatureData

data_app = typer.Typer(
    help="Data sets: list them, count them, fetch and check them, export a draw.",
    epilog="Example: protail data stats cifar100-lt --imbalance 100",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A data set, a draw, a folder of class folders, or a file of features.",
        show_default=False,
        autocompletion=completion.data_sets,
    ),
]
Imbalance = Annotated[
    float | None, typer.Option(metavar="RATIO", help="Largest class over the smallest.")
]
Kind = Annotated[
    str | None,
    typer.Option(
        help="Form of the tail: exp or step.", autocompletion=completion.one_of("exp", "step")
    ),
]
Selection = Annotated[
    str | None,
    typer.Option(
        help="Images kept: shuffled, first or author.",
        autocompletion=completion.one_of("shuffled", "first", "author"),
    ),
]
DataSeed = Annotated[
    int | None,
    typer.Option("--data-seed", min=0, metavar="NUMBER", help="Of the draw or the split."),
]
# Where nothing else has a seed, the short name will do.
Seed = Annotated[
    int | None,
    typer.Option(
        "--data-seed", "--seed", min=0, metavar="NUMBER", help="Of the draw or the split."
    ),
]
TestShare = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Of a folder that is split here; else 0.2."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the data is; else PROTAIL_DATA, ~/.cache/protail."),
]
Lists = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where list or JSON files are, if elsewhere.")
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


@data_app.command("list", epilog="Example: protail data list")
@_command
def data_list(as_json: Json = False, debug: Debug = False) -> None:
    """List the data sets there are and the options each takes."""
    from protail.cli._data_tables import sets_table
    from protail.data.images import DATA_SETS, dataset_names

    voice = Voice(as_json)
    listed = [
        {
            "name": name,
            "what": (DATA_SETS.factory(name).__doc__ or "").split("\n")[0],
            "options": list(DATA_SETS.options(name)),
        }
        for name in dataset_names()
    ]
    voice.show(sets_table(listed))
    voice.finish({"datasets": listed})


@data_app.command("stats", epilog="Example: protail data stats cifar100-lt --plot counts.png")
@_command
def data_stats(
    name: Name,
    imbalance: Imbalance = None,
    kind: Kind = None,
    selection: Selection = None,
    seed: Seed = None,
    test_share: TestShare = None,
    data_root: DataRoot = None,
    lists: Lists = None,
    plot: Plot = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Count the images of each class: groups, imbalance, a picture.

    A data set of the paper is shown beside its Table 7, with the errors of that table. Nothing is
    downloaded, and list files are counted without their images.
    """
    from protail._files import check_free, new_file
    from protail.cli._data_tables import counts_picture, show_stats, stats

    voice = Voice(as_json)
    if plot is not None:
        check_free(plot, overwrite=overwrite)
    options = {**_draw(imbalance, kind, selection, seed), **_taken(name, check_files=False)}
    dataset = _load(name, data_root, download=False, lists=lists, test_share=test_share, **options)
    found = stats(dataset)
    show_stats(voice, dataset, found)
    if plot is not None:
        picture = counts_picture(dataset)
        with new_file(plot, overwrite=overwrite) as temporary:
            temporary.write_bytes(picture)
        voice.say(f"Picture: {plot}")
    voice.finish({**found, "plot": None if plot is None else str(plot)})


@data_app.command("prepare", epilog="Example: protail data prepare cifar100-lt --data-root data")
@_command
def data_prepare(
    name: Name,
    data_root: DataRoot = None,
    lists: Lists = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Download a data set where that is possible, and check all of it.

    Files with a published checksum are checked by it; all other images are read once.
    """
    from protail.data.images import data_root as resolved_root
    from protail.data.images import require_images

    voice = Voice(as_json)
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


@data_app.command(
    "export",
    epilog="Example: protail data export cifar100-lt --imbalance 10 -o draw.zip",
)
@_command
def data_export(
    name: Name,
    output: Output,
    imbalance: Imbalance = None,
    kind: Kind = None,
    selection: Selection = None,
    seed: Seed = None,
    data_root: DataRoot = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a draw, train and test images, to one compact file without loss.

    Every command takes its path in place of a data set's name, and any imbalance from the stored
    one up: draws nest.
    """
    from protail._files import OutputError, check_free
    from protail.data.images import require_images, save_draw

    voice = Voice(as_json)
    if output.suffix != ".zip":
        raise OutputError(
            22, f"{output} cannot be written: its name should end in .protail-draw.zip."
        )
    check_free(output, overwrite=overwrite)
    loaded = _load(name, data_root, **_draw(imbalance, kind, selection, seed))
    dataset = require_images(loaded, "export")
    voice.say(f"Writing {dataset} ...")
    save_draw(dataset, output, overwrite=overwrite)
    size = output.stat().st_size
    voice.say(f"Draw: {output} ({size / 2**20:.1f} MiB)")
    voice.finish(
        {
            "draw": str(output),
            "bytes": size,
            "description": dataset.description,
            "images": {part: len(images) for part, images in dataset.parts.items()},
            "sha256": {part: images.fingerprint() for part, images in dataset.parts.items()},
        }
    )


def _draw(
    imbalance: float | None, kind: str | None, selection: str | None, seed: int | None
) -> dict[str, Any]:
    return {"imbalance": imbalance, "kind": kind, "selection": selection, "seed": seed}


def _load(
    name: str, root: Path | None, *, download: bool = True, **options: Any
) -> DataSet | FeatureData:
    from protail.data.images import load_dataset

    given = {option: value for option, value in options.items() if value is not None}
    return load_dataset(name, root=root, download=download, **given)


def _taken(name: str, **options: Any) -> dict[str, Any]:
    """Keep the options that a registered data set takes; others are no fault of the user."""
    from protail.data.images import DATA_SETS

    takes = DATA_SETS.options(name) if name in DATA_SETS.names() else {}
    return {option: value for option, value in options.items() if option in takes}


def _read_all(dataset: DataSet) -> None:
    from protail._messages import first_few
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

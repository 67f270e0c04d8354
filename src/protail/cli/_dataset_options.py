"""Options of every command that needs a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail.cli import _completion as completion
from protail.cli.data import DataRoot, DataSeed, Imbalance, Kind, Lists, Selection, TestShare

if TYPE_CHECKING:
    from protail.data.images import DataSet, FeatureData

__all__ = [
    "DataRoot",
    "DataSeed",
    "Dataset",
    "ImageDataset",
    "Imbalance",
    "Kind",
    "Lists",
    "OnBadImage",
    "Selection",
    "TestShare",
    "check_test_images",
    "hold_out",
    "load_aside",
    "load_data",
    "load_images",
]

Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="Set, draw, folder or feature file.",
        show_default=False,
        autocompletion=completion.data_sets,
    ),
]
ImageDataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="A data set, a draw or a folder.",
        show_default=False,
        autocompletion=completion.data_sets,
    ),
]
OnBadImage = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="Images that cannot be read: error or skip.",
        autocompletion=completion.one_of("error", "skip"),
    ),
]


def load_data(name: str, root: Path | None = None, **options: Any) -> DataSet | FeatureData:
    """Load a data set with the options that were given.

    Parameters
    ----------
    name : str
        A data set, an exported draw, a folder of class folders, or a file of features.
    root : Path, optional
        Where the data is.
    **options
        What the user chose; None was not chosen, and is left to the data set.

    Returns
    -------
    DataSet or FeatureData
        Its parts. An option it does not take is an error that says so.

    Examples
    --------
    >>> from protail.cli._dataset_options import load_data
    >>> load_data("photos", lists=None)
    Traceback (most recent call last):
    ValueError: data set='photos' is unknown; expected one of ...
    """
    from protail.data.images import load_dataset

    given = {option: value for option, value in options.items() if value is not None}
    return load_dataset(name, root=root, **given)


def load_images(name: str, root: Path | None = None, **options: Any) -> DataSet:
    """Load a data set as `load_data` does, for a command that cannot do without images."""
    from protail.data.images import require_images

    return require_images(load_data(name, root, **options), "search with")


def hold_out(data: DataSet | FeatureData, share: float, seed: int) -> DataSet:
    """Put a share of each class's training images in the place of the test images."""
    from protail.data.images import require_images
    from protail.experiments import held_out_data

    if not 0 < share < 1:
        raise ValueError(f"--held-out {share:g}; expected a share above 0 and below 1.")
    return held_out_data(require_images(data, "hold some of out"), share=share, seed=seed)


def load_aside(name: str, root: Path | None, ratio: float, **options: Any) -> DataSet:
    """Load a draw, and put what the one at a smaller ratio adds in the place of the test images.

    Parameters
    ----------
    name, root, **options
        As for `load_data`.
    ratio : float
        The smaller ratio.

    Returns
    -------
    DataSet
        What `protail.experiments.aside_data` makes of both draws.
    """
    from protail.data.images import require_images
    from protail.experiments import aside_data

    if not ratio >= 1:
        raise ValueError(
            f"--aside-from {ratio:g}; expected a ratio of at least 1, smaller than that of the "
            "draw (--imbalance)."
        )
    narrow = require_images(load_data(name, root, **options), "judge aside")
    if "imbalance" not in narrow.description:
        raise ValueError(
            f"--aside-from {ratio:g}: data set {narrow.name!r} was not cut to a long tail; "
            "expected a draw, which leaves images to judge on. Take --held-out."
        )
    wide = load_data(name, root, **{**options, "imbalance": ratio})
    return aside_data(require_images(wide, "judge aside"), narrow)


def check_test_images(data: DataSet | FeatureData, what_to_do: str) -> None:
    """Read the test images once: one that is broken would be found when much is learned.

    Parameters
    ----------
    data : DataSet or FeatureData
        What is loaded. Of processes that train together, only the first one reads.
    what_to_do : str
        About images that are broken; what an error says.
    """
    from protail._messages import counted, first_few
    from protail.data.images import DataSetError, FeatureData, unreadable

    if isinstance(data, FeatureData) or os.environ.get("RANK", "0") != "0":
        return
    paths = data.test.paths
    bad = [paths[i] for i in unreadable(paths)]
    if bad:
        raise DataSetError(
            f"{data.name}: {len(bad):,} of {counted(len(paths), 'image')} to judge on cannot be "
            f"read ({first_few(bad)}); expected whole image files. {what_to_do}. protail data "
            "prepare names all that are broken."
        )

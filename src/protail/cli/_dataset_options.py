"""Options of every command that needs the images of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail.cli.data import DataRoot, Imbalance, Kind, Lists, Selection

if TYPE_CHECKING:
    from protail.data.sets import DataSet

__all__ = [
    "DataRoot",
    "Dataset",
    "Imbalance",
    "Kind",
    "Lists",
    "OnBadImage",
    "Selection",
    "load_images",
]

Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="A data set, an exported draw, or a folder.",
        show_default=False,
    ),
]
OnBadImage = Annotated[
    str | None, typer.Option(metavar="WHAT", help="Images that cannot be read: error or skip.")
]


def load_images(name: str, root: Path | None = None, **options: Any) -> DataSet:
    """Load a data set with the options that were given.

    Parameters
    ----------
    name : str
        A data set, an exported draw, or a folder of class folders.
    root : Path, optional
        Where the data is.
    **options
        What the user chose; None was not chosen, and is left to the data set.

    Returns
    -------
    DataSet
        Its parts. An option it does not take is an error that says so.

    Examples
    --------
    >>> from protail.cli._dataset_options import load_images
    >>> load_images("photos", lists=None)
    Traceback (most recent call last):
    ValueError: data set='photos' is unknown; expected one of ...
    """
    from protail.data.sets import load_dataset

    given = {option: value for option, value in options.items() if value is not None}
    return load_dataset(name, root=root, **given)

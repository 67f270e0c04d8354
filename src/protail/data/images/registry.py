"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from protail._registry import Registry
from protail.data.images.packed import load_subset

if TYPE_CHECKING:
    from protail.data.images.features import FeatureData
    from protail.data.images.image_set import DataSet

Loader = TypeVar("Loader", bound="Callable[..., DataSet | FeatureData]")

DATA_SETS: Registry[DataSet | FeatureData] = Registry(
    "data set", given=["root"], package="protail.data.images"
)
FEATURE_SUFFIXES = (".npz", ".safetensors")


def register_dataset(name: str) -> Callable[[Loader], Loader]:
    """Make a function a data set that `load_dataset` knows.

    Parameters
    ----------
    name : str
        What users will write.

    Returns
    -------
    callable
        A decorator. The function's first argument is ``root`` (a path or None); its other
        arguments are the options that the data set takes. The first line of its docstring is what
        ``protail data list`` shows.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet, load_dataset, register_dataset
    >>> @register_dataset("grey-squares")
    ... def grey_squares(root, size: int = 8) -> DataSet:
    ...     images = ImageSet([0, 1], ("light", "dark"), np.zeros((2, 3, size, size), np.uint8))
    ...     return DataSet("grey-squares", images, images)
    >>> load_dataset("grey-squares", size=4).train
    ImageSet(2 images of 2 classes, 4 x 4 pixels, resident)
    >>> from protail.data.images import DATA_SETS
    >>> _ = DATA_SETS._factories.pop("grey-squares")  # this example leaves nothing behind
    """
    return DATA_SETS.register(name)


def dataset_names() -> list[str]:
    """List the names of all data sets.

    Returns
    -------
    list of str
        Every registered name.

    Examples
    --------
    >>> from protail.data.images import dataset_names
    >>> dataset_names()
    ['cifar10-lt', 'cifar100-lt', 'cifar100-lt-features', 'features', 'imagefolder', ...]
    """
    return DATA_SETS.names()


def load_dataset(
    name: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    imbalance: float | None = None,
    kind: str | None = None,
    selection: str | None = None,
    seed: int | None = None,
    download: bool = True,
    **options: Any,
) -> DataSet | FeatureData:
    """Load a data set by its name, or from an exported subset, a folder or a file of features.

    Parameters
    ----------
    name : str or path-like
        One of `dataset_names`; the path of a file that `save_subset` wrote (it ends in ``.zip``); a
        folder of images, which is short for "imagefolder" and that root; or a file that ends in
        ``.npz`` or ``.safetensors``, which is short for "features" and that root.
    root : path-like, optional
        Where the data is; by default the folder named by the environment variable PROTAIL_DATA,
        else ``~/.cache/protail``.
    imbalance : float, optional
        The largest class over the smallest, for data sets that are cut to a long tail.
    kind : {"exp", "step"}, optional
        The form of the tail.
    selection : {"shuffled", "first", "author"}, optional
        Which images of a class are kept. "author" keeps two sets, as the published code does: the
        first ones for stage 1, shuffled ones for stage 2.
    seed : int, optional
        Of the subset or the split. Like the three above it, None leaves it to the data set (100,
        "exp", "shuffled" and 0), and an exported subset stays as it is.
    download : bool, default=True
        Whether a data set that can be downloaded is, when it is missing.
    **options
        What else the data set takes; any other option is an error that names those.

    Returns
    -------
    DataSet or FeatureData
        Its parts and how it was made; a FeatureData where rows of features stand for images.

    Examples
    --------
    >>> from protail.data.images import load_dataset
    >>> load_dataset("cifar100-lt-features")
    FeatureData(cifar100-lt-features: 10847 train, 50000 stream, 10000 test, 100 classes,
    64 features)
    >>> load_dataset("cifar100-lt", imbalance=50)  # doctest: +SKIP
    DataSet(cifar100-lt: 12608 train, 10000 test, 100 classes)
    """
    chosen = {"imbalance": imbalance, "kind": kind, "selection": selection, "seed": seed}
    options |= {option: value for option, value in chosen.items() if value is not None}
    known = os.fspath(name)
    if known not in DATA_SETS.names():
        if known.endswith(".zip"):
            if unknown := [option for option in options if option not in chosen]:
                raise ValueError(
                    f"an exported subset takes no option {unknown[0]!r}; options it takes: "
                    f"{', '.join(map(repr, chosen))}."
                )
            return load_subset(known, **options)
        if os.path.isdir(known) and root is None:
            known, root = "imagefolder", known
        elif known.endswith(FEATURE_SUFFIXES):
            known, root = "features", known
    if not download and "download" in DATA_SETS.options(known):
        options["download"] = False
    return DATA_SETS.taking(known, options)(root, **options)


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Give the folder in which data sets are looked for.

    Parameters
    ----------
    root : path-like, optional
        The folder, where the user names one.

    Returns
    -------
    Path
        ``root``; else what the environment variable PROTAIL_DATA names; else ``~/.cache/protail``.

    Examples
    --------
    >>> from protail.data.images import data_root
    >>> data_root("photos").as_posix()
    'photos'
    """
    named = os.environ.get("PROTAIL_DATA") if root is None else root
    return Path(named or "~/.cache/protail").expanduser()

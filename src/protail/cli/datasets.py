"""Data sets as the commands load them: by name, cut, held out, or as a run has recorded them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted, first_few

if TYPE_CHECKING:
    from protail.data.images import DataSet, FeatureData
    from protail.experiments import Run


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
    >>> from protail.cli.datasets import load_data
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


def load_parts(
    name: str,
    root: Path | None = None,
    *,
    held_out: float = 0.0,
    held_out_seed: int = 0,
    validation_from: float = 0.0,
    **options: Any,
) -> DataSet | FeatureData:
    """Load a data set, maybe with training images in the place of the test images.

    Parameters
    ----------
    name, root, **options
        As for `load_data`.
    held_out : float
        The fraction of each class's training images to hold out; 0 holds none out.
    held_out_seed : int
        Of what is held out.
    validation_from : float
        A smaller imbalance: what the subset at it has beside this one becomes the validation set.

    Returns
    -------
    DataSet or FeatureData
        What to learn from, and to evaluate on.
    """
    from protail.data.images import require_images
    from protail.experiments import aside_data

    if not validation_from:
        data = load_data(name, root, **options)
        return hold_out(data, held_out, held_out_seed) if held_out else data
    given = f"--validation-from {validation_from:g}"
    if held_out:
        raise ValueError(
            f"--held-out {held_out:g} and {given} are given; expected one of them. Each says what "
            "to evaluate on."
        )
    if not validation_from >= 1:
        raise ValueError(
            f"{given}; expected a ratio of at least 1, smaller than that of the subset "
            "(--imbalance)."
        )
    narrow = require_images(load_data(name, root, **options), "evaluate on")
    if "imbalance" not in narrow.description:
        raise ValueError(
            f"{given}: data set {narrow.name!r} was not cut to a long tail; expected a subset, "
            "which leaves images to evaluate on. Take --held-out."
        )
    wide = load_data(name, root, **{**options, "imbalance": validation_from})
    return aside_data(require_images(wide, "evaluate on"), narrow)


def check_test_images(data: DataSet | FeatureData, what_to_do: str) -> None:
    """Read the test images once: one that is broken would be found when much is learned.

    Parameters
    ----------
    data : DataSet or FeatureData
        What is loaded. Of processes that train together, only the first one reads.
    what_to_do : str
        About images that are broken; what an error says.
    """
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


def load_recorded(
    run: Run, dataset: str | None, data_root: Path | None, lists: Path | None
) -> DataSet | FeatureData:
    """Load the data set that a run was trained on, and make sure that it is the same.

    Parameters
    ----------
    run : Run
        A finished run.
    dataset : str or None
        A subset, a folder or a file of features that holds its data set; None takes the name it
        was recorded by.
    data_root, lists : Path or None
        Where the data is.

    Returns
    -------
    DataSet or FeatureData
        Its parts, what was evaluated on in the place of the test images.
    """
    from protail.data.images import DATA_SETS, DataSetError
    from protail.experiments import RunError, data_record, differing_keys

    recorded = dict(run.resolved["data"])
    name = recorded.pop("name")
    source = dataset or name
    if dataset is None and (name not in DATA_SETS.names() or "features" in recorded):
        raise ValueError(
            f"{run.folder}: its data set {name!r} has no name that is known here; expected the "
            "draw, folder or file of features it was trained on. Name it with --dataset."
        )
    options = _recorded_options(source, recorded)
    try:
        data = load_parts(source, data_root, **_parts(recorded), lists=lists, **options)
    except DataSetError as error:
        if dataset is not None:
            raise
        raise RunError(
            f"{run.folder}: {error} Where it was trained on an exported draw, --dataset "
            "PATH_OF_THE_DRAW reads the data from there."
        ) from error
    there, found = {"name": name, **recorded}, data_record(data)
    # Of runs from before images were recorded, nothing but their numbers is known.
    images, images_found = there.pop("images", None), found.pop("images", None)
    if "features" in there and "features" in found:
        # They are known by their digest, whatever the file is called by now.
        there, found = ({"features": each["features"]} for each in (there, found))
    differing = differing_keys(there, found)
    if differing:
        raise RunError(
            f"{run.folder}: the data set that was found differs in {', '.join(differing)}; "
            "expected the one of the run. Check --dataset and --data-root."
        )
    _check_counts(run, data)
    if images is not None and images != images_found:
        raise RunError(
            f"{run.folder}: the data set that was found has as many images, but others than those "
            f"of the run (in {', '.join(_differing_parts(images, images_found))}); expected the "
            "same ones. Check --dataset and --data-root."
        )
    return data


def _parts(recorded: dict[str, Any]) -> dict[str, Any]:
    """Find in a data set's description what was evaluated on instead of the test images."""
    said = {name: recorded.get(name) for name in ("held_out", "held_out_seed")}
    said["validation_from"] = recorded.get("aside_from")
    return {name: value for name, value in said.items() if value is not None}


def _differing_parts(there: dict[str, str], found: dict[str, str]) -> list[str]:
    return [part for part in {**there, **found} if there.get(part) != found.get(part)]


def _recorded_options(source: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """Find in a data set's description the options that give it again."""
    from protail.data.images import DATA_SETS

    # Nothing is fetched to judge: images of an exported draw are in that file.
    said = {**recorded, **(recorded.get("split") or {}), "download": False}
    if recorded.get("images_skipped"):
        said["on_bad_image"] = "skip"
    if "features" in recorded:
        taken = set()
    elif source.endswith(".zip"):
        taken = {"imbalance", "kind", "selection", "seed"}
    else:
        taken = set(DATA_SETS.options(source if source in DATA_SETS.names() else "imagefolder"))
    return {option: value for option, value in said.items() if option in taken}


def _check_counts(run: Run, data: DataSet | FeatureData) -> None:
    """Raise where other images go by the name of those that the run was trained on."""
    from protail.evaluation import Evaluation
    from protail.experiments import RunError

    scores = next(iter(run.evaluation().values()))["plain"]
    judged = Evaluation.from_dict(scores)
    tested = np.bincount(data.test.labels, minlength=data.train.profile.n_classes)
    # Where images are held out, classes are grouped by all they have; once it was by the rest.
    grouped_by = [data.train.profile.counts, getattr(data, "group_counts", None)]
    same = any(np.array_equal(judged.counts, counts) for counts in grouped_by if counts is not None)
    if not same or not np.array_equal(judged.class_rows, tested):
        raise RunError(
            f"{run.folder}: the data set that was found has {counted(len(data.train), 'image')} "
            f"to learn from and {len(data.test):,} to judge on, in other classes or numbers than "
            "when it was trained. Check --dataset and --data-root."
        )

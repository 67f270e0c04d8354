"""The data of an experiment: loaded, checked before much is learned, and found again by its run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from protail._messages import counted, first_few
from protail.data.images import (
    DATA_SETS,
    DataSet,
    DataSetError,
    FeatureData,
    load_dataset,
    require_images,
    unreadable,
)
from protail.evaluation import Evaluation
from protail.experiments.held_out import held_out_data, validation_data
from protail.experiments.jobs import data_record
from protail.experiments.run import Run, RunError, differing_keys
from protail.training import RepresentationSettings

Phases = Mapping[str, RepresentationSettings]

# With fewer photos, in all or of a class on average, nobody is to train from scratch unasked. What
# came of fewer: 710 photos of 60 bird species, 12 of each, taught a small MobileNet 17 % of the
# test photos in 30 epochs; classes of CIFAR-100-LT below 20 images are right in 12 of 100 cases,
# though their network saw 10,000 others (results/, Table 1). A pretrained network knows more before
# it sees the first one. No set of the paper is near: the smallest has 54 images a class.
_FEWEST = 1000
_FEWEST_OF_A_CLASS = 20


def load_data(
    name: str,
    root: Path | None = None,
    *,
    held_out: float = 0.0,
    held_out_seed: int = 0,
    aside_from: float = 0.0,
    **options: Any,
) -> DataSet | FeatureData:
    """Load a data set, maybe with a validation set in the place of the test images.

    Parameters
    ----------
    name : str
        A data set, an exported subset, a folder of class folders, or a file of features.
    root : Path, optional
        Where the data is.
    held_out : float
        The fraction of each class's training images to hold out; 0 holds none out.
    held_out_seed : int
        Of what is held out.
    aside_from : float
        A smaller imbalance: what the subset at it has beside this one becomes the validation set.
    **options
        What was chosen, as for `protail.data.images.load_dataset`; None was not, and is left to
        the data set.

    Returns
    -------
    DataSet or FeatureData
        What to learn from, and to evaluate on. An option it does not take is an error that says
        so.

    Examples
    --------
    >>> from protail.experiments import load_data
    >>> load_data("photos", lists=None)
    Traceback (most recent call last):
    ValueError: data set='photos' is unknown; expected one of ...
    """
    given = {option: value for option, value in options.items() if value is not None}
    if held_out and aside_from:
        raise ValueError(
            f"--held-out {held_out:g} and --validation-from {aside_from:g} are given; expected one "
            "of them. Each says what to evaluate on."
        )
    if aside_from and not aside_from >= 1:
        raise ValueError(
            f"--validation-from {aside_from:g}; expected a ratio of at least 1, smaller than that "
            "of the subset (--imbalance)."
        )
    data = load_dataset(name, root=root, **given)
    if held_out:
        images = require_images(data, "hold some of out")
        return held_out_data(images, fraction=held_out, seed=held_out_seed)
    if not aside_from:
        return data
    narrow = require_images(data, "evaluate on")
    if "imbalance" not in narrow.description:
        raise ValueError(
            f"--validation-from {aside_from:g}: data set {narrow.name!r} was not cut to a long "
            "tail; expected a subset, which leaves images to evaluate on. Take --held-out."
        )
    wide = load_dataset(name, root=root, **{**given, "imbalance": aside_from})
    return validation_data(require_images(wide, "evaluate on"), narrow)


def check_test_images(data: DataSet | FeatureData, what_to_do: str) -> None:
    """Read the test images once: one that is broken would be found when much is learned.

    Parameters
    ----------
    data : DataSet or FeatureData
        What is loaded. Of processes that train together, only the first one reads.
    what_to_do : str
        About images that are broken; what an error says.
    """
    if isinstance(data, FeatureData) or os.environ.get("RANK", "0") != "0":
        return
    paths = data.test.paths
    bad = [paths[i] for i in unreadable(paths)]
    if bad:
        raise DataSetError(
            f"{data.name}: {len(bad):,} of {counted(len(paths), 'image')} to evaluate on cannot be "
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
    recorded = dict(run.resolved["data"])
    name = recorded.pop("name")
    source = dataset or name
    if dataset is None and (name not in DATA_SETS.names() or "features" in recorded):
        raise ValueError(
            f"{run.folder}: its data set {name!r} has no name that is known here; expected the "
            "draw, folder or file of features it was trained on. Name it with --dataset."
        )
    options = _recorded_options(source, recorded)
    instead = ("held_out", "held_out_seed", "aside_from")
    aside = {name: recorded[name] for name in instead if name in recorded}
    try:
        data = load_data(source, data_root, **aside, lists=lists, **options)
    except DataSetError as error:
        if dataset is not None:
            raise
        raise RunError(
            f"{run.folder}: {error} Where it was trained on an exported subset, --dataset "
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


def _differing_parts(there: dict[str, str], found: dict[str, str]) -> list[str]:
    return [part for part in {**there, **found} if there.get(part) != found.get(part)]


def _recorded_options(source: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """Find in a data set's description the options that give it again."""
    # Nothing is fetched to evaluate: images of an exported subset are in that file.
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
    scores = next(iter(run.evaluation().values()))["plain"]
    evaluated = Evaluation.from_dict(scores)
    tested = np.bincount(data.test.labels, minlength=data.train.profile.n_classes)
    # Where images are held out, classes are grouped by all they have; once it was by the rest.
    grouped_by = [data.train.profile.counts, getattr(data, "group_counts", None)]
    same = any(
        np.array_equal(evaluated.counts, counts) for counts in grouped_by if counts is not None
    )
    if not same or not np.array_equal(evaluated.class_rows, tested):
        raise RunError(
            f"{run.folder}: the data set that was found has {counted(len(data.train), 'image')} "
            f"to learn from and {len(data.test):,} to evaluate on, in other classes or numbers "
            "than when it was trained. Check --dataset and --data-root."
        )


def start_words(phases: Phases) -> list[str]:
    """Say of each phase where its network starts; one that goes on from the last says nothing.

    Parameters
    ----------
    phases : mapping of str to RepresentationSettings
        Stage 1, by the names of its phases.

    Returns
    -------
    list of str
        As in " from scratch", one a phase.

    Examples
    --------
    >>> from protail.experiments import start_words
    >>> from protail.recipes import load_recipe
    >>> start_words(load_recipe("dro-lt").phases)
    [' from scratch', '']
    """
    words = []
    for number, settings in enumerate(phases.values()):
        if settings.weights is not None:
            words.append(f" from {settings.weights}")
        elif settings.pretrained:
            words.append(" from pretrained weights")
        else:
            words.append("" if number else " from scratch")
    return words


def check_photos_suffice(phases: Phases, data: DataSet) -> None:
    """Raise where photos are too few to train a network on from scratch.

    Small images in memory are let pass: patterns as simple as digits are learned from hundreds.

    Parameters
    ----------
    phases : mapping of str to RepresentationSettings
        What is to be trained.
    data : DataSet
        On what.

    Raises
    ------
    ValueError
        It says what to start from instead.
    """
    if not _learns_photos_from_scratch(phases, data):
        return
    n_images, n_classes = len(data.train), len(data.train.classes)
    if n_images >= max(_FEWEST, _FEWEST_OF_A_CLASS * n_classes):
        return
    backbone = next(iter(phases.values())).backbone
    raise ValueError(
        f"{data.name}: {counted(n_images, 'photo')} of {counted(n_classes, 'class', 'classes')} "
        f"are too few to train {backbone} from scratch; expected {_FEWEST:,} at least, and "
        f"{_FEWEST_OF_A_CLASS} a class. Start from a network that knows photos: "
        f"{_pretrained(phases)}. Or learn prototypes on its features: protail fit FOLDER -o MODEL. "
        "--from-scratch trains all the same."
    )


def expectation(phases: Phases, data: DataSet) -> str | None:
    """Say what little comes of a training from scratch on few photos; None where it may be much.

    Parameters
    ----------
    phases, data
        As for `check_photos_suffice`.

    Returns
    -------
    str or None
        For whoever is about to train.
    """
    if len(data.train) >= 10 * _FEWEST or not _learns_photos_from_scratch(phases, data):
        return None
    return (
        "From scratch, expect little of few photos: on CIFAR-100-LT, with 108 images a class, a "
        "ResNet-34 comes to 46 % of the test images, and to 12 % in classes below 20 images. A "
        f"pretrained one needs far fewer: {_pretrained(phases)}."
    )


def _learns_photos_from_scratch(phases: Phases, data: DataSet) -> bool:
    first = next(iter(phases.values()))
    is_from_scratch = first.weights is None and not first.pretrained
    learns = any(settings.epochs for settings in phases.values())
    return is_from_scratch and learns and not data.train.is_resident


def _pretrained(phases: Phases) -> str:
    """Write the options that start from weights that can be had, or from a file."""
    return f"--pretrained, or --set {next(iter(phases))}.weights=FILE"

"""The data of an experiment: loaded, checked before much is learned, and found again by its run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted, first_few
from protail.data.augment import AUGMENTS, LOADER_AUGMENTS
from protail.data.images import (
    DATA_SETS,
    DataSet,
    DataSetError,
    FeatureData,
    ImageSet,
    in_memory,
    load_dataset,
    long_tailed_index,
    require_images,
    same_content,
    unreadable,
)
from protail.data.tables import split
from protail.evaluation import Evaluation
from protail.experiments.jobs import data_record
from protail.experiments.run import Run, RunError, differing_keys
from protail.profile import ClassProfile
from protail.recipes import Recipe
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
    if root is not None and _holds_data(name):
        raise ValueError(
            f"--data-root {root} is given, but {name} holds the data itself; expected one of "
            "them. Leave --data-root out."
        )
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


def suited_data(data: DataSet | FeatureData, recipe: Recipe) -> DataSet | FeatureData:
    """Keep small photos in memory, where a recipe changes images as those of CIFAR.

    Parameters
    ----------
    data : DataSet or FeatureData
        What is loaded.
    recipe : Recipe
        What is to be trained. Steps such as ``crop`` say that images stay as large as they are;
        those of a pretrained backbone are resized, and stay in files.

    Returns
    -------
    DataSet or FeatureData
        The same images, decoded, where the recipe wants them so and `in_memory` can.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> from protail.experiments import suited_data
    >>> from protail.recipes import load_recipe
    >>> images = ImageSet([0], ("ant",), np.zeros((1, 3, 8, 8), np.uint8))
    >>> ants = DataSet("ants", images, images)
    >>> suited_data(ants, load_recipe("wd")) is ants  # in memory already
    True
    """
    if isinstance(data, FeatureData) or data.train.is_resident:
        return data
    phases, head = list(recipe.phases.values()), recipe.classifier
    steps = {step for phase in phases for step in (*phase.augment, *phase.second_view)}
    if head is not None and (head.epochs or head.centroids == "augmented"):
        steps |= set(head.augment)
    stays = steps <= set(LOADER_AUGMENTS) or not steps <= set(AUGMENTS)
    if stays or any(phase.pretrained for phase in phases):
        return data
    return in_memory(data) or data


def _holds_data(name: str) -> bool:
    return name not in DATA_SETS.names() and os.path.isfile(name)


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
        root = None if _holds_data(source) else data_root
        data = load_data(source, root, **aside, lists=lists, **options)
    except DataSetError as error:
        if dataset is not None:
            raise
        raise RunError(
            f"{run.folder}: {error} Where it was trained on an exported subset, --dataset "
            "PATH_OF_THE_DRAW reads the data from there."
        ) from error
    if recorded.get("in_memory"):
        images_in_files = require_images(data, "evaluate on")
        data = in_memory(images_in_files) or data
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


def data_words(data: DataSet | FeatureData) -> str:
    """Say how many images and classes there are, and how long the tail is."""
    profile = data.train.profile
    by = getattr(data, "group_counts", None)
    grouped = profile if by is None else ClassProfile(by)
    groups = ", ".join(f"{name} {len(group)}" for name, group in grouped.groups().items())
    skipped = data.description.get("images_skipped")
    left_out = ""
    if skipped:
        lost = counted(skipped, "image cannot be read and is", "images cannot be read and are")
        left_out = f"; {lost} left out"
    return (
        f"{data.name}: {counted(len(data.train), 'image')} to learn from, {len(data.test):,} to "
        f"evaluate on, {counted(profile.n_classes, 'class', 'classes')} ({groups}), "
        f"imbalance {profile.imbalance:.4g}{left_out}"
    )


def feature_words(data: FeatureData) -> str:
    """Say where features come from, and whether images were augmented."""
    words = f"that of {data.name}, {counted(data.n_features, 'feature')}"
    if data.stream is None:
        return f"{words}; nothing is augmented"
    return f"{words}; its stream of {len(data.stream):,} stands for sampler and augment"


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
    photos = not data.train.is_resident or data.description.get("in_memory", False)
    return bool(is_from_scratch and learns and photos)


def _pretrained(phases: Phases) -> str:
    """Write the options that start from weights that can be had, or from a file."""
    return f"--pretrained, or --set {next(iter(phases))}.weights=FILE"


def held_out_data(data: DataSet, *, fraction: float = 0.2, seed: int = 0) -> DataSet:
    """Hold a fraction of every class's training images out, in the place of the test set.

    The real test images, and a validation part, are in neither part of what comes back. At least
    one image is held out of a class that has two; a single one stays in the training part.
    Identical images, and copies of one file, stay together.

    Parameters
    ----------
    data : DataSet
        Whose training images to part.
    fraction : float, default=0.2
        How much of each class is held out.
    seed : int, default=0
        Same seed, same parts.

    Returns
    -------
    DataSet
        ``train`` is the rest, ``test`` what is held out; classes are grouped by their images in
        both.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> from protail.experiments import held_out_data
    >>> pixels = np.arange(16, dtype=np.uint8).repeat(3).reshape(16, 3, 1, 1)
    >>> images = ImageSet([0] * 10 + [1] * 5 + [2], ("ant", "bee", "cat"), pixels)
    >>> held_out_data(DataSet("insects", images, images))
    DataSet(insects: 13 train, 3 test, 3 classes)
    """
    if not 0 < fraction < 1:
        raise ValueError(
            f"fraction={fraction!r} (--held-out); expected a fraction above 0 and below 1."
        )
    _check_stages(data)
    images = data.train
    kept, held = split(images.labels, fraction=fraction, groups=_same_images(images), seed=seed)
    if not held.size:
        raise ValueError(
            f"{data.name}: no class has two different training images; expected some to hold one "
            "out of."
        )
    return DataSet(
        data.name,
        images.subset(kept),
        images.subset(held),
        description={**data.description, "held_out": fraction, "held_out_seed": seed},
        # Groups are those of the whole: what is held out makes no class rarer.
        group_counts=images.profile.counts,
    )


def validation_data(wide: DataSet, narrow: DataSet) -> DataSet:
    """Put training images that a wider subset has, and this one leaves, in place of the test set.

    Subsets nest: what a smaller ratio keeps of a class begins with what a larger one keeps. The
    validation set is the last images of each class of the wide subset, in its order, as many of
    every class as the smallest one has more of there. A class that has fewer more gives up images
    of its own, which are then not learned from. An image that is identical, in every pixel, to one
    that is learned from or to a test image is left out of the validation set.

    Parameters
    ----------
    wide : DataSet
        The subset at the smaller ratio.
    narrow : DataSet
        The subset to learn from: of the same data, kind, selection and seed.

    Returns
    -------
    DataSet
        ``train`` is the narrow subset without the validation set, ``test`` the validation set;
        classes are grouped by their images in the whole narrow subset.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.images import DataSet, ImageSet
    >>> from protail.experiments import validation_data
    >>> pixels = np.arange(22, dtype=np.uint8).repeat(3).reshape(22, 3, 1, 1)
    >>> images = ImageSet([0] * 12 + [1] * 8, ("ant", "bee"), pixels[:20])
    >>> test = ImageSet([0, 1], ("ant", "bee"), pixels[20:])
    >>> wide = DataSet("insects", images, test, description={"imbalance": 1.5})
    >>> narrow = DataSet(
    ...     "insects", images.subset(range(14)), test, description={"imbalance": 6}
    ... )
    >>> parts = validation_data(wide, narrow)
    >>> parts.train.profile.counts, parts.test.profile.counts
    (array([6, 2]), array([6, 6]))
    """
    _check_stages(narrow)
    _check_subsets(wide, narrow)
    images, counts = wide.train, narrow.train.profile.counts
    learned, n_held = validation_counts(images.profile.counts, counts)
    there, here = wide.description["imbalance"], narrow.description["imbalance"]
    if n_held < 1:
        raise ValueError(
            f"{narrow.name}: the smallest class has no more images at imbalance {there} than at "
            f"{here}; expected some more to evaluate on. Take them from a smaller ratio, or learn "
            "from a larger one (--validation-from, --imbalance)."
        )
    if images.subset(_first(images, counts)).fingerprint() != narrow.train.fingerprint():
        raise ValueError(
            f"{narrow.name}: the subset at imbalance {here} is not what the one at {there} begins "
            "with; expected subsets that nest. Load both from the same data."
        )
    train = images.subset(_first(images, learned))
    others = _first(images, images.profile.counts - n_held)
    held = images.subset(np.setdiff1d(np.arange(len(images)), others))
    known = {*_contents(train), *_contents(wide.test)}
    return DataSet(
        narrow.name,
        train,
        held.subset([content not in known for content in _contents(held)]),
        description={**narrow.description, "aside_from": there},
        # Groups are those of the whole: what is held out makes no class rarer.
        group_counts=counts,
    )


def validation_counts(
    wide: NDArray[np.int64], narrow: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Count the images to learn from and to evaluate on where a wider subset has the latter.

    Parameters
    ----------
    wide, narrow : ndarray of int, shape (n_classes,)
        Images of each class in both subsets.

    Returns
    -------
    learned : ndarray of int, shape (n_classes,)
        Images of each class to learn from.
    held : int
        Images of every class to evaluate on, before identical ones are left out.

    Examples
    --------
    >>> from protail.data.images import long_tailed_counts
    >>> from protail.experiments import validation_counts
    >>> wide, narrow = (long_tailed_counts(500, 100, ratio) for ratio in (10, 100))
    >>> learned, held = validation_counts(wide, narrow)
    >>> int(narrow.sum() - learned.sum()), held
    (120, 45)
    """
    held = int(wide.min() - narrow.min())
    return np.minimum(narrow, wide - held), held


def _check_stages(data: DataSet) -> None:
    """Raise unless both stages learn from the same images."""
    if data.classifier_train is not None:
        raise ValueError(
            f"{data.name}: its two stages learn from different images; expected the same ones, so "
            "that neither sees what is held out. Take selection 'shuffled' or 'first'."
        )


def _check_subsets(wide: DataSet, narrow: DataSet) -> None:
    """Raise unless both are long-tailed subsets, and differ in the imbalance at most."""
    for data in (wide, narrow):
        if "imbalance" not in data.description:
            raise ValueError(
                f"{data.name}: it was not cut to a long tail; expected a long-tailed subset, "
                "which leaves images to evaluate on."
            )
    there, here = wide.description, narrow.description
    about = [{**each.description, "name": each.name, "imbalance": None} for each in (wide, narrow)]
    differing = [key for key in about[0] | about[1] if about[0].get(key) != about[1].get(key)]
    if differing:
        raise ValueError(
            f"{narrow.name}: the subsets at imbalance {there['imbalance']} and "
            f"{here['imbalance']} differ in {', '.join(differing)}; expected subsets that nest. "
            "Load both from the same data, in the same way."
        )


def _first(images: ImageSet, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the first images of each class: a subset keeps the order in which it was made."""
    return long_tailed_index(images.labels, counts, "first")


def _same_images(images: ImageSet) -> NDArray[np.int64]:
    """Give each image a number, identical ones the same."""
    if images.pixels is None:
        return same_content(images)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in _contents(images)])


def _contents(images: ImageSet) -> list[bytes]:
    """Give the pixels of resident images, by which identical ones are known."""
    assert images.pixels is not None
    return [one.tobytes() for one in images.pixels]

"""Where the networks of a training start, and whether photos suffice to start from nothing."""

from __future__ import annotations

from collections.abc import Mapping

from protail._messages import counted
from protail.data.images import DataSet
from protail.models.backbones import BACKBONES
from protail.training import RepresentationSettings

Phases = Mapping[str, RepresentationSettings]

# With fewer photos, in all or of a class on average, nobody is to train from scratch unasked. What
# came of fewer: 710 photos of 60 bird species, 12 of each, taught a small MobileNet 17 % of the
# test photos in 30 epochs; classes of CIFAR-100-LT below 20 images are right in 12 of 100 cases,
# though their network saw 10,000 others (results/, Table 1). A pretrained network knows more before
# it sees the first one. No set of the paper is near: the smallest has 54 images a class.
_FEWEST = 1000
_FEWEST_OF_A_CLASS = 20


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
            words.append(" from the weights of timm")
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
        f"{_pretrained(phases)}. Or compute features with such a network, for protail fit. "
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
    """Write the options that start from weights that are there to be fetched, or from a file."""
    stage, settings = next(iter(phases.items()))
    other = ""
    if settings.backbone in BACKBONES.names():  # nobody publishes weights of these
        other = "".join(f"--set {name}.backbone=resnet50 " for name in phases)
    return f"{other}--set {stage}.pretrained=true, or --set {stage}.weights=FILE"

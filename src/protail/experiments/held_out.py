"""Validation sets: training images that no stage learns from, in the place of the test images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protail.data.images import DataSet, ImageSet, long_tailed_index, same_content
from protail.data.tables import split


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

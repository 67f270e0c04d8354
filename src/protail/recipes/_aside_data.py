"""A draw judged on training images that it leaves and a wider one has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protail.data.sets import DataSet, ImageSet, long_tailed_index
from protail.recipes._search_data import check_stages, contents


def aside_data(wide: DataSet, narrow: DataSet) -> DataSet:
    """Put training images that a wider draw has, and this one leaves, in the place of the test set.

    Draws nest: what a smaller ratio keeps of a class begins with what a larger one keeps. Judged on
    are the last images of each class of the wide draw, in the order of the draw, as many of every
    class as the smallest one has more of there. A class that has fewer more gives up images of its
    own, which are then not learned from. An image that is identical, in every pixel, to one
    that is learned from or to a test image is not judged on.

    Parameters
    ----------
    wide : DataSet
        The draw at the smaller ratio.
    narrow : DataSet
        The draw to learn from: of the same data, kind, selection and seed.

    Returns
    -------
    DataSet
        ``train`` is the narrow draw without what is judged on, ``test`` what is judged on; classes
        are grouped by their images in the whole narrow draw.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data.sets import DataSet, ImageSet
    >>> from protail.recipes.search import aside_data
    >>> pixels = np.arange(22, dtype=np.uint8).repeat(3).reshape(22, 3, 1, 1)
    >>> images = ImageSet([0] * 12 + [1] * 8, ("ant", "bee"), pixels[:20])
    >>> test = ImageSet([0, 1], ("ant", "bee"), pixels[20:])
    >>> wide = DataSet("insects", images, test, description={"imbalance": 1.5})
    >>> narrow = DataSet(
    ...     "insects", images.subset(range(14)), test, description={"imbalance": 6}
    ... )
    >>> parts = aside_data(wide, narrow)
    >>> parts.train.profile.counts, parts.test.profile.counts
    (array([6, 2]), array([6, 6]))
    """
    check_stages(narrow)
    _check_draws(wide, narrow)
    images, drawn = wide.train, narrow.train.profile.counts
    learned, n_judged = aside_counts(images.profile.counts, drawn)
    if n_judged < 1:
        raise ValueError(
            f"{narrow.name}: the smallest class has no more images at imbalance "
            f"{wide.description['imbalance']} than at {narrow.description['imbalance']}; expected "
            "some more to judge on. Judge aside from a smaller ratio, or learn from a larger one "
            "(--aside-from, --imbalance)."
        )
    if images.subset(_first(images, drawn)).fingerprint() != narrow.train.fingerprint():
        raise ValueError(
            f"{narrow.name}: the draw at imbalance {narrow.description['imbalance']} is not what "
            f"the one at {wide.description['imbalance']} begins with; expected draws that nest. "
            "Load both from the same data."
        )
    train = images.subset(_first(images, learned))
    others = _first(images, images.profile.counts - n_judged)
    judged = images.subset(np.setdiff1d(np.arange(len(images)), others))
    known = {*contents(train), *contents(wide.test)}
    return DataSet(
        narrow.name,
        train,
        judged.subset([content not in known for content in contents(judged)]),
        description={**narrow.description, "aside_from": wide.description["imbalance"]},
        # Groups are those of the whole: what is judged on makes no class rarer.
        group_counts=drawn,
    )


def aside_counts(
    wide: NDArray[np.int64], narrow: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Say how many images are learned from and judged on where a wider draw has the latter.

    Parameters
    ----------
    wide, narrow : ndarray of int, shape (n_classes,)
        Images of each class in both draws.

    Returns
    -------
    learned : ndarray of int, shape (n_classes,)
        Images of each class to learn from.
    judged : int
        Images of every class to judge on, before identical ones are left out.

    Examples
    --------
    >>> from protail.data.sets import long_tailed_counts
    >>> from protail.recipes._aside_data import aside_counts
    >>> wide, narrow = (long_tailed_counts(500, 100, ratio) for ratio in (10, 100))
    >>> learned, judged = aside_counts(wide, narrow)
    >>> int(narrow.sum() - learned.sum()), judged
    (120, 45)
    """
    judged = int(wide.min() - narrow.min())
    return np.minimum(narrow, wide - judged), judged


def _check_draws(wide: DataSet, narrow: DataSet) -> None:
    for data in (wide, narrow):
        if "imbalance" not in data.description:
            raise ValueError(
                f"{data.name}: it was not cut to a long tail; expected a draw, which leaves images "
                "to judge on."
            )
    there, other = (
        {**data.description, "name": data.name, "imbalance": None} for data in (wide, narrow)
    )
    differing = [key for key in {**there, **other} if there.get(key) != other.get(key)]
    if differing:
        raise ValueError(
            f"{narrow.name}: the draws at imbalance {wide.description['imbalance']} and "
            f"{narrow.description['imbalance']} differ in {', '.join(differing)}; expected draws "
            "that nest. Load both from the same data, in the same way."
        )


def _first(images: ImageSet, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the first images of each class: a draw keeps them in the order in which it was made."""
    return long_tailed_index(images.labels, counts, "first")

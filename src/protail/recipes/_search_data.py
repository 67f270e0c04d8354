"""What a search is judged on: training images that no stage of it sees."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protail._messages import unknown_name
from protail.data.features import split
from protail.data.sets import DataSet, ImageSet
from protail.data.sets._files_on_disk import same_content
from protail.evaluation import Evaluation
from protail.training.frozen import FrozenFeatures
from protail.training.inference import inferring
from protail.training.settings import Precision

SCORES = ("balanced", "few", "all")


def held_out_data(data: DataSet, *, share: float = 0.2, seed: int = 0) -> DataSet:
    """Hold a part of every class's training images out, and put it in the place of the test set.

    The real test images, and a validation part, are in neither part of what comes back. At least
    one image is held out of a class that has two; a single one stays in the training part.
    Identical images, and copies of one file, stay together.

    Parameters
    ----------
    data : DataSet
        Whose training images to part.
    share : float, default=0.2
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
    >>> from protail.data.sets import DataSet, ImageSet
    >>> from protail.recipes.search import held_out_data
    >>> pixels = np.arange(16, dtype=np.uint8).repeat(3).reshape(16, 3, 1, 1)
    >>> images = ImageSet([0] * 10 + [1] * 5 + [2], ("ant", "bee", "cat"), pixels)
    >>> held_out_data(DataSet("insects", images, images))
    DataSet(insects: 13 train, 3 test, 3 classes)
    """
    check_stages(data)
    images = data.train
    kept, held = split(images.labels, share=share, groups=_same_images(images), seed=seed)
    if not held.size:
        raise ValueError(
            f"{data.name}: no class has two different training images; expected some to hold one "
            "out of."
        )
    how = {"held_out": share, "held_out_seed": seed}
    return DataSet(
        data.name,
        images.subset(kept),
        images.subset(held),
        description={**data.description, **how},
        # Groups are those of the whole: what is held out makes no class rarer.
        group_counts=images.profile.counts,
    )


def check_stages(data: DataSet) -> None:
    """Raise unless both stages learn from the same images."""
    if data.classifier_train is not None:
        raise ValueError(
            f"{data.name}: its two stages learn from different images; expected the same ones, so "
            "that neither sees what is held out. Take selection 'shuffled' or 'first'."
        )


def _same_images(images: ImageSet) -> NDArray[np.int64]:
    """Give each image a number, identical ones the same."""
    if images.pixels is None:
        return same_content(images)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in contents(images)])


def contents(images: ImageSet) -> list[bytes]:
    """Give the pixels of resident images, by which identical ones are known."""
    assert images.pixels is not None
    return [one.tobytes() for one in images.pixels]


def judge(
    head: nn.Module,
    frozen: FrozenFeatures,
    data: DataSet,
    counts: NDArray[np.int64],
    precision: Precision = "float32",
) -> Evaluation:
    """Judge a head on the held-out images.

    Parameters
    ----------
    head : nn.Module
        Features to logits.
    frozen : FrozenFeatures
        The backbone it belongs to.
    data : DataSet
        What `held_out_data` gave.
    counts : ndarray of int, shape (n_classes,)
        All training images of each class, the held-out ones too: they say which group it is in.
    precision : {"float32", "bfloat16"}
        What the backbone computes in.

    Returns
    -------
    Evaluation
        On images as they are, without mirrored averaging.
    """
    return judge_features(head, frozen.of(data.test, precision), data, counts)


def judge_features(
    head: nn.Module, features: torch.Tensor, data: DataSet, counts: NDArray[np.int64]
) -> Evaluation:
    """Judge a head on features of the held-out images; otherwise as `judge`."""
    with inferring(head):
        predicted = head(features).argmax(1).cpu()
    return Evaluation.from_predictions(
        data.test.labels, predicted, classes=range(len(counts)), counts=counts
    )


def scores_of(evaluation: Evaluation) -> dict[str, float]:
    """Give everything a search may be scored by, and the other groups; what there is of them.

    Parameters
    ----------
    evaluation : Evaluation
        On held-out images.

    Returns
    -------
    dict of str to float
        "balanced", "all", "many", "medium" and "few", each where it is known.

    Examples
    --------
    >>> from protail.evaluation import Evaluation
    >>> from protail.recipes._search_data import scores_of
    >>> scores_of(
    ...     Evaluation.from_predictions([0, 0, 1], [0, 0, 0], classes=[0, 1], counts=[9, 200])
    ... )
    {'balanced': 0.5, 'all': 0.6666666666666666, 'many': 0.0, 'few': 1.0}
    """
    scores = {"balanced": evaluation.balanced_accuracy}
    for name in ("all", "many", "medium", "few"):
        value = getattr(evaluation, name)
        if value is not None:
            scores[name] = value
    return scores


def check_score(score: str, data: DataSet, counts: NDArray[np.int64]) -> None:
    """Raise unless the held-out images can give this score."""
    if score not in SCORES:
        raise ValueError(unknown_name("score", score, SCORES))
    truth = data.test.labels
    known = scores_of(
        Evaluation.from_predictions(truth, truth, classes=range(len(counts)), counts=counts)
    )
    if score not in known:
        raise ValueError(
            f"score={score!r}: no class with fewer than 20 training images has one held out; "
            "expected some. Take score='balanced'."
        )

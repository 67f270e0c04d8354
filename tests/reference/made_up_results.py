"""Results that nobody ran, for tests of pages and pictures."""

import numpy as np

from protail.data.images import load_dataset, long_tailed_counts
from protail.profile import ClassProfile
from protail_paper.comparisons import COMPARISONS
from protail_paper.scores import pack_bits

GPU = "Some GPU"


def labels_of_test():
    """Give the labels of the test images of CIFAR-100, which come with the package."""
    return load_dataset("cifar100-lt-features").test.labels


def scores_of(right, imbalance):
    """Evaluate bits by the labels, as an evaluation does: a group without classes has no score."""
    labels = labels_of_test()
    accuracies = np.array([right[labels == label].mean() for label in range(100)])
    groups = ClassProfile(long_tailed_counts(500, 100, imbalance)).groups()
    fractions = {
        group: float(accuracies[members].mean()) if len(members) else None
        for group, members in groups.items()
    }
    return fractions | {"all": float(right.mean())}


def outcome_of(right, imbalance=100, *, seconds=(80.0, 0.5), backbone="one", gpus=(GPU,)):
    """Make what a result says of the test images that are right; the first seconds of stage 1."""
    scores, bits = scores_of(right, imbalance), pack_bits(right)
    took = dict(zip(("representation", "classifier"), seconds, strict=False))
    return {
        "scores": {"plain": scores, "mirrored": scores},
        "right": {"plain": bits, "mirrored": bits},
        "seconds": {"guessed": 0.0, **took},
        "backbone": backbone,
        "about": {"gpus": list(gpus)},
    }


def right_images(fraction, seed, *, row=0, own=0.1):
    """Draw which images are right: easy ones are the same in all rows, but for a part of them."""
    n = len(labels_of_test())
    ease = np.random.default_rng(seed).random(n)
    rng = np.random.default_rng([seed, row])
    return np.where(rng.random(n) < own, rng.random(n), ease) < fraction


def entries_of(name):
    """Give the rows of a comparison, by the row and the column they stand in."""
    return {(entry.row, entry.column): entry for entry in COMPARISONS[name].entries}

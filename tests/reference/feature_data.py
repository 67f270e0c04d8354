"""Features of a backbone that nobody has: long-tailed clusters, with a stream and mirror images."""

import numpy as np

from protail.data.images import FeatureData, FeatureSet
from reference.real_data import shared

COUNTS = (120, 60, 25, 12, 4)
WIDTH = 8


def clusters(counts, seed, spread=1.0):
    """Draw rows around a centre for each class, shuffled."""
    centres = np.random.default_rng(7).normal(0, 3, (len(counts), WIDTH))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = centres[labels] + rng.normal(0, spread, (len(labels), WIDTH))
    return FeatureSet(rows.astype(np.float32), labels)


def feature_data(counts=COUNTS, *, whole=True):
    """Make a set; only a whole one has a stream and mirrored test images."""
    n_classes = len(counts)
    test = clusters([20] * n_classes, 2)
    noise = np.random.default_rng(3).normal(0, 0.3, test.rows.shape)
    return FeatureData(
        "clusters",
        tuple(f"cluster {code}" for code in range(n_classes)),
        clusters(counts, 1),
        test,
        (test.rows + noise).astype(np.float32) if whole else None,
        clusters([counts[0]] * n_classes, 4, spread=1.2) if whole else None,
        {"made": "for tests"},
    )


def write_npz(path, data, **others):
    """Write a set as people do who have never heard of protail."""
    arrays = {}
    for part, rows in data.parts.items():
        arrays |= {f"x_{part}": rows.rows, f"y_{part}": rows.labels.astype(np.int16)}
    if data.flipped is not None:
        arrays["x_test_mirror"] = data.flipped
    np.savez_compressed(path, **{**arrays, **others})
    return path


def same(data, other):
    """Say whether two sets hold the same numbers."""
    assert data.parts.keys() == other.parts.keys()
    for part in data.parts:
        np.testing.assert_array_equal(data.parts[part].rows, other.parts[part].rows)
        np.testing.assert_array_equal(data.parts[part].labels, other.parts[part].labels)
    np.testing.assert_array_equal(data.flipped, other.flipped)
    assert data.fingerprint() == other.fingerprint()


def real_features(backbone):
    """Find real features of CIFAR-100-LT, or skip the test."""
    return shared(f"data/features/cifar100-lt-100_{backbone}.npz")

"""A data set that a network learns in seconds: small coloured patterns, long-tailed."""

import numpy as np

from protail.data.images import DataSet, ImageSet, long_tailed_counts, save_subset
from protail.data.images.long_tail import subset_description

# A recipe for it: resnet32 learns it in seconds on a CPU, the same bits each time.
RECIPE = """
title = "Patterns in seconds"

[representation]
extends = "wd"
backbone = "resnet32"
epochs = 3
batch_size = 16
lr = 0.02
weight_decay = 5e-4
precision = "float32"

[classifier]
extends = "pc-la"
lr = 1.0
augment = ["crop", "flip"]
precision = "float32"
"""

SIZE = 16
N_CLASSES = 10


def patterns(counts, seed=0):
    """Make noisy images whose class is a colour and the direction of stripes."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    colours = np.random.default_rng(99).uniform(40, 215, (len(counts), 3))
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images = np.empty((len(labels), 3, SIZE, SIZE), np.uint8)
    for i, label in enumerate(labels):
        stripes = (rows if label % 2 else columns) + rng.integers(SIZE)
        wave = 40 * np.sin(stripes * (1 + label // 4) / 2)
        noise = rng.normal(0, 12, (3, SIZE, SIZE))
        images[i] = np.clip(colours[label][:, None, None] + wave + noise, 0, 255)
    return ImageSet(labels, tuple(f"pattern {code}" for code in range(len(counts))), images)


def tiny_data(n_max=40, imbalance=10, test_per_class=8, seed=0):
    """Make train and test images, with many of the first class and few of the last."""
    counts = long_tailed_counts(n_max, N_CLASSES, imbalance)
    return DataSet(
        "patterns",
        patterns(counts, seed),
        patterns([test_per_class] * N_CLASSES, seed + 1000),
        description=subset_description(
            imbalance=imbalance, kind="exp", selection="first", seed=0, n_max=n_max
        ),
    )


def write_tiny(folder, **options):
    """Write draw.zip and tiny.toml, the data set and the recipe, for commands to read."""
    save_subset(tiny_data(**options), folder / "draw.zip")
    (folder / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    return folder

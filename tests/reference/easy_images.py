"""Long-tailed images that are easy to tell apart: every class has a colour and a place."""

import numpy as np

from protail.data.images import DataSet, ImageSet

COUNTS = (60, 40, 30, 20, 14, 10, 8, 6, 4, 2)


def easy_images(counts=COUNTS, seed=0, noise=40, size=32):
    """Make images of noise with a bright square; the square's place and colour are the class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = rng.integers(0, noise, (len(labels), 3, size, size))
    side = size // 4
    for image, label in zip(pixels, labels, strict=True):
        top, left = divmod(int(label), 4)
        channel = int(label) % 3
        image[channel, top * side : (top + 1) * side, left * side : (left + 1) * side] += 180
    names = tuple(f"class {code}" for code in range(len(counts)))
    return ImageSet(labels, names, pixels.astype(np.uint8))


def easy_data(counts=COUNTS, seed=0, **options):
    """Make a data set of them, with four test images a class."""
    test = easy_images((4,) * len(counts), seed + 1, **options)
    return DataSet("easy", easy_images(counts, seed, **options), test, description={"seed": seed})

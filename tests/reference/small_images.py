"""A small long-tailed set of images that a network learns in a few steps."""

import numpy as np

from protail.data.images import DataSet, ImageSet
from protail.models.backbones import CifarResNet, backbone_names, register_backbone

TINY = "tiny-for-tests"


def tiny(in_channels):
    """Make a network of the same kind as the real ones that takes milliseconds a step."""
    return CifarResNet(
        [1, 1], [8, 16], learned_shortcuts=True, fan="fan_out", in_channels=in_channels
    )


# Collected for its examples too, this file may be imported under two names.
if TINY not in backbone_names():
    register_backbone(TINY)(tiny)


def small_images(counts=(60, 30, 15, 8), n_test=10, seed=0, size=32):
    """Make images whose class is a colour and a stripe, under noise."""
    train = _images(np.repeat(np.arange(len(counts)), counts), len(counts), seed, size)
    test = _images(np.repeat(np.arange(len(counts)), n_test), len(counts), seed + 1, size)
    return DataSet("small", train, test, None, {"made": "for tests", "seed": seed})


def six_images(folder=None):
    """Make six images of noise of three classes, resident or in files in a folder."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    labels, classes = [0, 0, 0, 1, 1, 2], ("ant", "bee", "cat")
    if folder is None:
        return ImageSet(labels, classes, pixels)
    from PIL import Image

    files = []
    for number, image in enumerate(pixels):
        files.append(str(folder / f"{number}.png"))
        Image.fromarray(image.transpose(1, 2, 0)).save(files[-1])
    return ImageSet(labels, classes, files=files)


def _images(labels, n_classes, seed, size):
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(7).integers(40, 216, (n_classes, 3, 1, 1))
    pixels = np.broadcast_to(colours[labels], (len(labels), 3, size, size)).copy()
    for pixel, label in zip(pixels, labels, strict=True):
        pixel[:, 4 * label : 4 * label + 4] = 255
    noisy = np.clip(pixels + rng.normal(0, 25, pixels.shape), 0, 255).astype(np.uint8)
    return ImageSet(labels, tuple(f"class {c}" for c in range(n_classes)), noisy)

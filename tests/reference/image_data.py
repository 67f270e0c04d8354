"""Small image data in the layouts of the real ones, for whoever needs some."""

import hashlib
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from protail.data.images import cifar


def write_cifar(root, name, per_class=20, test_per_class=2, seed=0):
    """Write files in CIFAR's layout; give a Source that knows their MD5."""
    real = cifar.SOURCES[name]
    n_classes = 10 if name == "cifar10-lt" else 100
    rng = np.random.default_rng(seed)
    folder = Path(root) / real.folder
    folder.mkdir(parents=True)

    def write(file, content):
        data = pickle.dumps(content, protocol=4)
        (folder / file).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def batches(files, n):
        # Labels are mixed over the files, as in the real ones.
        labels = rng.permutation(np.repeat(np.arange(n_classes), n))
        checksums = {}
        for file, part in zip(files, np.array_split(labels, len(files)), strict=True):
            pixels = rng.integers(0, 256, (len(part), 3072), dtype=np.uint8)
            checksums[file] = write(file, {"data": pixels, real.labels_key: part.tolist()})
        return checksums

    names = {real.names_key: [f"class {code}" for code in range(n_classes)]}
    return replace(
        real,
        train=batches(list(real.train), per_class),
        test=batches(list(real.test), test_per_class),
        meta={file: write(file, names) for file in real.meta},
    )


def write_picture(path, seed=0, size=(12, 9), mode="RGB"):
    """Write one image of noise; folders above it are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path)
    return path


def write_class_folders(root, counts, seed=0):
    """Write a folder of JPEG files for every class; ``counts`` maps names to sizes."""
    number = 1000 * seed
    for name, count in counts.items():
        (Path(root) / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            number += 1
            write_picture(Path(root) / name / f"{i}.jpg", seed=number)
    return Path(root)


def resident(n_classes=3, per_class=4, size=(8, 8), seed=0):
    """Make a resident set of noise, class by class."""
    from protail.data.images import ImageSet

    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_classes), per_class)
    pixels = rng.integers(0, 256, (len(labels), 3, *size), dtype=np.uint8)
    return ImageSet(labels, tuple(f"class {c}" for c in range(n_classes)), pixels)

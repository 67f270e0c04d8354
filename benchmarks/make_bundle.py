"""Make the features that come with the package from the weights that do.

    PROTAIL_DATA=FOLDER python benchmarks/make_bundle.py [OUTPUT]

CIFAR-100-LT at imbalance 100 goes through the bundled ResNet-32: training images as they are, the
augmented, class-balanced stream that stage 2 of `pc` sees in its one epoch, in order, test images
and their mirror images. Minutes on a CPU.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch

from protail.data.images import (
    DataSet,
    FeatureData,
    FeatureSet,
    load_dataset,
    require_images,
    save_features,
)
from protail.data.images.features import BUNDLED_FEATURES, bundled_features
from protail.models.backbones import bundled_weights, make_backbone
from protail.recipes import load_recipe
from protail.training.features import FrozenFeatures, Stream

RECIPE, SEED = "wd-resnet32/pc", 0
MOST_BYTES = 8_000_000


def main(output: Path) -> None:
    data = require_images(load_dataset("cifar100-lt", imbalance=100), "make features")
    bundle = features_of(data)
    save_features(output, bundle, dtype="uint8", overwrite=True)
    n_bytes = output.stat().st_size
    print(f"{bundle}\n{output}: {n_bytes:,} bytes")
    if n_bytes > MOST_BYTES:
        sys.exit(f"expected {MOST_BYTES:,} bytes at most.")


def features_of(data: DataSet) -> FeatureData:
    recipe = load_recipe(RECIPE)
    assert recipe.representation is not None
    assert recipe.classifier is not None
    settings = recipe.classifier
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = make_backbone(recipe.representation.backbone, weights=bundled_weights()).to(device)
    frozen = FrozenFeatures(backbone, data, device)
    clean, labels = frozen.clean(settings.precision)
    print(f"{len(clean):,} training images")
    drawn, drawn_labels = frozen.stream(Stream.of(settings), SEED, epoch=0)
    print(f"{len(drawn):,} images of the stream")
    test, flipped = frozen.test(), frozen.test(flipped=True)
    return FeatureData(
        BUNDLED_FEATURES,
        data.train.classes,
        FeatureSet(clean.cpu().numpy(), labels.cpu().numpy()),
        FeatureSet(test.cpu().numpy(), data.test.labels),
        flipped=flipped.cpu().numpy(),
        stream=FeatureSet(drawn.cpu().numpy(), drawn_labels.cpu().numpy()),
        description={
            "images": {"name": data.name, **data.description},
            "recipe": RECIPE,
            "seed": SEED,
            "weights": hashlib.sha256(bundled_weights().read_bytes()).hexdigest(),
            "made_by": "benchmarks/make_bundle.py",
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else bundled_features())

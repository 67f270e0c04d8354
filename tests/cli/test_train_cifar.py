"""The full method on real photographs, few enough for a CPU."""

import numpy as np
import pytest

from protail.data.images import DataSet, save_subset
from reference.real_data import real_cifar

pytestmark = pytest.mark.slow


def some_of(data, n_classes, fraction):
    """Keep the first classes, and a share of the images of each."""
    parts = {}
    for part in ("train", "test"):
        images = getattr(data, part)
        index = np.concatenate(
            [
                np.flatnonzero(images.labels == code)[
                    : int(fraction * np.sum(images.labels == code))
                ]
                for code in range(n_classes)
            ]
        )
        parts[part] = type(images)(
            images.labels[index], images.classes[:n_classes], images.pixels[index]
        )
    return DataSet("cifar10-lt", parts["train"], parts["test"])


def test_the_full_method_learns_real_photographs(protail, tmp_path):
    data = some_of(real_cifar("cifar10-lt"), n_classes=3, fraction=0.1)
    save_subset(data, tmp_path / "some.zip")
    changes = {
        "representation.backbone": "resnet32",
        "representation.epochs": 3,
        "representation.batch_size": 16,
        "representation.lr": 0.05,
        "representation.weight_decay": 5e-4,
        "representation.precision": "float32",
        "classifier.precision": "float32",
        "classifier.augment": "['crop', 'flip']",
    }
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    ended = protail("train", "pc-cdt-la", "--dataset", "some.zip", *words, "--json")
    assert ended.code == 0, ended.err
    [run] = ended.json["runs"]
    evaluated = run["evaluation"]["classifier"]["plain"]
    assert len(data.test) == 300
    assert evaluated["balanced_accuracy"] > 0.45  # chance is 1/3, its deviation here 0.03

"""Photos that are too few to train a network on from scratch."""

import numpy as np
import pytest

from protail.cli.train import fine_tuning
from protail.data.images import DataSet, ImageSet
from protail.experiments import check_photos_suffice, expectation, start_words
from protail.recipes import load_recipe
from reference.image_data import resident, write_class_folders
from reference.small_images import TINY

AUGMENT = ["--set", 'representation.augment=["resized-crop", "flip"]']


def photos(n_classes, of_each):
    labels = np.repeat(np.arange(n_classes), of_each)
    names = tuple(f"bird {code}" for code in range(n_classes))
    files = tuple(f"{number}.jpg" for number in range(len(labels)))
    images = ImageSet(labels, names, files=files)
    return DataSet("birds", images, images)


def phases(recipe="ce", **changes):
    return load_recipe(recipe).with_overrides(changes).phases


@pytest.mark.parametrize(("n_classes", "of_each"), [(2, 61), (1, 999), (60, 19)])
def test_few_photos_are_refused(n_classes, of_each):
    with pytest.raises(ValueError, match=r"are too few to train resnet34-cifar from scratch"):
        check_photos_suffice(phases(), photos(n_classes, of_each))


@pytest.mark.parametrize(("n_classes", "of_each"), [(2, 500), (1, 1000), (60, 20)])
def test_more_are_not_and_it_says_what_to_expect(n_classes, of_each):
    data = photos(n_classes, of_each)
    check_photos_suffice(phases(), data)
    assert "expect little" in expectation(phases(), data)


def test_of_many_photos_it_says_nothing():
    assert expectation(phases(), photos(100, 100)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"representation.epochs": 0},
        {"representation.weights": "known"},
        {"representation.backbone": "resnet50", "representation.pretrained": True},
    ],
)
def test_where_nothing_is_learned_from_scratch_few_photos_do(changes):
    data = photos(2, 61)
    check_photos_suffice(phases(**changes), data)
    assert expectation(phases(**changes), data) is None


def test_small_images_in_memory_do():
    data = DataSet("digits", resident(), resident())
    check_photos_suffice(phases(), data)
    assert expectation(phases(), data) is None


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [("ce", "representation"), ("dro-lt", "pretraining")],
)
def test_what_it_advises_is_a_recipe_that_starts_from_weights(recipe, stage):
    with pytest.raises(ValueError, match="too few") as refused:
        check_photos_suffice(phases(recipe), photos(2, 61))
    assert f"photos: --pretrained, or --set {stage}.weights=FILE." in str(refused.value)
    start, *others = start_words(phases(recipe, **fine_tuning(load_recipe(recipe))))
    assert start == " from pretrained weights"
    assert not any(others)


def test_the_command_refuses_and_is_told_to_train_all_the_same(protail, tmp_path):
    write_class_folders(tmp_path / "photos", {"ant": 6, "bee": 4})
    given = ["train", "ce", "--dataset", "photos", "--device", "cpu", "-o", "run", *AUGMENT]
    given += ["--set", f"representation.backbone={TINY}", "--set", "representation.epochs=1"]
    given += ["--set", "representation.precision=float32"]
    ended = protail(*given)
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert "imagefolder: 8 photos of 2 classes are too few to train" in ended.last_line
    assert not (tmp_path / "run").exists()
    ended = protail(*given, "--from-scratch")
    assert ended.code == 0, ended.err
    assert f"  representation: {TINY} from scratch, linear head" in ended.err
    assert "Photos become 224 x 224 pixels, 0." in ended.err
    assert "From scratch, expect little of few photos" in ended.err
    # A run that was begun so goes on without saying it again.
    (tmp_path / "run/evaluation.json").unlink()
    (tmp_path / "run/weights.safetensors").unlink()
    assert protail(*given, "--resume").code == 0

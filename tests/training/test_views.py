"""Two views of an image: another augment, other random numbers, the same image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from protail.data import InstanceSampler
from protail.data.sets import ImageSet
from protail.training.loader import make_feed
from protail.training.representation import RepresentationTraining
from reference.small_images import small_images
from reference.small_recipes import small_recipe

CPU = torch.device("cpu")


@pytest.fixture(params=["resident", "files"])
def images(request, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    labels, classes = [0, 0, 0, 1, 1, 2], ("ant", "bee", "cat")
    if request.param == "resident":
        return ImageSet(labels, classes, pixels)
    files = []
    for number, image in enumerate(pixels):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image.transpose(1, 2, 0)).save(files[-1])
    return ImageSet(labels, classes, files=[str(file) for file in files])


def batches(images, augment, second, seed=0):
    feed = make_feed(images, augment, seed=seed, device=CPU, second=second, workers=0)
    sampler = InstanceSampler(images.labels, seed=0)
    return [feed(batch) for batch in feed.batches(sampler, 4, epoch=0)]


def augments(images):
    return ["crop", "flip"] if images.is_resident else ["resized-crop", "flip"]


def test_without_a_second_view_there_is_none(images):
    assert all(batch.second is None for batch in batches(images, augments(images), ()))


def test_the_first_view_is_what_it_is_without_a_second(images):
    names = augments(images)
    alone, both = (batches(images, names, second) for second in ((), names))
    for one, two in zip(alone, both, strict=True):
        torch.testing.assert_close(one.images, two.images, rtol=0, atol=0)
        torch.testing.assert_close(one.labels, two.labels)


def test_the_same_augment_draws_other_numbers_in_the_second_view(images):
    names = augments(images)
    for batch in batches(images, names, names):
        assert batch.second.shape == batch.images.shape
        assert not torch.equal(batch.second, batch.images)


def test_views_hang_on_the_seed_alone(images):
    names = augments(images)
    once, again, other = (batches(images, names, names, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.second, b.second) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a.second, b.second) for a, b in zip(once, other, strict=True))


def test_batches_that_a_method_cannot_take_are_refused_before_training():
    data = small_images(counts=(24, 12, 8, 5), n_test=4)
    for changes, words in (
        ({"method_options": {"queue": 8}, "batch_size": 16}, "takes 8 images at most"),
        ({"batch_size": 48}, "has one image, and method 'paco' needs two"),
    ):
        settings = replace(PACO, **changes)
        with pytest.raises(ValueError, match=words):
            RepresentationTraining(settings, data, seed=0, device=CPU)


PACO = replace(small_recipe("paco").representation, batch_size=16)

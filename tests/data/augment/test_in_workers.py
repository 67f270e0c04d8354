"""Images in loader workers: the same whoever opens them, and when."""

import pickle
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from protail.data.augment import LOADER_AUGMENTS, InputSpec, make_loader_transform
from reference.augment import noise_images

v2 = pytest.importorskip("torchvision.transforms.v2")
Image = pytest.importorskip("PIL.Image")


def photograph(seed=0, size=(60, 48)):
    return v2.functional.to_pil_image(noise_images(1, size[::-1], seed)[0])


class Photographs(Dataset):
    def __init__(self, transform, order):
        self.transform = transform
        self.order = order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, place):
        index = self.order[place]
        return index, self.transform(photograph(index), index, epoch=2)


NAMES = ["resized-crop", "flip", "jitter", "randaugment"]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_order_do_not_matter(workers):
    transform = make_loader_transform(NAMES, InputSpec(size=24), seed=5)
    alone = {index: transform(photograph(index), index, epoch=2) for index in range(8)}
    order = [7, 3, 3, 0, 6, 1, 5, 2, 4]
    for indices, images in DataLoader(Photographs(transform, order), 2, num_workers=workers):
        for index, image in zip(indices.tolist(), images, strict=True):
            assert torch.equal(image, alone[index])


@pytest.mark.parametrize("name", LOADER_AUGMENTS)
def test_every_step_draws_again_for_every_key(name):
    transform = make_loader_transform([name], InputSpec(size=40))
    image = photograph()
    results = [transform(image, index, epoch) for index in range(4) for epoch in range(4)]
    results += [make_loader_transform([name], InputSpec(size=40), seed=1)(image, 0, 0)]
    assert len({result.numpy().tobytes() for result in results}) > (1 if name == "flip" else 8)
    assert all(result.shape == (3, 40, 40) and result.dtype == torch.float32 for result in results)


def test_the_global_generator_is_left_alone():
    transform = make_loader_transform(NAMES, InputSpec(size=24))
    before = torch.get_rng_state()
    transform(photograph(), 0, 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("size", [(60, 48), (30, 200)])
def test_testing_equals_torchvision(size):
    image = photograph(size=size)
    resized = v2.functional.center_crop(v2.functional.resize(image, [32]), [28])
    expected = v2.functional.to_dtype(v2.functional.to_image(resized), torch.float32, scale=True)
    mean, std = (0.466, 0.471, 0.380), (0.195, 0.194, 0.192)
    expected = v2.functional.normalize(expected, mean, std)
    transform = make_loader_transform(["resized-crop"], InputSpec(size=28, mean=mean, std=std))
    assert torch.equal(transform.clean(image), expected)
    assert torch.equal(
        make_loader_transform([], InputSpec(size=28, mean=mean, std=std))(image, 0, 0), expected
    )


def test_256_and_224():
    transform = make_loader_transform([])
    assert transform.fixed.transforms[0].size == [256]
    assert transform.fixed.transforms[1].size == (224, 224)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_any_mode_of_image(mode):
    image = photograph().convert(mode)
    transform = make_loader_transform(["resized-crop"], InputSpec(size=16))
    assert transform(image, 0, 0).shape == transform.clean(image).shape == (3, 16, 16)


def test_travels_to_spawned_workers():
    transform = make_loader_transform(NAMES, InputSpec(size=24))
    copy = pickle.loads(pickle.dumps(transform))
    assert torch.equal(copy(photograph(), 3, 1), transform(photograph(), 3, 1))


def test_bad_names_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'resized-crop'"):
        make_loader_transform(["resize-crop"])
    with pytest.raises(TypeError, match="one string"):
        make_loader_transform("flip")


def test_missing_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(ImportError, match=r"\[vision\]"):
        make_loader_transform([])


def test_numpy_seeds_do_not_matter():
    transform = make_loader_transform(NAMES, InputSpec(size=24))
    np.random.seed(1)
    one = transform(photograph(), 0, 0)
    np.random.seed(2)
    assert torch.equal(one, transform(photograph(), 0, 0))


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_384", "resnetv2_50", "inception_v3", "vit_small_patch16_224"]
)
@pytest.mark.parametrize("shape", [(500, 400), (230, 610)])
def test_testing_equals_timms_own(name, shape):
    timm = pytest.importorskip("timm")
    from timm.data import create_transform, resolve_data_config

    known = timm.get_pretrained_cfg(name).to_dict()
    theirs = create_transform(**resolve_data_config({}, pretrained_cfg=known))
    keys = {"crop": "crop_pct", "mean": "mean", "std": "std", "interpolation": "interpolation"}
    inputs = InputSpec(known["input_size"][1], **{own: known[key] for own, key in keys.items()})
    image = photograph(size=shape)
    assert torch.allclose(make_loader_transform([], inputs).clean(image), theirs(image), atol=1e-6)


def test_squashing_keeps_all_of_the_image():
    transform = make_loader_transform([], InputSpec(size=24, crop=1.0, squash=True))
    left_and_right = Image.new("RGB", (80, 20))
    left_and_right.paste((255, 255, 255), (0, 0, 40, 20))
    result = transform.clean(left_and_right)[0]
    assert result[:, :10].min() > 2
    assert result[:, 14:].max() < -2

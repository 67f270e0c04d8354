"""The parts of the contrastive view against torchvision's, on float images."""

import pytest
import torch

from protail.data.augment import make_augment
from protail.data.augment._steps import (
    SimCLR,
    blur_images,
    crop_box,
    orders_around_hue,
    resize_boxes,
    turn_hue,
)
from reference.augment import all_images

TF = pytest.importorskip("torchvision.transforms.v2.functional")
WHEEL = torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1)


@pytest.mark.parametrize("size", [(32, 32), (20, 31)])
def test_resized_crop(size):
    images = all_images(6, size).float()
    torch.manual_seed(0)
    box = crop_box(torch.rand(12, 20), torch.rand(12, 2), size)
    flipped = torch.arange(12) % 2 == 0
    got = resize_boxes(images, box, flipped)
    for n in range(12):
        top, left, height, width = (int(side[n]) for side in box)
        want = TF.resized_crop(images[n], top, left, height, width, list(size))
        want = TF.horizontal_flip(want) if flipped[n] else want
        torch.testing.assert_close(got[n], want, atol=0.02, rtol=0)


def test_boxes_have_the_areas_and_ratios_asked_for():
    torch.manual_seed(0)
    _, _, height, width = crop_box(torch.rand(5000, 20), torch.rand(5000, 2), (100, 100))
    area, ratio = height * width / 100**2, width / height
    assert 0.19 < area.min() < 0.22
    assert area.max() > 0.95
    assert ratio.min() > 0.72
    assert ratio.max() < 1.38
    assert abs(ratio.log().mean()) < 0.02


def test_no_fitting_try_takes_the_whole_image():
    tries = torch.ones(1, 20)
    tries[:, 10:] = 0.0
    box = crop_box(tries, torch.full((1, 2), 0.99), (32, 32))
    assert [side.item() for side in box] == [0, 0, 32, 32]


def test_hue():
    images = all_images(6).float()
    turns = torch.linspace(-0.1, 0.1, 12)
    got = turn_hue(images, turns.view(-1, 1, 1, 1), WHEEL)
    for image, turn, result in zip(images, turns.tolist(), got, strict=True):
        want = TF.adjust_hue(image / 255, turn) * 255
        torch.testing.assert_close(result, want, atol=0.01, rtol=0)


def test_blur():
    images = all_images(6).float()
    sigma = torch.linspace(0.1, 2.0, 12)
    got = blur_images(images, sigma)
    for image, width, result in zip(images, sigma.tolist(), got, strict=True):
        torch.testing.assert_close(
            result, TF.gaussian_blur(image, [9, 9], [width, width]), atol=0.01, rtol=0
        )


def test_jitter_in_every_order():
    images = all_images(12).float()
    torch.manual_seed(0)
    fractions = (torch.rand(24, 4) * 2 - 1) * torch.tensor([0.4, 0.4, 0.4, 0.1])
    orders = orders_around_hue()
    got = SimCLR((32, 32)).jittered(images, fractions, orders)
    assert len({tuple(order) for order in orders.tolist()}) == 24
    for image, fraction, order, result in zip(images, fractions, orders.tolist(), got, strict=True):
        want = image / 255
        for kind in [k for k in order[:3] if k < 3] + [3] + [k for k in order[3:] if k < 3]:
            value = fraction[kind].item()
            if kind == 0:
                want = TF.adjust_brightness(want, 1 - value)
            elif kind == 1:
                want = TF.adjust_contrast(want, 1 - value)
            elif kind == 2:
                want = TF.adjust_saturation(want, 1 - value)
            else:
                want = TF.adjust_hue(want, value)
        torch.testing.assert_close(result, want * 255, atol=0.05, rtol=0)


def test_chances():
    augment = make_augment(["simclr"])
    images = all_images(1)[:1].expand(1000, -1, -1, -1)
    result = augment(images, torch.arange(1000), 0)
    levels = (result - augment.shift) / augment.scale
    grey = (levels - levels.mean(1, keepdim=True)).abs().amax((1, 2, 3)) < 0.01
    assert 0.16 < grey.float().mean() < 0.24
    assert levels.min() > -0.01
    assert levels.max() < 255.01

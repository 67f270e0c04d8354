"""What a backbone costs, by hand: a convolution takes 2 x kernel x inputs x outputs x pixels."""

import pytest
import torch
from torch import nn

from protail.backbones import make_backbone
from protail.backbones.cost import gflops, gflops_with


def convolution(n_in, n_out, side, kernel=9):
    return 2 * kernel * n_in * n_out * side * side


def stage(n_in, width, side):
    return convolution(n_in, width, side) + 9 * convolution(width, width, side)


STEM = convolution(3, 16, 32)
RESNET32 = STEM + stage(16, 16, 32) + stage(16, 32, 16) + stage(32, 64, 8)
SHARED = STEM + stage(16, 16, 32)
EXPERT = stage(16, 24, 16) + stage(24, 48, 8)


def test_resnet32():
    assert gflops(make_backbone("resnet32")) == RESNET32 / 1e9


@pytest.mark.parametrize("n_experts", [2, 3, 4])
def test_experts(n_experts):
    backbone = make_backbone(f"resnet32-{n_experts}-experts")
    assert gflops(backbone) == (SHARED + n_experts * EXPERT) / 1e9
    assert gflops_with(backbone, n_experts) == gflops(backbone)
    assert gflops_with(backbone, 1) == (SHARED + EXPERT) / 1e9
    assert gflops_with(backbone, 1.25) == pytest.approx((SHARED + 1.25 * EXPERT) / 1e9, rel=1e-12)


def test_the_figures_that_stand_beside_accuracies():
    names = ["resnet32", *(f"resnet32-{n}-experts" for n in (2, 3, 4))]
    found = [round(gflops(make_backbone(name)), 3) for name in names]
    assert found == [0.138, 0.150, 0.201, 0.252]


def test_larger_images_cost_more():
    backbone = make_backbone("resnet32-3-experts")
    assert gflops(backbone, (64, 32)) == pytest.approx(2 * gflops(backbone), rel=1e-12)
    assert gflops_with(backbone, 2, (64, 32)) == pytest.approx(2 * gflops_with(backbone, 2))


def test_other_channels():
    backbone = make_backbone("resnet32", in_channels=1)
    assert gflops(backbone, in_channels=1) == (RESNET32 - 2 * convolution(1, 16, 32)) / 1e9


def test_matrix_products_count():
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 7))
    assert gflops(module, (4, 4)) == 2 * 48 * 7 / 1e9


def test_the_backbone_is_left_as_it_was():
    backbone = make_backbone("resnet32-2-experts").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    gflops(backbone)
    gflops_with(backbone, 1.5)
    assert backbone.training
    assert all(module.training for module in backbone.modules())
    for key, value in backbone.state_dict().items():
        assert value.device == torch.device("cpu")
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("used", [0.5, 3.5, float("nan")])
def test_experts_that_are_not_there(used):
    with pytest.raises(ValueError, match=r"n_experts_used=.*expected from 1 to 3"):
        gflops_with(make_backbone("resnet32-3-experts"), used)


def test_a_backbone_without_experts():
    with pytest.raises(TypeError, match="CifarResNet, which has no experts"):
        gflops_with(make_backbone("resnet32"), 1)

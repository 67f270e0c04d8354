"""What a backbone costs, by hand: a convolution takes 2 x kernel x inputs x outputs x pixels."""

import pytest
import torch
from torch import nn

from protail.models.backbones import gflops, gflops_with, make_backbone


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
    three = make_backbone("resnet32-3-experts")
    figures = gflops(make_backbone("resnet32")), gflops(three), gflops_with(three, 1)
    assert [round(figure, 4) for figure in figures] == [0.1377, 0.2007, 0.0989]
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
    with pytest.raises(ValueError, match=r"n_experts_used=.*expected a number >= 1 and <= 3"):
        gflops_with(make_backbone("resnet32-3-experts"), used)


@pytest.mark.parametrize(
    "attributes",
    [{}, {"experts": nn.ModuleList()}, {"shared": nn.Identity(), "experts": [1]}],
)
def test_it_says_what_a_backbone_lacks(attributes):
    backbone = make_backbone("resnet32")
    for name, value in attributes.items():
        setattr(backbone, name, value)
    with pytest.raises(TypeError, match=r"a CifarResNet; expected .* shared, .* experts, an nn.Mo"):
        gflops_with(backbone, 1)


class OwnExperts(nn.Module):
    """Experts of somebody's own: no ExpertResNet."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Conv2d(3, 4, 1)
        self.experts = nn.ModuleList(nn.Linear(4, 5) for _ in range(3))

    def forward(self, images):
        pooled = self.shared(images).mean((2, 3))
        return torch.cat([expert(pooled) for expert in self.experts], 1)


def test_experts_of_somebodys_own():
    shared, expert = convolution(3, 4, 8, kernel=1), 2 * 4 * 5
    assert gflops_with(OwnExperts(), 1.5, (8, 8)) == (shared + 1.5 * expert) / 1e9
    assert gflops_with(OwnExperts(), 3, (8, 8)) == gflops(OwnExperts(), (8, 8))


class OwnWay(nn.Module):
    """What only runs on a real device: a tensor that is no buffer, a value that is read."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.mean = torch.full((3,), 0.5)
        self.devices = set()

    def forward(self, images):
        self.devices.add(images.device.type)
        centred = images.mean((2, 3)) - self.mean.to(images.dtype)
        if centred.abs().max().item() > 1e6:
            raise AssertionError
        return self.norm(self.first(centred))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backbones_that_cannot_be_without_values(dtype):
    backbone = OwnWay().to(dtype).train()
    backbone.first.eval()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    assert gflops(backbone, (4, 4)) == 2 * 3 * 6 / 1e9
    assert backbone.devices == {"cpu"}
    assert [backbone.training, backbone.first.training, backbone.norm.training] == [1, 0, 1]
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_no_gradient_and_no_random_number_is_left_behind():
    class Noisy(nn.Linear):
        def forward(self, images):
            self.seen = super().forward(images.flatten(1))
            return self.seen + torch.randn(1)

    backbone, state = Noisy(12, 2), torch.random.get_rng_state()
    gflops(backbone, (2, 2))
    assert not backbone.seen.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_backbone_that_fails_is_put_back():
    backbone = make_backbone("resnet32").train()
    with pytest.raises(RuntimeError):
        gflops(backbone, in_channels=1)
    assert all(module.training for module in backbone.modules())

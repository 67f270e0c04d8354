"""Residual networks for small images: ResNet-32, alone or with experts, and ResNet-34.

Checkpoints carry the names of the parameters, so these are the ones that most published
checkpoints have::

    conv1.weight, bn1.*                       the stem
    layer{s}.{b}.conv1.weight, ….bn1.*        block b (from 0) of stage s (from 1)
    layer{s}.{b}.conv2.weight, ….bn2.*
    layer{s}.0.downsample.0.weight, ….1.*     a shortcut that learns: convolution, batch norm
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protail.models.backbones.registry import register_backbone
from protail.options import Count, checked


class CifarResNet(nn.Sequential):
    """Turn small images into feature vectors with basic residual blocks.

    The first convolution sees every pixel (3x3, stride 1, no pooling), each stage but the first
    halves height and width, and the mean over what is left is the feature vector; so any image
    size does.

    Parameters
    ----------
    blocks : sequence of int
        Blocks of each stage.
    widths : sequence of int
        Channels of each stage; the last is the width of the feature vector.
    learned_shortcuts : bool
        How a block that changes the shape passes its input on: through a 1x1 convolution and a
        batch norm, or by taking every second pixel and adding channels of zeros, half of them
        before and half of them after.
    fan : {"fan_in", "fan_out"}
        Which side of a convolution its He-normal start keeps at unit variance.
    in_channels : int, default=3
        Channels of the images.

    Attributes
    ----------
    n_features : int
        Width of the feature vector.

    References
    ----------
    Deep Residual Learning for Image Recognition. CVPR 2016.

    Examples
    --------
    >>> import torch
    >>> from protail.models.backbones import CifarResNet
    >>> tiny = CifarResNet([1, 1], [4, 8], learned_shortcuts=False, fan="fan_in")
    >>> tiny(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        learned_shortcuts: bool,
        fan: Literal["fan_in", "fan_out"],
        in_channels: int = 3,
    ) -> None:
        parts = _stem(in_channels, widths[0])
        n_in = widths[0]
        for number, (n_blocks, width) in enumerate(zip(blocks, widths, strict=True), start=1):
            parts[f"layer{number}"] = _stage(
                n_in,
                width,
                n_blocks,
                stride=1 if number == 1 else 2,
                learned_shortcut=learned_shortcuts,
            )
            n_in = width
        super().__init__(parts | _pooling())
        self.n_features = n_in
        _start_he_normal(self, fan)


class ExpertResNet(nn.Module):
    """Turn small images into one feature vector an expert, side by side.

    The stem and the first stage are shared. Each expert goes on with a second and a third stage of
    its own, three quarters as wide as those of ResNet-32.

    Parameters
    ----------
    n_experts : int
        How many experts.
    in_channels : int, default=3
        Channels of the images.
    n_blocks : int, default=5
        Blocks of each stage.
    widths : (int, int, int)
        Channels of the shared stage and of the two that each expert has.

    Attributes
    ----------
    shared : nn.Sequential
        Images to what every expert gets.
    experts : nn.ModuleList
        What each expert makes of it.
    n_features : int
        Width of the feature vectors of all experts together.
    n_experts : int
        How many experts.

    References
    ----------
    Long-tailed Recognition by Routing Diverse Distribution-Aware Experts. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.models.backbones import ExpertResNet
    >>> tiny = ExpertResNet(2, n_blocks=1, widths=(4, 6, 8))
    >>> tiny(torch.zeros(5, 3, 32, 32)).shape, tiny.n_features
    (torch.Size([5, 16]), 16)
    """

    @checked
    def __init__(
        self,
        n_experts: Count,
        in_channels: int = 3,
        *,
        n_blocks: int = 5,
        widths: tuple[int, int, int] = (16, 24, 48),
    ) -> None:
        super().__init__()
        first, *_, last = widths
        shared = _stem(in_channels, first)
        shared["layer1"] = _stage(first, first, n_blocks, stride=1, learned_shortcut=False)
        self.shared = nn.Sequential(shared)
        self.experts = nn.ModuleList(_expert(widths, n_blocks) for _ in range(n_experts))
        self.n_experts = n_experts
        self.n_features = n_experts * last
        _start_he_normal(self, "fan_in")

    def forward(self, images: Tensor) -> Tensor:
        """Give the feature vectors.

        Parameters
        ----------
        images : Tensor, shape (batch, in_channels, height, width)
            Of any size.

        Returns
        -------
        Tensor, shape (batch, n_features)
            Those of the first expert, then those of the second, and so on.
        """
        shared = self.shared(images)
        return torch.cat([expert(shared) for expert in self.experts], 1)


def _stem(in_channels: int, width: int) -> OrderedDict[str, nn.Module]:
    """Make what comes before the first stage, by the names that checkpoints have."""
    return OrderedDict(
        conv1=_convolution(in_channels, width),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(inplace=True),
    )


def _stage(
    n_in: int, width: int, n_blocks: int, *, stride: int, learned_shortcut: bool
) -> nn.Sequential:
    """Make blocks one after the other, the first of which may change the shape."""
    first = _Block(n_in, width, stride, learned_shortcut=learned_shortcut)
    others = (
        _Block(width, width, 1, learned_shortcut=learned_shortcut) for _ in range(n_blocks - 1)
    )
    return nn.Sequential(first, *others)


def _pooling() -> OrderedDict[str, nn.Module]:
    """Make what comes after the last stage: the mean over height and width."""
    return OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())


def _start_he_normal(network: nn.Module, fan: Literal["fan_in", "fan_out"]) -> None:
    """Draw the weights of every convolution again, He-normal."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")


class _Block(nn.Module):
    """Add to the input, or a shortcut of it, what two 3x3 convolutions make of it."""

    def __init__(self, n_in: int, n_out: int, stride: int, *, learned_shortcut: bool) -> None:
        super().__init__()
        self.conv1 = _convolution(n_in, n_out, stride=stride)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = _convolution(n_out, n_out)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module
        if stride == 1 and n_in == n_out:
            self.downsample = nn.Identity()
        elif learned_shortcut:
            projection = _convolution(n_in, n_out, size=1, stride=stride)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(n_out))
        else:
            self.downsample = _ZeroPaddedSubsample(n_out - n_in, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return F.relu(out, inplace=True)


class _ZeroPaddedSubsample(nn.Module):
    """Take one pixel of ``stride`` each way and add channels of zeros on both sides."""

    def __init__(self, n_added: int, stride: int) -> None:
        super().__init__()
        self.before, self.after = n_added // 2, n_added - n_added // 2
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        sampled = x[:, :, :: self.stride, :: self.stride]
        return F.pad(sampled, (0, 0, 0, 0, self.before, self.after))


def _convolution(n_in: int, n_out: int, *, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride=stride, padding=size // 2, bias=False)


@register_backbone("resnet32")
def resnet32(in_channels: int = 3) -> CifarResNet:
    """Make the ResNet-32 of the CIFAR experiments: 0.46 M parameters, 64 features.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of the images.

    Returns
    -------
    CifarResNet
        Three stages of five blocks with shortcuts that learn nothing.

    Examples
    --------
    >>> from protail.models.backbones import resnet32
    >>> sum(parameter.numel() for parameter in resnet32().parameters())
    463504
    """
    return CifarResNet(
        [5, 5, 5], [16, 32, 64], learned_shortcuts=False, fan="fan_in", in_channels=in_channels
    )


@register_backbone("resnet34-cifar")
def resnet34_cifar(in_channels: int = 3) -> CifarResNet:
    """Make the standard ResNet-34 with a stem for small images: 21.3 M parameters, 512 features.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of the images.

    Returns
    -------
    CifarResNet
        Four stages of 3, 4, 6 and 3 blocks with shortcuts that learn.

    Examples
    --------
    >>> from protail.models.backbones import resnet34_cifar
    >>> sum(parameter.numel() for parameter in resnet34_cifar().parameters())
    21276992
    """
    return CifarResNet(
        [3, 4, 6, 3],
        [64, 128, 256, 512],
        learned_shortcuts=True,
        fan="fan_out",
        in_channels=in_channels,
    )


def _expert(widths: tuple[int, int, int], n_blocks: int) -> nn.Sequential:
    stages = OrderedDict[str, nn.Module](
        (f"layer{number}", _stage(n_in, n_out, n_blocks, stride=2, learned_shortcut=False))
        for number, (n_in, n_out) in enumerate(pairwise(widths), start=2)
    )
    return nn.Sequential(stages | _pooling())


@register_backbone("resnet32-2-experts", experts=2)
def resnet32_2_experts(in_channels: int = 3) -> ExpertResNet:
    """Make ResNet-32 with two experts: 0.52 M parameters, 96 features."""
    return ExpertResNet(2, in_channels)


@register_backbone("resnet32-3-experts", experts=3)
def resnet32_3_experts(in_channels: int = 3) -> ExpertResNet:
    """Make ResNet-32 with three experts: 0.77 M parameters, 144 features."""
    return ExpertResNet(3, in_channels)


@register_backbone("resnet32-4-experts", experts=4)
def resnet32_4_experts(in_channels: int = 3) -> ExpertResNet:
    """Make ResNet-32 with four experts: 1.02 M parameters, 192 features."""
    return ExpertResNet(4, in_channels)

"""ResNet-32 with experts: early layers that all share, and late ones that each has for itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from protail.backbones.registry import register_backbone
from protail.backbones.resnet_cifar import pooling, stage, start_he_normal, stem


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
    >>> from protail.backbones.experts import ExpertResNet
    >>> tiny = ExpertResNet(2, n_blocks=1, widths=(4, 6, 8))
    >>> tiny(torch.zeros(5, 3, 32, 32)).shape, tiny.n_features
    (torch.Size([5, 16]), 16)
    """

    def __init__(
        self,
        n_experts: int,
        in_channels: int = 3,
        *,
        n_blocks: int = 5,
        widths: tuple[int, int, int] = (16, 24, 48),
    ) -> None:
        super().__init__()
        if n_experts < 1:
            raise ValueError(f"n_experts={n_experts!r}; expected at least 1.")
        first, *_, last = widths
        shared = stem(in_channels, first)
        shared["layer1"] = stage(first, first, n_blocks, stride=1, learned_shortcut=False)
        self.shared = nn.Sequential(shared)
        self.experts = nn.ModuleList(_expert(widths, n_blocks) for _ in range(n_experts))
        self.n_experts = n_experts
        self.n_features = n_experts * last
        start_he_normal(self, "fan_in")

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


def _expert(widths: tuple[int, int, int], n_blocks: int) -> nn.Sequential:
    stages = OrderedDict[str, nn.Module](
        (f"layer{number}", stage(n_in, n_out, n_blocks, stride=2, learned_shortcut=False))
        for number, (n_in, n_out) in enumerate(pairwise(widths), start=2)
    )
    return nn.Sequential(stages | pooling())


def _register(n_experts: int, about: str) -> Callable[[int], ExpertResNet]:
    def make(in_channels: int = 3) -> ExpertResNet:
        return ExpertResNet(n_experts, in_channels)

    # Each is known by these, as if it had been written out.
    make.__name__ = make.__qualname__ = f"resnet32_{n_experts}_experts"
    make.__doc__ = f"Make ResNet-32 with {about}."
    return register_backbone(f"resnet32-{n_experts}-experts")(make)


resnet32_2_experts = _register(2, "two experts: 0.52 M parameters, 96 features")
resnet32_3_experts = _register(3, "three experts: 0.77 M parameters, 144 features")
resnet32_4_experts = _register(4, "four experts: 1.02 M parameters, 192 features")

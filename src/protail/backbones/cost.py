"""What a backbone costs: the arithmetic of one image."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from protail.backbones.experts import ExpertResNet


def gflops(backbone: nn.Module, size: tuple[int, int] = (32, 32), *, in_channels: int = 3) -> float:
    """Count the operations that the features of one image take, in thousands of millions.

    Those of convolutions and matrix products count, a multiply-add as two; what is added to them
    by batch norm, activations and pooling does not. Nothing is computed, and the backbone is left
    as it was.

    Parameters
    ----------
    backbone : nn.Module
        Images to features.
    size : (int, int), default=(32, 32)
        Height and width of the image.
    in_channels : int, default=3
        Channels of the image.

    Returns
    -------
    float
        Of all experts, where there are several.

    Examples
    --------
    >>> from protail.backbones import make_backbone
    >>> from protail.backbones.cost import gflops
    >>> round(gflops(make_backbone("resnet32")), 4)
    0.1377
    """
    return _operations(backbone, size, in_channels) / 1e9


def gflops_with(
    backbone: nn.Module,
    n_experts_used: float,
    size: tuple[int, int] = (32, 32),
    *,
    in_channels: int = 3,
) -> float:
    """Count the operations of one image that only some of the experts look at.

    Parameters
    ----------
    backbone : ExpertResNet
        Images to features, with experts.
    n_experts_used : float
        How many experts; the mean over images where it is not the same for all.
    size, in_channels
        As in `gflops`.

    Returns
    -------
    float
        Those of the shared part and of so many experts; nothing for the choice among them.

    Examples
    --------
    >>> from protail.backbones import make_backbone
    >>> from protail.backbones.cost import gflops, gflops_with
    >>> backbone = make_backbone("resnet32-3-experts")
    >>> round(gflops_with(backbone, 1.5), 4), gflops_with(backbone, 3) == gflops(backbone)
    (0.1244, True)
    """
    if not isinstance(backbone, ExpertResNet):
        raise TypeError(
            f"backbone is a {type(backbone).__name__}, which has no experts; expected an "
            "ExpertResNet. Use gflops."
        )
    if not 1 <= n_experts_used <= backbone.n_experts:
        raise ValueError(
            f"n_experts_used={n_experts_used!r}; expected from 1 to {backbone.n_experts}, the "
            "experts there are."
        )
    shared = _operations(backbone.shared, size, in_channels)
    every = _operations(backbone, size, in_channels)
    return (shared + n_experts_used * (every - shared) / backbone.n_experts) / 1e9


def _operations(network: nn.Module, size: tuple[int, int], in_channels: int) -> int:
    # It imports Triton, and this module comes with every look for the name of a backbone.
    from torch.utils.flop_counter import FlopCounterMode

    unreal = deepcopy(network).to("meta").eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        unreal(torch.empty(1, in_channels, *size, device="meta"))
    return int(counter.get_total_flops())

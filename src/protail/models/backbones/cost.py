"""What a backbone does with an image, found out by one: its cost, and whether it takes the size."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn

from protail._messages import why
from protail.options import Range


def gflops(backbone: nn.Module, size: tuple[int, int] = (32, 32), *, in_channels: int = 3) -> float:
    """Count the operations that the features of one image take, in thousands of millions.

    Those of convolutions and matrix products count, a multiply-add as two; what is added to them
    by batch norm, activations and pooling does not. One black image is pushed through, in eval
    mode, where the backbone is; the backbone is left as it was.

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
    >>> from protail.models.backbones import gflops, make_backbone
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
    """Count the operations of one image for which only some of the experts are asked.

    Parameters
    ----------
    backbone : nn.Module
        Images to features, with experts: ``shared``, a module that makes of images what every
        expert gets, and ``experts``, an ``nn.ModuleList`` of them, as `ExpertResNet` has.
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
    >>> from protail.models.backbones import gflops, gflops_with, make_backbone
    >>> backbone = make_backbone("resnet32-3-experts")
    >>> round(gflops_with(backbone, 1.5), 4), gflops_with(backbone, 3) == gflops(backbone)
    (0.1244, True)
    """
    shared_part, n_experts = _parts(backbone)
    Range(1, n_experts, closed="both").check("n_experts_used", n_experts_used)
    shared = _operations(shared_part, size, in_channels)
    every = _operations(backbone, size, in_channels)
    return (shared + n_experts_used * (every - shared) / n_experts) / 1e9


def check_images(backbone: nn.Module, size: tuple[int, int], *, alone: bool = False) -> None:
    """Raise unless a backbone takes images of this size.

    One black image is pushed through; the backbone is left as it was.

    Parameters
    ----------
    backbone : nn.Module
        Images to features.
    size : (int, int)
        Height and width of the images.
    alone : bool, default=False
        Whether it must also learn from a batch of one image, which batch norm cannot where a
        channel is one number.

    Examples
    --------
    >>> from protail.models.backbones import check_images, make_backbone
    >>> check_images(make_backbone("resnet32"), (32, 32))
    >>> try:
    ...     check_images(make_backbone("timm/vit_tiny_patch16_224"), (32, 32))
    ... except ValueError as error:
    ...     print(str(error)[:71])
    this backbone takes no images of 32 x 32 pixels (Input height (32) does
    """
    if alone:
        check_images(backbone, size)  # where it takes none, one at a time is not the reason
    tried = deepcopy(backbone) if alone else backbone
    try:
        _push(tried, _black_image(tried, size, 3), training=alone)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # each architecture has its own way to fail
        image, reason = f"{size[0]} x {size[1]} pixels", why(error)
        if alone:
            raise ValueError(
                f"this backbone cannot learn from one image of {image} at a time ({reason}), and "
                "the last batch of an epoch has one. Choose another batch_size "
                "(representation.batch_size)."
            ) from error
        advice = "Choose another one (representation.backbone)."
        if (inputs := getattr(backbone, "input_spec", None)) is not None:
            advice = (
                f"It was made for {inputs.size} x {inputs.size}: train it on images in files, "
                "which are resized, or choose another one (representation.backbone)."
            )
        raise ValueError(
            f"this backbone takes no images of {image} ({reason}). {advice}"
        ) from error


def _parts(backbone: nn.Module) -> tuple[nn.Module, int]:
    """Give what all experts share, and how many experts there are."""
    shared, experts = (getattr(backbone, name, None) for name in ("shared", "experts"))
    if isinstance(shared, nn.Module) and isinstance(experts, nn.ModuleList):
        return shared, len(experts)
    raise TypeError(
        f"backbone is a {type(backbone).__name__}; expected one with experts: attributes shared, a "
        "module from images to what every expert gets, and experts, an nn.ModuleList. For a "
        "backbone without experts use gflops."
    )


def _operations(network: nn.Module, size: tuple[int, int], in_channels: int) -> int:
    # It imports Triton, and this module comes with every import of the package.
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        _push(network, _black_image(network, size, in_channels), training=False)
    return int(counter.get_total_flops())


def _black_image(network: nn.Module, size: tuple[int, int], in_channels: int) -> Tensor:
    """Make an image where the network is: what it reads in between has no place on "meta"."""
    tensors = chain(network.parameters(), network.buffers(), [torch.empty(0)])
    alike = next(tensor for tensor in tensors if tensor.is_floating_point())
    return torch.zeros(1, in_channels, *size, device=alike.device, dtype=alike.dtype)


def _push(network: nn.Module, image: Tensor, *, training: bool) -> None:
    """Compute the features of an image; the modes of the network are left as they were."""
    mode = {module: module.training for module in network.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network.train(training)(image)
    finally:
        for module, was_training in mode.items():
            module.training = was_training

"""Whether a backbone can take images, found out before any training."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn


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
    >>> from protail.backbones import check_images, make_backbone
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
    mode = {module: module.training for module in tried.modules()}
    tensor = next(tried.parameters(), torch.empty(0))
    image = torch.zeros(1, 3, *size, device=tensor.device)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            tried.train(alone)(image)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # each architecture has its own way to fail
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if alone:
            raise ValueError(
                f"this backbone cannot learn from one image of {size[0]} x {size[1]} pixels at a "
                f"time ({reason}), and the last batch of an epoch has one. Choose another "
                "batch_size (representation.batch_size)."
            ) from error
        raise ValueError(
            f"this backbone takes no images of {size[0]} x {size[1]} pixels ({reason})."
            f"{_advice(backbone)}"
        ) from error
    finally:
        for module, was_training in mode.items():
            module.training = was_training


def _advice(backbone: nn.Module) -> str:
    inputs = getattr(backbone, "input_spec", None)
    if inputs is None:
        return " Choose another one (representation.backbone)."
    return (
        f" It was made for {inputs.size} x {inputs.size}: train it on images in files, which are "
        "resized, or choose another one (representation.backbone)."
    )

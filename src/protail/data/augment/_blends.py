"""Ops that pull an image towards another one made from it: its mean, its grey, its blur."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from protail.data.augment._policies import Action

GREY_WEIGHTS = (0.2989, 0.587, 0.114)
_BLENDS = ("Contrast", "Color", "Sharpness")


def blend_weights(actions: Sequence[Action]) -> Tensor:
    """Give, by action, the share of the mean, the grey and the blurred image.

    Negative shares push away from them.

    Examples
    --------
    >>> blend_weights([Action("Color", -0.5), Action("Invert")]).abs().tolist()
    [[0.0, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    weights = torch.zeros(len(actions), len(_BLENDS))
    for row, (op, value) in zip(weights, actions, strict=True):
        if op in _BLENDS:
            row[_BLENDS.index(op)] = -value
    return weights


def blend_images(levels: Tensor, weights: Tensor, grey_weights: Tensor) -> Tensor:
    """Blend each image with its mean grey, its grey or its blurred self.

    At most one share of an image differs from 0: the ops are Contrast, Color and Sharpness.

    Parameters
    ----------
    levels : Tensor of float32, shape (b, 3, h, w)
        Whole levels plus a nudge far below 1; overwritten.
    weights : Tensor of float32, shape (b, 3)
        Shares, as in `blend_weights`.
    grey_weights : Tensor of float32, shape (3, 1, 1)
        Share of red, green and blue in grey.

    Returns
    -------
    Tensor of int64, shape (b, 3, h, w)
        Levels 0 to 255.

    Examples
    --------
    >>> import torch
    >>> image = torch.tensor([100.0, 50.0, 0.0]).view(1, 3, 1, 1)
    >>> grey_weights = torch.tensor(GREY_WEIGHTS).view(3, 1, 1)
    >>> blend_images(image, torch.tensor([[0.0, 0.5, 0.0]]), grey_weights).flatten().tolist()
    [79, 54, 29]
    """
    to_mean, to_grey, to_blur = weights[:, :, None, None, None].unbind(1)
    grey = (levels * grey_weights).sum(1, keepdim=True).floor_()
    levels.lerp_(grey.mean((2, 3), keepdim=True), to_mean).lerp_(grey, to_grey)
    if min(levels.shape[2:]) > 2:
        # The border is never blurred. Nine neighbours and four times the middle, over 13.
        inner = levels[:, :, 1:-1, 1:-1]
        blur = F.avg_pool2d(levels, 3, stride=1, divisor_override=13)
        inner.lerp_(blur.add_(inner, alpha=4 / 13).round_(), to_blur)
    return levels.clamp_(0, 255).long()

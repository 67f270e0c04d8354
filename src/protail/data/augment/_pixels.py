"""Where each pixel comes from: maps of source pixels, looked up per image."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, radians, sin

import torch
import torch.nn.functional as F
from torch import Tensor

# The first two rows of the matrix that sends a pixel of the result to its source, both measured
# from the middle of the image: (xx, xy, x0, yx, yy, y0).
Matrix = tuple[float, float, float, float, float, float]

IDENTITY: Matrix = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def shear_x(tangent: float, size: tuple[int, int]) -> Matrix:
    """Shift rows sideways, the more the lower they are; the upper left corner stays."""
    return (1.0, tangent, tangent * size[0] / 2, 0.0, 1.0, 0.0)


def shear_y(tangent: float, size: tuple[int, int]) -> Matrix:
    """Shift columns down, the more the further right they are; the upper left corner stays."""
    return (1.0, 0.0, 0.0, tangent, 1.0, tangent * size[1] / 2)


def translate(right: int, down: int) -> Matrix:
    """Move the image by whole pixels."""
    return (1.0, 0.0, -float(right), 0.0, 1.0, -float(down))


def rotate(degrees: float) -> Matrix:
    """Turn the image counter-clockwise about its middle."""
    angle = radians(degrees % 360)
    return (cos(angle), -sin(angle), 0.0, sin(angle), cos(angle), 0.0)


def pixel_maps(matrices: Sequence[Matrix], size: tuple[int, int]) -> Tensor:
    """Find the nearest source pixel of every pixel, for each of several matrices.

    Ties fall as they fall in ``grid_sample``, which torchvision uses: it is asked itself, once,
    on the CPU, so every device moves the same pixels.

    Parameters
    ----------
    matrices : sequence of tuple of float
        From result to source, in pixels from the middle.
    size : (int, int)
        Height and width.

    Returns
    -------
    Tensor of int64, shape (n_matrices, h * w)
        Source pixel, row by row; ``h * w`` where there is none.

    Examples
    --------
    >>> from protail.data.augment._pixels import pixel_maps, translate
    >>> pixel_maps([translate(1, 0)], (2, 3)).tolist()
    [[6, 0, 1, 6, 3, 4]]
    """
    height, width = size
    x = torch.linspace((1.0 - width) / 2, (width - 1.0) / 2, width).expand(height, width)
    y = torch.linspace((1.0 - height) / 2, (height - 1.0) / 2, height)[:, None].expand_as(x)
    base = torch.stack([x, y, torch.ones_like(x)], dim=-1).reshape(1, -1, 3)
    half = torch.tensor([width / 2, height / 2])
    numbers = torch.arange(1, height * width + 1, dtype=torch.float64).view(1, 1, height, width)
    maps = []
    for matrix in matrices:
        theta = torch.tensor(matrix, dtype=torch.float32).view(1, 2, 3)
        grid = base.bmm(theta.transpose(1, 2) / half).view(1, height, width, 2)
        source = F.grid_sample(numbers.float(), grid, mode="nearest", align_corners=False)
        maps.append(source.view(-1).long())
    found = torch.stack(maps)
    return torch.where(found == 0, height * width, found - 1)


def move_pixels(levels: Tensor, source: Tensor, fill: Tensor) -> Tensor:
    """Fetch every pixel from its source.

    Parameters
    ----------
    levels : Tensor of int, shape (b, 3, h * w)
        The images.
    source : Tensor of int64, shape (b, h * w)
        Source pixel; ``h * w`` means ``fill``.
    fill : Tensor of the dtype of ``levels``, shape (1, 1, 1)
        Level of pixels that come from outside.

    Returns
    -------
    Tensor, shape (b, 3, h * w)
        The moved images.

    Examples
    --------
    >>> import torch
    >>> levels = torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    >>> fill = torch.full((1, 1, 1), 9)
    >>> move_pixels(levels, torch.tensor([[2, 0]]), fill).tolist()
    [[[9, 1], [9, 3], [9, 5]]]
    """
    with_fill = torch.cat([levels, fill.expand(*levels.shape[:2], 1)], dim=2)
    return with_fill.gather(2, source[:, None].expand_as(levels))

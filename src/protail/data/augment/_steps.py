"""The steps of an augment: each takes whole levels and gives whole levels.

A step says how many random numbers it needs and how large they may get; all steps draw together.
Images travel as levels of 0 to 255, flat in space, of shape (b, 3, h * w).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import permutations
from math import cos, log, radians, sin

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]
# The first two rows of the matrix that sends a pixel of the result to its source, both measured
# from the middle of the image: (xx, xy, x0, yx, yy, y0).
Matrix = tuple[float, float, float, float, float, float]

GREY_WEIGHTS = (0.2989, 0.587, 0.114)
# A quarter of a degree moves the corner of a 32x32 image by a tenth of a pixel.
_ANGLES = [quarter / 4 for quarter in range(-60, 61)]

# The contrastive view.
_TRIES = 10
_SMALLEST_AREA = 0.2
_LOG_RATIO = log(4 / 3)
_JITTER_CHANCE, _GREY_CHANCE, _BLUR_CHANCE = 0.8, 0.2, 0.5
# Brightness, contrast and saturation by a factor of 1 - x to 1 + x, hue by -x to x of a turn.
_JITTER = (0.4, 0.4, 0.4, 0.1)
_CONTRAST, _SATURATION, _HUE = 1, 2, 3
_BLENDS = 3
_SIGMAS = (0.1, 2.0)
BLUR_REACH = 4
# Narrow enough that exp(-1 / (2 sigma^2)) is 0 in float32: the kernel of no blur.
_NO_BLUR = 0.05


class Step(nn.Module, ABC):
    """One step: ``draws`` are purposes, and the upper ends of the random numbers of each."""

    def __init__(self, *draws: tuple[str, tuple[float, ...]]) -> None:
        super().__init__()
        self.draws = draws

    def keep(self, **constants: Tensor) -> None:
        """Keep tensors that follow the step to its device and are never saved."""
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)

    @abstractmethod
    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Change the images by random numbers, given as drawn and cut to whole numbers."""


class CropFlip(Step):
    """Shift the image by up to ``pad`` pixels and flip it by chance.

    Numbers: rows and columns cut off the image after it was flipped and padded with black; 1 for
    a flip.
    """

    map: Tensor
    black: Tensor

    def __init__(self, size: Size, pad: int, *, crop: bool = True, flip: bool = True) -> None:
        crops = [("crop", (2.0 * pad + 1, 2.0 * pad + 1))] if crop else []
        super().__init__(*crops, *([("flip", (2.0,))] if flip else []))
        self.crop, self.flip, self.size = crop, flip, size
        pad = pad if crop else 0
        n_pixels = size[0] * size[1]
        pixels = torch.arange(n_pixels).view(1, *size)
        both = torch.cat([pixels, pixels.flip(2)])
        self.keep(map=F.pad(both, (pad,) * 4, value=n_pixels), black=_black())

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Shift and flip."""
        height, width = self.size
        # All windows of the padded map as a view: only the chosen ones are ever read.
        windows = self.map.unfold(1, height, 1).unfold(2, width, 1)
        top, left = (whole[:, 0], whole[:, 1]) if self.crop else (0, 0)
        source = windows[whole[:, -1] if self.flip else 0, top, left]
        return move_pixels(levels, source.flatten(1), self.black)


class Rotate(Step):
    """Turn the image by up to 15 degrees; what comes from outside is black. Number: the angle."""

    maps: Tensor
    black: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__(("rotate", (float(len(_ANGLES)),)))
        self.keep(maps=pixel_maps([rotation(angle) for angle in _ANGLES], size), black=_black())

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Turn."""
        return move_pixels(levels, self.maps.index_select(0, whole[:, 0]), self.black)


class Cutout(Step):
    """Make a square black, clipped at the border; its middle is any pixel.

    Numbers: rows and columns between the middle and the lower right pixel of the image.
    """

    mask: Tensor

    def __init__(self, size: Size, side: int) -> None:
        super().__init__(("cutout", (float(size[0]), float(size[1]))))
        self.size = size
        inside = []
        for length in size:
            away = torch.arange(2 * length - 1) - (length - 1)
            inside.append((away >= -(side // 2)) & (away < side // 2))
        self.keep(mask=(~(inside[0][:, None] & inside[1])).to(torch.uint8))

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Cut."""
        height, width = self.size
        kept = self.mask.unfold(0, height, 1).unfold(1, width, 1)[whole[:, 0], whole[:, 1]]
        return levels * kept.flatten(1)[:, None]


def _black() -> Tensor:
    """Give the level of pixels that come from outside."""
    return torch.zeros(1, 1, 1, dtype=torch.uint8)


def rotation(degrees: float) -> Matrix:
    """Turn an image counter-clockwise about its middle."""
    angle = radians(degrees % 360)
    return (cos(angle), -sin(angle), 0.0, sin(angle), cos(angle), 0.0)


def pixel_maps(matrices: Sequence[Matrix], size: Size) -> Tensor:
    """Find the nearest source pixel of every pixel, for each of several matrices.

    Shape (n_matrices, h * w), row by row; ``h * w`` where there is none. Ties fall as they fall in
    ``grid_sample``, which torchvision uses: it is asked itself, once, on the CPU, so every device
    moves the same pixels.
    """
    height, width = size
    x = torch.linspace((1.0 - width) / 2, (width - 1.0) / 2, width).expand(height, width)
    y = torch.linspace((1.0 - height) / 2, (height - 1.0) / 2, height)[:, None].expand_as(x)
    base = torch.stack([x, y, torch.ones_like(x)], dim=-1).reshape(1, -1, 3)
    half = torch.tensor([width / 2, height / 2])
    numbers = torch.arange(1, height * width + 1, dtype=torch.float32).view(1, 1, height, width)
    maps = []
    for matrix in matrices:
        theta = torch.tensor(matrix, dtype=torch.float32).view(1, 2, 3)
        grid = base.bmm(theta.transpose(1, 2) / half).view(1, height, width, 2)
        source = F.grid_sample(numbers, grid, mode="nearest", align_corners=False)
        maps.append(source.view(-1).long())
    found = torch.stack(maps)
    return torch.where(found == 0, height * width, found - 1)


def move_pixels(levels: Tensor, source: Tensor, fill: Tensor) -> Tensor:
    """Fetch every pixel from its source, shape (b, h * w); ``h * w`` means ``fill``."""
    with_fill = torch.cat([levels, fill.expand(*levels.shape[:2], 1)], dim=2)
    return with_fill.gather(2, source[:, None].expand_as(levels))


class SimCLR(Step):
    """Make a contrastive view: resized crop, flip, colour jitter in random order, grey, blur.

    Everything stays in float32 levels; nothing is rounded in between. Numbers: 20 tries and 2
    places of the crop, flip, jitter or not, four strengths, their order, grey or not, blur or not,
    sigma.
    """

    orders: Tensor
    jitter: Tensor
    grey_weights: Tensor
    channels: Tensor

    def __init__(self, size: Size) -> None:
        orders = orders_around_hue()
        crop = (1.0,) * (2 * _TRIES + 2)
        jitter = (1.0,) + (2.0,) * len(_JITTER) + (float(len(orders)),)
        super().__init__(("simclr", (*crop, 1.0, *jitter, 1.0, 1.0, 1.0)))
        self.size = size
        self.keep(
            orders=orders,
            jitter=torch.tensor(_JITTER),
            grey_weights=torch.tensor(GREY_WEIGHTS).view(3, 1, 1),
            channels=torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1),
        )

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Make the view."""
        parts = [2 * _TRIES, 2, 1, 1, len(_JITTER), 1, 3]
        tries, place, flip, jitters, strengths, _, last = torch.split(numbers, parts, dim=1)
        image = levels.float().view(*levels.shape[:2], *self.size)
        image = resize_boxes(image, crop_box(tries, place, self.size), flip[:, 0] < 0.5)
        # Minus the jitter is the fraction of what an image is blended with; hue has either sign.
        fractions = (strengths - 1) * self.jitter * (jitters < _JITTER_CHANCE)
        image = self.jittered(image, fractions, self.orders.index_select(0, whole[:, -4]))
        to_grey, to_blur, sigma = last.unbind(1)
        grey = (image * self.grey_weights).sum(1, keepdim=True)
        image = torch.where((to_grey < _GREY_CHANCE)[:, None, None, None], grey, image)
        sigma = _SIGMAS[0] + (_SIGMAS[1] - _SIGMAS[0]) * sigma
        return blur_images(image, torch.where(to_blur < _BLUR_CHANCE, sigma, _NO_BLUR)).flatten(2)

    def jittered(self, image: Tensor, fractions: Tensor, order: Tensor) -> Tensor:
        """Change brightness, contrast, saturation and hue in the order of each image.

        ``fractions`` (b, 4): 1 - factor for the first three, turns of the hue; ``order`` (b, 6):
        rows of `orders_around_hue`.
        """
        places = (fractions.gather(1, order) * (order != _HUE))[:, :, None, None, None].unbind(1)
        kinds = order[:, :, None, None, None].unbind(1)
        for place, (kind, fraction) in enumerate(zip(kinds, places, strict=True)):
            if place == _BLENDS:
                image = turn_hue(image, fractions[:, _HUE, None, None, None], self.channels)
            grey = (image * self.grey_weights).sum(1, keepdim=True)
            mean = grey.mean((2, 3), keepdim=True)
            other = torch.where(kind == _CONTRAST, mean, grey * (kind == _SATURATION))
            image = image.lerp(other, fraction).clamp(0, 255)
        return image


def crop_box(tries: Tensor, place: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose top, left, height and width of a random box: the first of ten tries that fits.

    ``tries`` (b, 20) are ten areas and ten ratios, ``place`` (b, 2) says where the box lies. All of
    the image is taken where no try fits.
    """
    full_height, full_width = size
    area = _SMALLEST_AREA + (1 - _SMALLEST_AREA) * tries[:, :_TRIES]
    half_log = (tries[:, _TRIES:] - 0.5) * _LOG_RATIO
    side = (area * (full_height * full_width)).sqrt()
    width = (side * half_log.exp()).round()
    height = (side / half_log.exp()).round()
    fits = (width <= full_width) & (height <= full_height) & (width > 0) & (height > 0)
    first = fits.long().argmax(1, keepdim=True)
    found = fits.gather(1, first)
    height = torch.where(found, height.gather(1, first), full_height)[:, 0]
    width = torch.where(found, width.gather(1, first), full_width)[:, 0]
    top = (place[:, 0] * (full_height - height + 1)).floor()
    left = (place[:, 1] * (full_width - width + 1)).floor()
    return top, left, height, width


def resize_boxes(
    image: Tensor, box: tuple[Tensor, Tensor, Tensor, Tensor], flipped: Tensor
) -> Tensor:
    """Enlarge a box of each image to the whole size, bilinear, and flip some."""
    top, left, height, width = (side[:, None] for side in box)
    rows, columns = image.shape[2:]
    y = torch.arange(rows, device=image.device) + 0.5
    x = torch.arange(columns, device=image.device) + 0.5
    x = torch.where(flipped[:, None], columns - x, x)
    # Centres of source pixels, held inside the box: nothing beside it is ever blended in.
    y = torch.maximum(y * (height / rows) - 0.5, torch.zeros_like(top)).minimum(height - 1) + top
    x = torch.maximum(x * (width / columns) - 0.5, torch.zeros_like(left)).minimum(width - 1) + left
    y, x = (2 * y + 1) / rows - 1, (2 * x + 1) / columns - 1
    shape = (len(image), rows, columns)
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=3)
    return F.grid_sample(image, grid, padding_mode="border", align_corners=False)


def turn_hue(image: Tensor, turns: Tensor, channels: Tensor) -> Tensor:
    """Turn the hue of each image by part of a full turn, keeping value and saturation.

    ``channels``: 5, 3, 1, where red, green and blue lie on the wheel of six.
    """
    red, green, blue = torch.split(image, 1, dim=1)
    lowest, highest = image.aminmax(dim=1, keepdim=True)
    span = highest - lowest
    unit = torch.where(span == 0, 1.0, span)
    below_green = torch.where(highest == green, (blue - red) / unit + 2, (red - green) / unit + 4)
    hue = torch.where(highest == red, (green - blue) / unit, below_green)
    place = (hue + 6 * turns + channels).remainder(6)
    return highest - span * torch.minimum(place, 4 - place).clamp(0, 1)


def blur_images(image: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image with its own Gaussian of nine taps; borders are reflected."""
    taps = torch.arange(-BLUR_REACH, BLUR_REACH + 1, device=image.device)
    kernel = torch.softmax(-(taps**2) / (2 * sigma[:, None] ** 2), dim=1)[:, None, None, None]
    padded = F.pad(image, (BLUR_REACH,) * 4, mode="reflect")
    rows = (padded.unfold(3, taps.numel(), 1) * kernel).sum(-1)
    return (rows.unfold(2, taps.numel(), 1) * kernel).sum(-1)


def orders_around_hue() -> Tensor:
    """List the 24 orders of the jitter, each as three blends before the hue and three after.

    Turning the hue is dear and every image does it once: it gets one fixed place, and an order is
    told by which blends come before. A place without a blend says hue: its fraction is 0.
    """
    orders = []
    for order in permutations(range(len(_JITTER))):
        hue = order.index(_HUE)
        blends = [kind for kind in order if kind != _HUE]
        orders.append(blends[:hue] + [_HUE] * _BLENDS + blends[hue:])
    return torch.tensor(orders)

"""The steps of an augment: each takes whole levels and gives whole levels.

A step says how many random numbers it needs and how large they may get; all steps draw together.
Images travel as levels of 0 to 255, flat in space, of shape (b, 3, h * w).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import permutations
from math import cos, log, radians, sin
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protail.options import Range

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
_N_BLENDS = 3
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

    if TYPE_CHECKING:  # what is kept is found by its name

        def __getattr__(self, name: str) -> Tensor: ...

    @abstractmethod
    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Change the images by random numbers, given as drawn and cut to whole numbers."""


class CropFlip(Step):
    """Shift the image by up to ``pad`` pixels and flip it by chance.

    Numbers: rows and columns cut off the image after it was flipped and padded with black; 1 for
    a flip.
    """

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
            if place == _N_BLENDS:
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
        orders.append(blends[:hue] + [_HUE] * _N_BLENDS + blends[hue:])
    return torch.tensor(orders)


# AutoAugment and RandAugment: which op, how likely, how strong, and all of them on a batch. Values
# are torchvision's, whose ops work on one image at a time: rotation and translation have a random
# sign, translation is cut to whole pixels, Solarize inverts from 255 (1 - m / 9) on. An op moves
# pixels, looks up new levels or blends an image with another one made from it; for every image all
# ops but one change nothing.


class Action(NamedTuple):
    """One op with its strength: a signed tangent, pixels, degrees, factor - 1, bits or level."""

    op: str
    strength: float = 0.0


# "op, chance, magnitude of 0 to 9; op, chance, magnitude": sub-policies, drawn equally.
_POLICIES = {
    "autoaugment": """
Invert .1 0; Contrast .2 6 | Rotate .7 2; TranslateX .3 9
Sharpness .8 1; Sharpness .9 3 | ShearY .5 8; TranslateY .7 9
AutoContrast .5 0; Equalize .9 0 | ShearY .2 7; Posterize .3 7
Color .4 3; Brightness .6 7 | Sharpness .3 9; Brightness .7 9
Equalize .6 0; Equalize .5 0 | Contrast .6 7; Sharpness .6 5
Color .7 7; TranslateX .5 8 | Equalize .3 0; AutoContrast .4 0
TranslateY .4 3; Sharpness .2 6 | Brightness .9 6; Color .2 8
Solarize .5 2; Invert 0 0 | Equalize .2 0; AutoContrast .6 0
Equalize .2 0; Equalize .6 0 | Color .9 9; Equalize .6 0
AutoContrast .8 0; Solarize .2 8 | Brightness .1 3; Color .7 0
Solarize .4 5; AutoContrast .9 0 | TranslateY .9 9; TranslateY .7 9
AutoContrast .9 0; Solarize .8 3 | Equalize .8 0; Invert .1 0
TranslateY .7 9; AutoContrast .9 0
""",
    "autoaugment-imagenet": """
Posterize .4 8; Rotate .6 9 | Solarize .6 5; AutoContrast .6 0
Equalize .8 0; Equalize .6 0 | Posterize .6 7; Posterize .6 6
Equalize .4 0; Solarize .2 4 | Equalize .4 0; Rotate .8 8
Solarize .6 3; Equalize .6 0 | Posterize .8 5; Equalize 1 0
Rotate .2 3; Solarize .6 8 | Equalize .6 0; Posterize .4 6
Rotate .8 8; Color .4 0 | Rotate .4 9; Equalize .6 0
Equalize 0 0; Equalize .8 0 | Invert .6 0; Equalize 1 0
Color .6 4; Contrast 1 8 | Rotate .8 8; Color 1 2
Color .8 8; Solarize .8 7 | Sharpness .4 7; Invert .6 0
ShearX .6 5; Equalize 1 0 | Color .4 0; Equalize .6 0
Equalize .4 0; Solarize .2 4 | Solarize .6 5; AutoContrast .6 0
Invert .6 0; Equalize 1 0 | Color .6 4; Contrast 1 8
Equalize .8 0; Equalize .6 0
""",
}
# Every chance is a multiple of a tenth: ten equally likely levels, each with either sign.
_N_CASES = 20

SIGNED = {
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
}
RANDAUGMENT_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
RANDAUGMENT_LARGEST = 30

_N_LEVELS = 256
# Added to every level before it is blended and cut to a whole number: a sum that should come out
# whole does, whatever the rounding of the device. Blends are off by 1e-4 at most.
_NUDGE = 2.0**-10
_PLAIN, _AUTOCONTRAST, _EQUALIZE = range(3)
# What these pull an image towards: its mean grey, its grey, its blurred self.
_BLENDS = ("Contrast", "Color", "Sharpness")


class Policy(Step):
    """Do a few ops one after the other, chosen per image.

    ``cases`` are actions by slot, sub-policy and case; sub-policies and cases are equally likely.
    Numbers: a sub-policy, then for each slot one of its cases.

    One flat table, ``values``, holds the new level of every pixel: 256 levels for each op that
    looks at the pixel alone, 256 for each contrast range that a channel can have, and one row of
    ranks for each step of Equalize. ``starts`` says where the answers of a channel start, by kind
    and by highest rank less lowest. ``settings`` has, by action: the kind; 1 where ranks count
    pixels; -1 where ranks start at the lowest; the smallest span that is changed at all.
    ``first_ranks`` are, by action, steps of the rank from one level to the next before pixels are
    counted.
    """

    def __init__(
        self, purpose: str, cases: list[list[list[Action]]], size: Size, fill: int
    ) -> None:
        n_slots, n_policies, n_cases = len(cases), len(cases[0]), len(cases[0][0])
        super().__init__((purpose, (float(n_policies), *[float(n_cases)] * n_slots)))
        self.size = size
        flat = [action for slot in cases for policy in slot for action in policy]
        actions = list(dict.fromkeys(flat))
        numbers = torch.tensor([actions.index(action) for action in flat])
        weights = torch.zeros(len(actions), len(_BLENDS))
        for row, (op, value) in zip(weights, actions, strict=True):
            if op in _BLENDS:
                row[_BLENDS.index(op)] = -value
        self.keep(
            choices=numbers.view(n_slots, n_policies, n_cases),
            slots=torch.arange(n_slots),
            maps=pixel_maps([matrix(action, size) for action in actions], size),
            fill=torch.full((1, 1, 1), fill),
            weights=weights,
            grey_weights=torch.tensor(GREY_WEIGHTS).view(3, 1, 1),
        )
        self._keep_levels(actions, size[0] * size[1])

    def _keep_levels(self, actions: Sequence[Action], n_pixels: int) -> None:
        """Build the table of new levels for some actions and a size of image."""
        values = [torch.arange(_N_LEVELS), *(_plain_levels(action) for action in actions)]
        stretched = _N_LEVELS * len(values)
        equalized = stretched + _N_LEVELS * _N_LEVELS
        # AutoContrast's answers, by range and height over the lowest level.
        height = torch.arange(_N_LEVELS, dtype=torch.float32)
        scale = height.clone().mul_(1.0 / 255)[:, None]
        scale[0] = 1.0
        values.append(height.div(scale).clamp_(0, 255).to(torch.uint8).view(-1))
        # Equalize's answers, by step (1, 2, ...) and number of darker pixels.
        step = torch.arange(1, n_pixels // 255 + 1)[:, None]
        darker = torch.arange(n_pixels + 1) + step // 2
        values.append(darker.div(step, rounding_mode="floor").clamp_(0, 255).view(-1))
        span = torch.arange(max(n_pixels, _N_LEVELS - 1) + 1)
        starts = torch.zeros(3, span.numel(), dtype=torch.int64)
        starts[_AUTOCONTRAST] = stretched + _N_LEVELS * span.clamp(max=_N_LEVELS - 1)
        starts[_EQUALIZE] = equalized + (span // 255 - 1).clamp(min=0) * (n_pixels + 1)
        first_ranks = torch.ones(len(actions), 1, _N_LEVELS + 1, dtype=torch.int64)
        settings = torch.zeros(len(actions), 4, dtype=torch.int64)
        for number, (op, _) in enumerate(actions):
            first_ranks[number, 0, 0] = 0
            if op == "Equalize":
                first_ranks[number] = 0
                settings[number] = torch.tensor([_EQUALIZE, 1, 0, 255])
            elif op == "AutoContrast":
                settings[number] = torch.tensor([_AUTOCONTRAST, 0, -1, 1])
            else:
                first_ranks[number, 0, 0] = _N_LEVELS * (number + 1)
        self.keep(
            values=torch.cat(values) + _NUDGE,
            starts=starts,
            first_ranks=first_ranks,
            settings=settings,
        )

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Do the ops of every slot."""
        chosen = self.choices[self.slots, whole[:, :1], whole[:, 1:]]
        settings, weights = self.settings[chosen], self.weights[chosen]
        levels = levels.long()
        for slot, action in enumerate(chosen.unbind(1)):
            # An action is one op: for every image all of these but one change nothing.
            levels = move_pixels(levels, self.maps.index_select(0, action), self.fill)
            changed = self._changed_levels(levels, action, settings[:, slot])
            image = changed.view(*changed.shape[:2], *self.size)
            levels = self._blended(image, weights[:, slot]).flatten(2)
        return levels

    def _changed_levels(self, levels: Tensor, action: Tensor, settings: Tensor) -> Tensor:
        """Look up the new level of every pixel, plus `_NUDGE`, in float32.

        A pixel's rank is its level, or for Equalize the number of darker pixels in its channel.
        Both come from one running sum over 256 levels that starts with ``first_ranks``.
        """
        kind, counts, from_lowest, smallest = settings[:, :, None, None].unbind(1)
        steps = self.first_ranks.expand(-1, levels.shape[1], -1).index_select(0, action)
        steps[..., 1:].scatter_add_(2, levels, counts.expand_as(levels))
        rank = steps.cumsum(2).gather(2, levels)
        lowest, highest = rank.aminmax(dim=2, keepdim=True)
        span = highest - lowest
        start = torch.addcmul(self.starts[kind, span], from_lowest, lowest)
        return self.values[torch.where(span < smallest, levels, rank + start)]

    def _blended(self, levels: Tensor, weights: Tensor) -> Tensor:
        """Blend each image with its mean grey, its grey or its blurred self, by weights (b, 3).

        Overwrites ``levels``; gives whole levels. At most one weight of an image differs from 0;
        a negative one pushes away.
        """
        to_mean, to_grey, to_blur = weights[:, :, None, None, None].unbind(1)
        grey = (levels * self.grey_weights).sum(1, keepdim=True).floor_()
        levels.lerp_(grey.mean((2, 3), keepdim=True), to_mean).lerp_(grey, to_grey)
        if min(levels.shape[2:]) > 2:
            # The border is never blurred. Nine neighbours and four times the middle, over 13.
            inner = levels[:, :, 1:-1, 1:-1]
            blur = F.avg_pool2d(levels, 3, stride=1, divisor_override=13)
            inner.lerp_(blur.add_(inner, alpha=4 / 13).round_(), to_blur)
        return levels.clamp_(0, 255).long()


def matrix(action: Action, size: Size) -> Matrix:
    """Give the matrix of an action; most move no pixel."""
    op, value = action
    matrices: dict[str, Matrix] = {
        # The upper left corner stays.
        "ShearX": (1.0, value, value * size[0] / 2, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, value, 1.0, value * size[1] / 2),
        "TranslateX": (1.0, 0.0, -float(int(value)), 0.0, 1.0, -0.0),
        "TranslateY": (1.0, 0.0, -0.0, 0.0, 1.0, -float(int(value))),
        "Rotate": rotation(value),
    }
    return matrices.get(op, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))


def _plain_levels(action: Action) -> Tensor:
    """Give the new level of each of the 256 levels, where the pixel alone decides."""
    levels = torch.arange(_N_LEVELS, dtype=torch.uint8)
    if action.op == "Invert":
        return levels.bitwise_not()
    if action.op == "Posterize":
        return levels & (0xFF << (8 - int(action.strength)) & 0xFF)
    if action.op == "Solarize":
        return torch.where(levels >= action.strength, levels.bitwise_not(), levels)
    if action.op == "Brightness":
        return levels.mul(1.0 + action.strength).clamp(0, 255).to(torch.uint8)
    return levels


def strength(op: str, magnitude: int, largest: int, size: Size) -> float:
    """Turn a magnitude out of 0 to ``largest`` into what the op takes.

    The steps are float32's, as torchvision's are: where a level falls on a whole number, the last
    bit of the factor decides.
    """

    def step(first: float, last: float) -> float:
        return float(torch.linspace(first, last, largest + 1)[magnitude])

    if op in ("TranslateX", "TranslateY"):
        return float(int(step(0.0, 150 / 331 * size[op == "TranslateX"])))
    if op in SIGNED:
        return step(0.0, {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0}.get(op, 0.9))
    if op == "Posterize":
        return float(8 - round(4 * magnitude / largest))
    return 255.0 * step(1.0, 0.0) if op == "Solarize" else 0.0


def sub_policies(name: str) -> list[list[tuple[str, int, int]]]:
    """List the sub-policies of a policy: (op, chance in tenths, magnitude) twice."""
    policies = []
    for policy in re.split(r"[|\n]", _POLICIES[name].strip()):
        parts = [part.split() for part in policy.split(";")]
        policies.append([(op, round(10 * float(p)), int(m)) for op, p, m in parts])
    return policies


def autoaugment_actions(name: str, size: Size) -> list[list[list[Action]]]:
    """List what is done by slot, sub-policy and case; the `_N_CASES` are equally likely."""
    return [
        [[_case(*policy[slot], case, size) for case in range(_N_CASES)] for policy in subs]
        for slot, subs in enumerate([sub_policies(name)] * 2)
    ]


def _case(op: str, tenths: int, magnitude: int, case: int, size: Size) -> Action:
    """Give what a slot of a sub-policy does in one of its cases."""
    level, minus = divmod(case, 2)
    if level >= tenths:
        return Action("Identity")
    value = strength(op, magnitude, 9, size)
    return Action(op, -value if minus and op in SIGNED else value)


def randaugment_actions(magnitude: int, size: Size) -> list[Action]:
    """List the equally likely actions of RandAugment: every op with either sign."""
    actions = []
    for op in RANDAUGMENT_OPS:
        value = strength(op, magnitude, RANDAUGMENT_LARGEST, size)
        actions += [Action(op, value), Action(op, -value if op in SIGNED else value)]
    return actions


def make_step(name: str, size: Size, *, pad: int, fill: int, cutout: int, magnitude: int) -> Step:
    """Make a step by name; "crop+flip" is both in one look-up."""
    Range(high=255, closed="both").check("fill", fill)
    Range(high=RANDAUGMENT_LARGEST, closed="both").check("magnitude", magnitude)
    if name == "simclr" and min(size) <= BLUR_REACH:
        raise ValueError(f"size={size!r}; simclr needs at least {BLUR_REACH + 1} pixels a side.")
    if name in ("crop", "flip", "crop+flip"):
        return CropFlip(size, pad, crop="crop" in name, flip="flip" in name)
    if name == "randaugment":
        return Policy(name, [[randaugment_actions(magnitude, size)]] * 2, size, fill)
    if name.startswith("autoaugment"):
        return Policy(name, autoaugment_actions(name, size), size, fill)
    if name == "cutout":
        return Cutout(size, cutout)
    return Rotate(size) if name == "rotate" else SimCLR(size)

"""The contrastive set: resized crop, flip, colour jitter in random order, grey, blur.

Everything stays in float32 levels of 0 to 255; nothing is rounded in between.
"""

from __future__ import annotations

from itertools import permutations
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from protail.data.augment._blends import GREY_WEIGHTS
from protail.data.augment._steps import Size, Step

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


def crop_box(tries: Tensor, place: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose a box of random area and aspect ratio: the first of ten tries that fits.

    Parameters
    ----------
    tries : Tensor of float32, shape (b, 20)
        Uniform numbers: ten areas, ten ratios.
    place : Tensor of float32, shape (b, 2)
        Uniform numbers: where the box lies.
    size : (int, int)
        Height and width of the image; all of it is taken where no try fits.

    Returns
    -------
    top, left, height, width : Tensor of float32, shape (b,)
        Whole numbers.

    Examples
    --------
    >>> import torch
    >>> top, left, height, width = crop_box(torch.rand(99, 20), torch.rand(99, 2), (32, 32))
    >>> bool((top + height <= 32).all() and (left + width <= 32).all())
    True
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
    image: Tensor, box: tuple[Tensor, Tensor, Tensor, Tensor], mirrored: Tensor
) -> Tensor:
    """Enlarge a box of each image to the whole size, bilinear, and mirror some.

    Parameters
    ----------
    image : Tensor of float32, shape (b, 3, h, w)
        The images.
    box : tuple of Tensor, shape (b,)
        Top, left, height and width.
    mirrored : Tensor of bool, shape (b,)
        Which results are mirrored.

    Returns
    -------
    Tensor of float32, shape (b, 3, h, w)
        The enlarged boxes.

    Examples
    --------
    >>> import torch
    >>> image = torch.arange(16.0).view(1, 1, 4, 4)
    >>> box = tuple(torch.tensor([float(v)]) for v in (0, 0, 4, 4))
    >>> resize_boxes(image, box, torch.tensor([True]))[0, 0, 0].tolist()
    [3.0, 2.0, 1.0, 0.0]
    """
    top, left, height, width = (side[:, None] for side in box)
    rows, columns = image.shape[2:]
    y = torch.arange(rows, device=image.device) + 0.5
    x = torch.arange(columns, device=image.device) + 0.5
    x = torch.where(mirrored[:, None], columns - x, x)
    # Centres of source pixels, held inside the box: nothing beside it is ever blended in.
    y = torch.maximum(y * (height / rows) - 0.5, torch.zeros_like(top)).minimum(height - 1) + top
    x = torch.maximum(x * (width / columns) - 0.5, torch.zeros_like(left)).minimum(width - 1) + left
    y, x = (2 * y + 1) / rows - 1, (2 * x + 1) / columns - 1
    shape = (len(image), rows, columns)
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=3)
    return F.grid_sample(image, grid, padding_mode="border", align_corners=False)


def turn_hue(image: Tensor, turns: Tensor, channels: Tensor) -> Tensor:
    """Turn the hue of each image, keeping value and saturation.

    Parameters
    ----------
    image : Tensor of float32, shape (b, 3, h, w)
        The images.
    turns : Tensor of float32, shape (b, 1, 1, 1)
        By how much of a full turn.
    channels : Tensor of float32, shape (3, 1, 1)
        5, 3, 1: where red, green and blue lie on the wheel of six.

    Returns
    -------
    Tensor of float32, shape (b, 3, h, w)
        The turned images.

    Examples
    --------
    >>> import torch
    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> wheel = torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1)
    >>> turn_hue(red, torch.full((1, 1, 1, 1), 1 / 3), wheel).flatten().tolist()
    [0.0, 1.0, 0.0]
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
    """Blur each image with its own Gaussian of nine taps; borders are reflected.

    Parameters
    ----------
    image : Tensor of float32, shape (b, 3, h, w)
        The images, at least five pixels high and wide.
    sigma : Tensor of float32, shape (b,)
        Standard deviations in pixels.

    Returns
    -------
    Tensor of float32, shape (b, 3, h, w)
        The blurred images.

    Examples
    --------
    >>> import torch
    >>> image = torch.rand(2, 3, 8, 8)
    >>> torch.equal(blur_images(image, torch.full((2,), 0.05)), image)
    True
    """
    taps = torch.arange(-BLUR_REACH, BLUR_REACH + 1, device=image.device)
    kernel = torch.softmax(-(taps**2) / (2 * sigma[:, None] ** 2), dim=1)[:, None, None, None]
    padded = F.pad(image, (BLUR_REACH,) * 4, mode="reflect")
    rows = (padded.unfold(3, taps.numel(), 1) * kernel).sum(-1)
    return (rows.unfold(2, taps.numel(), 1) * kernel).sum(-1)


def orders_around_hue() -> Tensor:
    """List the 24 orders of the jitter, each as three blends before the hue and three after.

    Turning the hue is dear and every image does it once: it gets one fixed place, and an order is
    told by which blends come before. A place without a blend says hue: its share is 0.

    Examples
    --------
    >>> orders_around_hue().unique(dim=0).shape
    torch.Size([24, 6])
    """
    orders = []
    for order in permutations(range(len(_JITTER))):
        hue = order.index(_HUE)
        blends = [kind for kind in order if kind != _HUE]
        orders.append(blends[:hue] + [_HUE] * _BLENDS + blends[hue:])
    return torch.tensor(orders)


class SimCLR(Step):
    """Make one view of the contrastive set.

    Numbers: 20 tries and 2 places of the crop, flip, jitter or not, four strengths, their order,
    grey or not, blur or not, sigma.
    """

    orders: Tensor
    jitter: Tensor
    grey_weights: Tensor
    channels: Tensor

    def __init__(self, size: Size) -> None:
        orders = orders_around_hue()
        crop = (1.0,) * (2 * _TRIES + 2)
        jitter = (1.0,) + (2.0,) * len(_JITTER) + (float(len(orders)),)
        super().__init__([("simclr", (*crop, 1.0, *jitter, 1.0, 1.0, 1.0))])
        self.size = size
        self.constant("orders", orders)
        self.constant("jitter", torch.tensor(_JITTER))
        self.constant("grey_weights", torch.tensor(GREY_WEIGHTS).view(3, 1, 1))
        self.constant("channels", torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1))

    def forward(self, levels: Tensor, numbers: Tensor, whole: Tensor) -> Tensor:
        """Make the view."""
        parts = [2 * _TRIES, 2, 1, 1, len(_JITTER), 1, 3]
        tries, place, flip, jitters, strengths, _, last = torch.split(numbers, parts, dim=1)
        image = levels.float().view(*levels.shape[:2], *self.size)
        image = resize_boxes(image, crop_box(tries, place, self.size), flip[:, 0] < 0.5)
        # Minus the jitter is the share of what an image is blended with; hue has either sign.
        shares = (strengths - 1) * self.jitter * (jitters < _JITTER_CHANCE)
        image = self.jittered(image, shares, self.orders.index_select(0, whole[:, -4]))
        to_grey, to_blur, sigma = last.unbind(1)
        grey = (image * self.grey_weights).sum(1, keepdim=True)
        image = torch.where((to_grey < _GREY_CHANCE)[:, None, None, None], grey, image)
        sigma = _SIGMAS[0] + (_SIGMAS[1] - _SIGMAS[0]) * sigma
        return blur_images(image, torch.where(to_blur < _BLUR_CHANCE, sigma, _NO_BLUR)).flatten(2)

    def jittered(self, image: Tensor, shares: Tensor, order: Tensor) -> Tensor:
        """Change brightness, contrast, saturation and hue in the order of each image.

        Parameters
        ----------
        image : Tensor of float32, shape (b, 3, h, w)
            The images.
        shares : Tensor of float32, shape (b, 4)
            1 - factor for the first three, turns of the hue.
        order : Tensor of int64, shape (b, 6)
            Rows of `orders_around_hue`.

        Returns
        -------
        Tensor of float32, shape (b, 3, h, w)
            The changed images.
        """
        places = (shares.gather(1, order) * (order != _HUE))[:, :, None, None, None].unbind(1)
        kinds = order[:, :, None, None, None].unbind(1)
        for place, (kind, share) in enumerate(zip(kinds, places, strict=True)):
            if place == _BLENDS:
                image = turn_hue(image, shares[:, _HUE, None, None, None], self.channels)
            grey = (image * self.grey_weights).sum(1, keepdim=True)
            mean = grey.mean((2, 3), keepdim=True)
            other = torch.where(kind == _CONTRAST, mean, grey * (kind == _SATURATION))
            image = image.lerp(other, share).clamp(0, 255)
        return image

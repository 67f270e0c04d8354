"""Augment one image at a time in loader workers, for images too large to live on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protail._messages import imported
from protail.data import stream_key, whole_number
from protail.data.augment.on_device import check_names

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LOADER_AUGMENTS = (
    "resized-crop",
    "flip",
    "jitter",
    "autoaugment-imagenet",
    "randaugment",
    "simclr",
)
_PURPOSE = 1 << 21


@dataclass(frozen=True)
class InputSpec:
    """Say in which form a backbone wants images that come from files.

    Attributes
    ----------
    size : int
        Side of what the backbone sees.
    mean, std : tuple of float
        Of red, green and blue, on a scale of 0 to 1.
    crop : float
        For testing, how much of the shorter side the middle that is cut out takes.
    interpolation : str
        How sizes are changed: "bilinear", "bicubic" or another mode of torchvision.
    squash : bool
        For testing, whether both sides are resized, whatever shape the image had.

    Examples
    --------
    >>> from protail.data.augment import InputSpec
    >>> InputSpec().resized, InputSpec(size=384, crop=1.0).resized
    (256, 384)
    """

    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    crop: float = 7 / 8
    interpolation: str = "bilinear"
    squash: bool = False

    @property
    def resized(self) -> int:
        """Side of a test image before the middle is cut out of it."""
        return math.floor(self.size / self.crop)


class LoaderTransform:
    """Turn one opened image into what the backbone sees.

    Made by `make_loader_transform`. Its random numbers depend on seed, epoch and index alone: not
    on the worker, the rank or the images before.

    Parameters
    ----------
    random, fixed : callable
        torchvision's transforms from image to 8-bit tensor, for training and for testing.
    finish : callable
        From such a tensor, or a batch of them, to what the backbone sees.
    seed : int
        Same seed, same images.

    Examples
    --------
    >>> from PIL import Image
    >>> from protail.data.augment import InputSpec, make_loader_transform
    >>> transform = make_loader_transform(["resized-crop", "flip"], InputSpec(size=32))
    >>> transform(Image.new("RGB", (50, 40)), index=7, epoch=0).shape
    torch.Size([3, 32, 32])
    """

    def __init__(
        self,
        random: Callable[[Any], Tensor],
        fixed: Callable[[Any], Tensor],
        finish: Callable[[Tensor], Tensor],
        seed: int,
    ) -> None:
        self.random, self.fixed, self.finish = random, fixed, finish
        self.seed = whole_number("seed", seed, 0)

    def __call__(self, image: Image, index: int, epoch: int) -> Tensor:
        """Augment and normalise.

        Parameters
        ----------
        image : PIL.Image.Image
            The image, of any mode and size.
        index : int
            What tells the draws of an epoch apart.
        epoch : int
            The epoch.

        Returns
        -------
        Tensor of float32, shape (3, size, size)
            What the backbone sees.
        """
        return self.finish(self.levels(image, index, epoch))

    def levels(self, image: Image, index: int = 0, epoch: int | None = None) -> Tensor:
        """Augment only, or without an epoch resize and cut out the middle only.

        Parameters
        ----------
        image, index, epoch
            As above.

        Returns
        -------
        Tensor of uint8, shape (3, size, size)
            A quarter of the bytes for a worker to hand over; ``finish`` does the rest, for a batch
            and where the network is.
        """
        if epoch is None:
            return self.fixed(image.convert("RGB"))
        key = int(stream_key(self.seed, _PURPOSE, epoch, index)[0])
        # torchvision draws from the global generator of the CPU: lend it ours for one image.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key >> 1)
            return self.random(image.convert("RGB"))

    def clean(self, image: Image) -> Tensor:
        """Resize, cut out the middle and normalise, as for the test images.

        Parameters
        ----------
        image : PIL.Image.Image
            The image, of any mode and size.

        Returns
        -------
        Tensor of float32, shape (3, size, size)
            What the backbone sees.

        Examples
        --------
        >>> from PIL import Image
        >>> from protail.data.augment import InputSpec, make_loader_transform
        >>> transform = make_loader_transform([], InputSpec(size=32))
        >>> transform.clean(Image.new("L", (50, 40))).shape
        torch.Size([3, 32, 32])
        """
        return self.finish(self.levels(image))


def make_loader_transform(
    names: Sequence[str],
    inputs: InputSpec = InputSpec(),
    *,
    seed: int = 0,
    fill: int = 128,
    magnitude: int = 9,
) -> LoaderTransform:
    """Build the transform that loader workers apply to one image.

    Parameters
    ----------
    names : sequence of str
        Steps in order: ``"resized-crop"``, ``"flip"``, ``"jitter"`` (brightness, contrast and
        saturation by 0.4), ``"autoaugment-imagenet"``, ``"randaugment"``, ``"simclr"`` (one
        contrastive view). Without a crop among them the image is resized and its middle cut out,
        as for testing.
    inputs : InputSpec
        What the backbone wants; by default ImageNet's mean and 224 pixels out of 256.
    seed : int
        Same seed, same images.
    fill : int
        Level of pixels that the ops of a policy bring in from outside.
    magnitude : int
        Strength of randaugment, 0 to 30.

    Returns
    -------
    LoaderTransform
        Called as ``transform(image, index, epoch)``; ``transform.clean(image)`` for testing.

    Examples
    --------
    >>> from PIL import Image
    >>> from protail.data.augment import make_loader_transform
    >>> transform = make_loader_transform(["resized-crop", "flip", "jitter"])
    >>> image = Image.effect_noise((300, 260), 60)
    >>> one, same = (transform(image, index=3, epoch=1) for _ in range(2))
    >>> bool((one == same).all())
    True
    """
    check_names(names, LOADER_AUGMENTS)
    about = "augmenting large images", "torchvision", "vision"
    v2 = imported("torchvision.transforms.v2", *about)
    whole_number("size", inputs.size, 1)
    mode = v2.InterpolationMode(inputs.interpolation)
    finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(inputs.mean, inputs.std)]
    sides = [inputs.resized] * (2 if inputs.squash else 1)
    middle = [v2.Resize(sides, mode), v2.CenterCrop(inputs.size)]
    steps: list[Any] = [] if {"resized-crop", "simclr"} & set(names) else list(middle)
    contrastive = [
        v2.RandomResizedCrop(inputs.size, scale=(0.2, 1.0), interpolation=mode),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        v2.RandomGrayscale(0.2),
        # A tenth of the side, made odd: the kernel that the contrastive papers use.
        v2.RandomApply([v2.GaussianBlur(inputs.size // 20 * 2 + 1, (0.1, 2.0))], p=0.5),
    ]
    known = {
        "resized-crop": [v2.RandomResizedCrop(inputs.size, interpolation=mode)],
        "flip": [v2.RandomHorizontalFlip()],
        "jitter": [v2.ColorJitter(0.4, 0.4, 0.4)],
        "autoaugment-imagenet": [v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET, fill=fill)],
        "randaugment": [v2.RandAugment(magnitude=magnitude, fill=fill)],
        "simclr": contrastive,
    }
    for name in names:
        steps += known[name]
    random, fixed = (v2.Compose([*parts, v2.ToImage()]) for parts in (steps, middle))
    return LoaderTransform(random, fixed, v2.Compose(finish), seed)

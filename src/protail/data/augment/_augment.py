"""Augment a whole batch where it lives, every image by its own random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from protail.data._row_sampler import whole_number
from protail.data.augment._draws import draw, draw_keys, draw_scales
from protail.data.augment._names import check_names
from protail.data.augment._policies import (
    RANDAUGMENT_LARGEST,
    autoaugment_actions,
    randaugment_actions,
)
from protail.data.augment._simclr import BLUR_REACH, SimCLR
from protail.data.augment._steps import CropFlip, Cutout, Policy, Rotate, Size, Step

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)
NAMES = (
    "crop",
    "flip",
    "rotate",
    "autoaugment",
    "autoaugment-imagenet",
    "randaugment",
    "cutout",
    "simclr",
)
# A quarter of a degree moves the corner of a 32x32 image by a tenth of a pixel.
_ANGLES = [quarter / 4 for quarter in range(-60, 61)]
_RANDAUGMENT_SLOTS = 2


class Augment(nn.Module):
    """Turn a batch of stored images into what the backbone sees.

    Made by `make_augment`. Pure tensor code: a CUDA graph can hold it and ``torch.compile`` can
    fuse it. Move it to the device of the images with ``.to(device)``.

    Parameters
    ----------
    steps : sequence of Step
        What happens to an image, in order.
    size : (int, int)
        Height and width of the images.
    mean, std : sequence of float
        Of red, green and blue, on a scale of 0 to 1.
    seed : int
        Same seed, same images.
    views : int
        How many different views of an image can be asked for.
    channels_last : bool
        Memory layout of the result.

    Examples
    --------
    >>> import torch
    >>> from protail.data.augment import make_augment
    >>> augment = make_augment(["crop", "flip"])
    >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> augment(images, torch.arange(4), epoch=0).dtype
    torch.float32
    """

    scale: Tensor
    shift: Tensor
    keys: Tensor
    scales: Tensor

    def __init__(
        self,
        steps: Sequence[Step],
        size: Size,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        seed: int,
        views: int,
        channels_last: bool,
    ) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.size = size
        self.seed = whole_number("seed", seed, 0)
        self.views = whole_number("views", views, 1)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        mean_c, std_c = _three("mean", mean), _three("std", std)
        if not bool((std_c > 0).all()):
            raise ValueError(f"std={std!r}; expected three numbers above 0.")
        draws = [part for step in steps for part in step.draws]
        self._counts = [sum(len(highs) for _, highs in step.draws) for step in steps]
        keys = [
            [draw_keys(self.seed, _purpose(name, view), len(highs)) for name, highs in draws]
            for view in range(self.views)
        ]
        nothing = torch.empty(0, dtype=torch.int64)
        constants = {
            "scale": 1 / (255 * std_c),
            "shift": -mean_c / std_c,
            "keys": torch.stack([torch.cat([nothing, *parts]) for parts in keys]),
            "scales": draw_scales([high for _, highs in draws for high in highs]),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, images: Tensor, index: Tensor, epoch: int | Tensor, view: int = 0) -> Tensor:
        """Augment and normalise.

        Parameters
        ----------
        images : Tensor of uint8, shape (b, 3, h, w)
            The stored images.
        index : Tensor of int64, shape (b,)
            What tells the draws of an epoch apart: the number of the row where every row comes
            once, the place in the stream of rows where some come more often. Same index, same
            random numbers.
        epoch : int or 0-d tensor of int64
            A tensor may change between replays of a captured graph.
        view : int
            Which view, from 0.

        Returns
        -------
        Tensor of float32, shape (b, 3, h, w)
            What the backbone sees.
        """
        self._check(images)
        if not 0 <= view < self.views:
            raise ValueError(f"view={view!r}; this augment was made with views={self.views}.")
        if index.dtype != torch.int64 or index.shape != images.shape[:1]:
            raise ValueError(
                f"index has shape {tuple(index.shape)} and dtype {index.dtype}; expected one "
                f"int64 for each of {len(images)} images."
            )
        levels = images.flatten(2)
        if self._counts:
            numbers = draw(self.keys[view], epoch, index, self.scales)
            shares = zip(
                self.steps,
                torch.split(numbers, self._counts, dim=1),
                torch.split(numbers.long(), self._counts, dim=1),
                strict=True,
            )
            for step, own, whole in shares:
                levels = step(levels, own, whole)
        return self._normalised(levels.view(images.shape))

    def clean(self, images: Tensor) -> Tensor:
        """Normalise only, as for the test images.

        Parameters
        ----------
        images : Tensor of uint8, shape (b, 3, h, w)
            The stored images.

        Returns
        -------
        Tensor of float32, shape (b, 3, h, w)
            What the backbone sees.

        Examples
        --------
        >>> import torch
        >>> from protail.data.augment import make_augment
        >>> augment = make_augment([], mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> augment.clean(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)).unique()
        tensor([1.])
        """
        self._check(images)
        return self._normalised(images)

    def _normalised(self, levels: Tensor) -> Tensor:
        result = torch.empty(
            levels.shape, dtype=torch.float32, device=levels.device, memory_format=self._layout
        )
        return torch.mul(levels, self.scale, out=result).add_(self.shift)

    def _check(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.shape[1:] != (3, *self.size):
            raise ValueError(
                f"images have shape {tuple(images.shape)} and dtype {images.dtype}; expected "
                f"(b, 3, {self.size[0]}, {self.size[1]}) of uint8, the size that make_augment got."
            )
        if images.device != self.scale.device:
            raise ValueError(
                f"images are on {images.device} and the augment is on {self.scale.device}; "
                f"move it with augment.to({str(images.device)!r})."
            )


def make_augment(
    names: Sequence[str],
    *,
    size: Size = (32, 32),
    mean: Sequence[float] = CIFAR_MEAN,
    std: Sequence[float] = CIFAR_STD,
    seed: int = 0,
    views: int = 1,
    pad: int = 4,
    fill: int = 128,
    cutout: int = 16,
    magnitude: int = 9,
    channels_last: bool = False,
) -> Augment:
    """Build an augment for images that live on the device.

    Parameters
    ----------
    names : sequence of str
        Steps in order: ``"crop"`` (pad with black, cut at random), ``"flip"``, ``"rotate"`` (up to
        15 degrees), ``"autoaugment"`` (the CIFAR-10 policy), ``"autoaugment-imagenet"``,
        ``"randaugment"`` (torchvision's: two ops), ``"cutout"``, ``"simclr"`` (one contrastive
        view). Normalising always comes last.
    size : (int, int)
        Height and width of the images.
    mean, std : sequence of float
        Of red, green and blue, on a scale of 0 to 1; CIFAR's unless given.
    seed : int
        Same seed, same images.
    views : int
        How many different views of an image can be asked for.
    pad : int
        Pixels that crop adds on each side.
    fill : int
        Level of pixels that the ops of a policy bring in from outside.
    cutout : int
        Side of cutout's square.
    magnitude : int
        Strength of randaugment, 0 to 30.
    channels_last : bool
        Memory layout of the result.

    Returns
    -------
    Augment
        On the CPU; move it with ``.to(device)``.

    Examples
    --------
    >>> import torch
    >>> from protail.data.augment import make_augment
    >>> augment = make_augment(["crop", "flip", "autoaugment", "cutout"], seed=1)
    >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> both = augment(images, torch.tensor([5, 6, 7, 8]), epoch=3)
    >>> torch.equal(both[2:], augment(images[2:], torch.tensor([7, 8]), epoch=torch.tensor(3)))
    True
    """
    check_names(names, NAMES)
    size = (whole_number("size", size[0], 1), whole_number("size", size[1], 1))
    pad, cutout = whole_number("pad", pad, 0), whole_number("cutout", cutout, 2)
    if not 0 <= fill <= 255:
        raise ValueError(f"fill={fill!r}; expected a level of 0 to 255.")
    if not 0 <= magnitude <= RANDAUGMENT_LARGEST:
        raise ValueError(f"magnitude={magnitude!r}; expected 0 to {RANDAUGMENT_LARGEST}.")
    if "simclr" in names and min(size) <= BLUR_REACH:
        raise ValueError(f"size={size!r}; simclr needs at least {BLUR_REACH + 1} pixels a side.")

    def random_ops() -> Step:
        cases = [[randaugment_actions(magnitude, size)]] * _RANDAUGMENT_SLOTS
        return Policy("randaugment", cases, size, fill)

    def policy(name: str) -> Step:
        return Policy(name, autoaugment_actions(name, size), size, fill)

    makers: dict[str, Callable[[], Step]] = {
        "crop": lambda: CropFlip(size, pad, flip=False),
        "flip": lambda: CropFlip(size, pad, crop=False),
        "crop+flip": lambda: CropFlip(size, pad),
        "rotate": lambda: Rotate(size, _ANGLES),
        "autoaugment": lambda: policy("autoaugment"),
        "autoaugment-imagenet": lambda: policy("autoaugment-imagenet"),
        "randaugment": random_ops,
        "cutout": lambda: Cutout(size, cutout),
        "simclr": lambda: SimCLR(size),
    }
    return Augment(
        [makers[name]() for name in _fused(names)],
        size,
        mean=mean,
        std=std,
        seed=seed,
        views=views,
        channels_last=channels_last,
    )


def _fused(names: Sequence[str]) -> list[str]:
    """Put a crop and the flip right after it into one step: one look-up does both."""
    fused: list[str] = []
    for name in names:
        if name == "flip" and fused[-1:] == ["crop"]:
            fused[-1] = "crop+flip"
        else:
            fused.append(name)
    return fused


def _purpose(name: str, view: int) -> int:
    return view * len(NAMES) + NAMES.index(name)


def _three(name: str, values: Sequence[float]) -> Tensor:
    tensor = torch.tensor(list(values), dtype=torch.float32)
    if tensor.shape != (3,):
        raise ValueError(f"{name}={values!r}; expected three numbers: red, green, blue.")
    return tensor.view(3, 1, 1)

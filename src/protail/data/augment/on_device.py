"""Augment and mix a whole batch where it lives, every image by its own random numbers.

A random number is a pure function of seed, epoch, index, purpose and draw, by whole-number
arithmetic that wraps at 64 bits: the same bits in any batch, on any rank and device. Few kernels:
the draws of all purposes come from one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from protail._messages import unknown_name
from protail.data import stream_key, whole_number
from protail.data.augment._steps import Size, Step, make_step
from protail.options import Range

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)
AUGMENTS = (
    *("crop", "flip", "rotate", "autoaugment", "autoaugment-imagenet"),
    *("randaugment", "cutout", "simclr"),
)

_WORD = 1 << 64
# Steps of a Weyl sequence in three dimensions (powers of the root of x^4 = x + 1): what an epoch,
# an index and a draw add to the state before it is scrambled.
_EPOCH_STEP = 0xD1B54A32D192ED03
_INDEX_STEP = 0xABC98388FB8FAC03
_DRAW_STEP = 0x8CB92BA72F3D8DD7
_SCRAMBLE = 0xD6E8FEB86659FD93
# 23 bits and not 24: then floor(u * n) is below n in float32 for every n.
_KEPT_BITS = 0x7FFF_FF00
_BIT = 2.0**-31


class Augment(nn.Module):
    """Turn a batch of stored images into what the backbone sees.

    Made by `make_augment`. Pure tensor code: a CUDA graph can hold it and ``torch.compile`` can
    fuse it. Move it to the device of the images with ``.to(device)``.

    Parameters
    ----------
    steps : sequence of nn.Module
        What happens to an image, in order.
    size : (int, int)
        Height and width of the images.
    mean, std : sequence of float
        Of red, green and blue, on a scale of 0 to 1.
    seed : int
        Same seed, same images.
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
        channels_last: bool,
    ) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.size = size
        self.seed = whole_number("seed", seed, 0)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        mean_c, std_c = _three("mean", mean), _three("std", std)
        if not bool((std_c > 0).all()):
            raise ValueError(f"std={std!r}; expected three numbers above 0.")
        self._counts = [sum(len(highs) for _, highs in step.draws) for step in steps]
        draws = [part for step in steps for part in step.draws]
        keys = [torch.empty(0, dtype=torch.int64)]
        keys += [draw_keys(seed, AUGMENTS.index(name), len(highs)) for name, highs in draws]
        scales = draw_scales([high for _, highs in draws for high in highs])
        self.register_buffer("scale", 1 / (255 * std_c), persistent=False)
        self.register_buffer("shift", -mean_c / std_c, persistent=False)
        self.register_buffer("keys", torch.cat(keys), persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, images: Tensor, index: Tensor, epoch: int | Tensor) -> Tensor:
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

        Returns
        -------
        Tensor of float32, shape (b, 3, h, w)
            What the backbone sees.
        """
        self._check(images)
        if index.dtype != torch.int64 or index.shape != images.shape[:1]:
            raise ValueError(
                f"index has shape {tuple(index.shape)} and dtype {index.dtype}; expected one "
                f"int64 for each of {len(images)} images."
            )
        levels = images.flatten(2)
        if self._counts:
            numbers = draw(self.keys, epoch, index, self.scales)
            own = torch.split(numbers, self._counts, dim=1)
            whole = torch.split(numbers.long(), self._counts, dim=1)
            for step, *given in zip(self.steps, own, whole, strict=True):
                levels = step(levels, *given)
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
        Same seed, same images; another view of them is another augment's, of another seed.
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
    check_names(names, AUGMENTS)
    size = (whole_number("size", size[0], 1), whole_number("size", size[1], 1))
    pad, cutout = whole_number("pad", pad, 0), whole_number("cutout", cutout, 2)
    # A crop and the flip right after it are one step: one look-up does both.
    fused = " ".join(names).replace("crop flip", "crop+flip").split()
    options = {"pad": pad, "fill": fill, "cutout": cutout, "magnitude": magnitude}
    steps = [make_step(name, size, **options) for name in fused]
    return Augment(steps, size, mean=mean, std=std, seed=seed, channels_last=channels_last)


def check_names(names: Sequence[str], valid: Sequence[str]) -> None:
    """Refuse a name of a step that is unknown or comes twice."""
    if isinstance(names, str):
        raise TypeError(f"names={names!r} is one string; expected a list of names: [{names!r}].")
    for place, name in enumerate(names):
        if name not in valid:
            raise ValueError(unknown_name("augment", name, valid))
        if name in names[:place]:
            raise ValueError(f"augment={name!r} is named twice; each step can be there once.")


def _three(name: str, values: Sequence[float]) -> Tensor:
    """Give three numbers the shape of an image."""
    tensor = torch.tensor(list(values), dtype=torch.float32)
    if tensor.shape != (3,):
        raise ValueError(f"{name}={values!r}; expected three numbers: red, green, blue.")
    return tensor.view(3, 1, 1)


def _signed(word: int) -> int:
    """Write 64 bits as the whole number that int64 takes them for."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def draw_keys(
    seed: int, purpose: int, n_draws: int, device: torch.device | str | None = None
) -> Tensor:
    """Make the keys of ``n_draws`` streams of random numbers on a device, for one purpose."""
    key = int(stream_key(seed, purpose)[0])
    draws = torch.arange(n_draws, dtype=torch.int64, device=device)
    return draws.mul_(_signed(_DRAW_STEP)).add_(_signed(key))


def draw_scales(highs: Sequence[float]) -> Tensor:
    """Give the scales with which `draw` fills [0, high), high itself left out."""
    return torch.tensor(list(highs), dtype=torch.float32) * _BIT


def draw(keys: Tensor, epoch: int | Tensor, index: Tensor, scales: Tensor | float = _BIT) -> Tensor:
    """Draw numbers for every index, shape (b, n_draws); in [0, 1) unless scaled.

    Pure tensor code that a CUDA graph can hold: eight kernels, however many draws. A tensor
    ``epoch`` may change between replays. Keys of several purposes can be concatenated.
    """
    if isinstance(epoch, Tensor):
        keys = torch.add(keys, epoch, alpha=_signed(_EPOCH_STEP))
    else:
        keys = keys + _signed(epoch * _EPOCH_STEP)
    state = torch.add(keys, index[:, None], alpha=_signed(_INDEX_STEP))
    # Little-endian halves: XOR of the upper into the lower one is a shift by 32 in one kernel.
    halves = state.view(torch.int32).view(*state.shape, 2)
    lower, upper = halves[..., 0], halves[..., 1]
    for _ in range(2):
        lower.bitwise_xor_(upper)
        state.mul_(_signed(_SCRAMBLE))
    return (upper & _KEPT_BITS) * scales


def uniforms(seed: int, epoch: int | Tensor, index: Tensor, purpose: int, n: int = 1) -> Tensor:
    """Draw ``n`` uniform random numbers in [0, 1) for every index.

    A number is a pure function of seed, epoch, index, purpose and place among the n: it does not
    depend on the batch, the rank or the device.

    Parameters
    ----------
    seed : int
        Seed of the training.
    epoch : int or 0-d tensor of int64
        The epoch.
    index : Tensor of int64, shape (b,)
        What tells the images of an epoch apart.
    purpose : int
        What the numbers are for; other purposes get other numbers.
    n : int
        Numbers an index.

    Returns
    -------
    Tensor of float32, shape (b, n)
        Multiples of 2**-23.

    Examples
    --------
    >>> import torch
    >>> from protail.data.augment import uniforms
    >>> u = uniforms(0, 0, torch.arange(10_000), purpose=1, n=2)
    >>> bool((u >= 0).all() and (u < 1).all() and (u.mean(0) - 0.5).abs().max() < 0.01)
    True
    """
    return draw(draw_keys(seed, purpose, n, index.device), epoch, index)


KINDS = ("mixup", "cutmix", "mixup-cutmix")
# Far from the purposes of an augment's steps.
_PURPOSE = 1 << 20


class Mixed(NamedTuple):
    """A mixed batch; its loss is ``weight * loss(labels) + (1 - weight) * loss(other_labels)``.

    Attributes
    ----------
    images : Tensor, shape (b, 3, h, w)
        Mixed images.
    labels, other_labels : Tensor of int64, shape (b,)
        Labels of the image and of its partner.
    weight : Tensor, 0-d
        Fraction of the image.

    Examples
    --------
    >>> import torch
    >>> from protail.data.augment import mix
    >>> images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    >>> mixed = mix(images, labels, torch.tensor(0.7), torch.arange(2), 0)
    >>> mixed.labels, mixed.weight
    (tensor([0, 1]), tensor(0.7000))
    """

    images: Tensor
    labels: Tensor
    other_labels: Tensor
    weight: Tensor


def mix_weights(alpha: float, n_steps: int, seed: int = 0) -> Tensor:
    """Draw what fraction the first image of a mixture is, for every step, from Beta(alpha, alpha).

    Parameters
    ----------
    alpha : float
        0 means no mixing.
    n_steps : int
        How many steps.
    seed : int
        Same seed, same fractions.

    Returns
    -------
    Tensor of float32, shape (n_steps,)
        Fractions between 0 and 1.

    Examples
    --------
    >>> from protail.data.augment import mix_weights
    >>> mix_weights(0.0, 3)
    tensor([1., 1., 1.])
    """
    whole_number("n_steps", n_steps, 0)
    Range().check("alpha", alpha)
    if alpha == 0:
        return torch.ones(n_steps)
    key = int(stream_key(seed, _PURPOSE)[0])
    weights = np.random.Generator(np.random.Philox(key=key)).beta(alpha, alpha, n_steps)
    return torch.from_numpy(weights.astype(np.float32))


def mix(
    images: Tensor,
    labels: Tensor,
    weight: Tensor,
    index: Tensor,
    epoch: int | Tensor,
    *,
    kind: str = "mixup",
    seed: int = 0,
    partners: tuple[Tensor, Tensor] | None = None,
) -> Mixed:
    """Mix every image of a batch with another one of it, or with a partner from elsewhere.

    Partners that are not given, boxes and the choice between the kinds depend on seed, epoch and
    the indices of the batch alone: another view of the same images, or another kind, gets the
    same. Pure tensor code that a CUDA graph can hold.

    Parameters
    ----------
    images : Tensor of float, shape (b, 3, h, w)
        Normalised images.
    labels : Tensor of int64, shape (b,)
        Their labels.
    weight : Tensor, 0-d or shape (2,)
        Fraction of the image, of `mix_weights`; 1 changes nothing. For "mixup-cutmix" it may be two
        fractions, that of mixup first: the one whose turn it is counts.
    index : Tensor of int64, shape (b,)
        What the augment got.
    epoch : int or 0-d tensor of int64
        What the augment got.
    kind : {"mixup", "cutmix", "mixup-cutmix"}
        Blend the images; or paste a box of the partner, one place for the whole batch, whose area
        is a fraction of ``1 - weight`` before it is clipped at the border; or either, by chance.
    seed : int
        Same seed, same partners and boxes.
    partners : tuple of Tensor, optional
        Images and labels of the partners, in the shapes of ``images`` and ``labels``; without
        them they are images of the batch.

    Returns
    -------
    Mixed
        Images, both labels and the true fraction: for CutMix that of the clipped box.

    Examples
    --------
    >>> import torch
    >>> from protail.data.augment import mix
    >>> images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    >>> mixed = mix(images, labels, torch.tensor(0.5), torch.arange(4), 0)
    >>> other = images[mixed.other_labels]
    >>> torch.allclose(mixed.images, (images + other) / 2)
    True
    """
    if kind not in KINDS:
        raise ValueError(unknown_name("kind", kind, KINDS))
    numbers = uniforms(seed, epoch, index, _PURPOSE, 4)
    if partners is None:
        order = numbers[:, 0].argsort(stable=True)
        partners = images[order], labels[order]
    others, other_labels = partners
    blended, boxed = weight.expand(2).unbind() if kind == "mixup-cutmix" else (weight, weight)
    fraction = weight = blended
    if kind != "mixup":
        outside = _outside_box(boxed, numbers[0, 1:3], (images.shape[2], images.shape[3]))
        pasted = numbers[0, 3] < 0.5 if kind == "mixup-cutmix" else numbers.new_ones(()).bool()
        fraction = torch.where(pasted, outside.float(), blended)
        weight = fraction.mean()
    mixed = torch.lerp(others, images, fraction.to(images.dtype))
    return Mixed(mixed, labels, other_labels, weight)


def _outside_box(weight: Tensor, centre: Tensor, size: tuple[int, int]) -> Tensor:
    """Mark the pixels outside a box, shape (h, w)."""
    side = (1 - weight).sqrt()
    inside = []
    for length, place in zip(size, centre.unbind(), strict=True):
        half = (side * length).floor().div(2, rounding_mode="floor")
        away = torch.arange(length, device=centre.device) - (place * length).floor()
        inside.append((away >= -half) & (away < half))
    return ~(inside[0][:, None] & inside[1])

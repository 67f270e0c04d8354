"""mixup and CutMix: two images in one, with two labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from protail._messages import unknown_name
from protail.data import stream_key, whole_number
from protail.data.augment.on_device import uniforms

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
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha={alpha!r}; expected a number of 0 (no mixing) or more.")
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

"""Where batches come from: images that live on the device, or files that workers read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from protail.data import RowSampler
from protail.data.augment import Augment, Mixed, mix
from protail.data.sets import ImageSet
from protail.methods import ImageBatch

# Images at a time where nothing is learned: enough to fill a GPU, few enough for a laptop.
CLEAN_BATCH = 1024


class RowBatch(NamedTuple):
    """Which images a step takes, named by row; everything lies on the device.

    Attributes
    ----------
    rows : Tensor of int, shape (batch,)
        Rows of the training set.
    places : Tensor of int, shape (batch,)
        Places in the stream of the epoch: the key of whatever is random about each image, so that
        an image drawn twice is augmented in two ways.
    epoch : Tensor of int, shape ()
        Which epoch it is.
    share : Tensor, shape () or (2,), or None
        Where images are mixed, how much of each is kept.
    """

    rows: Tensor
    places: Tensor
    epoch: Tensor
    share: Tensor | None = None


class Feed(Protocol):
    """Where the images of a training come from."""

    labels: Tensor

    def batches(
        self,
        sampler: RowSampler,
        batch_size: int,
        epoch: int,
        start: int = 0,
        shares: Tensor | None = None,
    ) -> Iterator[Any]:
        """Walk through an epoch from batch ``start`` on."""

    def __call__(self, batch: Any) -> ImageBatch:
        """Give the images of a batch, augmented, on the device."""

    def clean(self, images: ImageSet) -> Iterator[Tensor]:
        """Give images as they are, ready for the backbone, in large batches."""


def mix_views(
    batch: ImageBatch,
    share: Tensor,
    places: Tensor,
    epoch: int | Tensor,
    *,
    kind: str,
    seed: int,
) -> ImageBatch:
    """Mix the images of a batch, in both views where there are two.

    A second view meets the same partners with the same share. With "mixup-cutmix" the first view
    is then always blended and the second pasted, both by mixup's share, so that both hold as much
    of the partner, up to the border that clips a box. Pure tensor code.

    Parameters
    ----------
    batch : ImageBatch
        On the device, and not mixed.
    share : Tensor, shape () or (2,)
        How much of each image is kept.
    places : Tensor of int, shape (batch,)
        Places in the stream of the epoch.
    epoch : int or Tensor of int, shape ()
        Which epoch it is.
    kind : {"mixup", "cutmix", "mixup-cutmix"}
        How images are mixed.
    seed : int
        Same seed, same partners.

    Returns
    -------
    ImageBatch
        With the true share of each view.

    Examples
    --------
    >>> import torch
    >>> from protail.methods import ImageBatch
    >>> from protail.training.feeds import mix_views
    >>> views = ImageBatch(
    ...     torch.ones(2, 3, 8, 8), torch.arange(2), second=torch.ones(2, 3, 8, 8)
    ... )
    >>> share, places = torch.tensor([0.75, 0.1]), torch.arange(2)
    >>> mixed = mix_views(views, share, places, 0, kind="mixup-cutmix", seed=3)
    >>> mixed.share, mixed.second_share  # a box of 4 x 4 pixels, inside the image
    (tensor(0.7500), tensor(0.7500))
    """

    def mixed(images: Tensor, share: Tensor, kind: str) -> Mixed:
        return mix(images, batch.labels, share, places, epoch, kind=kind, seed=seed)

    if batch.second is None:
        return ImageBatch(*mixed(batch.images, share, kind))
    kinds, first_share = kind.split("-"), share.flatten()[0]
    first = mixed(batch.images, first_share, kinds[0])
    second = mixed(batch.second, first_share, kinds[-1])
    return ImageBatch(*first, second=second.images, second_share=second.weight)


class ResidentFeed:
    """Feed from images that live on the device, all of them.

    Parameters
    ----------
    images : ImageSet
        Resident images to train on.
    augment : Augment
        Pixels, places and epoch to what the backbone takes; on the device.
    mixing : {"mixup", "cutmix", "mixup-cutmix"}, optional
        How images of a batch are mixed.
    seed : int
        Of the mixtures.
    second : Augment, optional
        What makes the second view of an image.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data import InstanceSampler
    >>> from protail.data.augment import make_augment
    >>> from protail.data.sets import ImageSet
    >>> from protail.training import ResidentFeed
    >>> images = ImageSet([0] * 10, ("ant",), np.zeros((10, 3, 32, 32), np.uint8))
    >>> feed = ResidentFeed(images, make_augment(["crop", "flip"]))
    >>> batches = list(feed.batches(InstanceSampler(images.labels), 4, epoch=0))
    >>> [len(batch.rows) for batch in batches], feed(batches[0]).images.shape
    ([4, 4, 2], torch.Size([4, 3, 32, 32]))
    """

    def __init__(
        self,
        images: ImageSet,
        augment: Augment,
        mixing: str | None = None,
        seed: int = 0,
        second: Augment | None = None,
    ) -> None:
        device = augment.scale.device
        self.labels = torch.from_numpy(images.labels).to(device)
        self._pixels = torch.from_numpy(images.pixels).to(device)
        self._augment = augment
        self._mixing = mixing
        self._seed = seed
        self._second = second

    def batches(
        self,
        sampler: RowSampler,
        batch_size: int,
        epoch: int,
        start: int = 0,
        shares: Tensor | None = None,
    ) -> Iterator[RowBatch]:
        """Walk through an epoch; its rows go to the device in one piece.

        Parameters
        ----------
        sampler : RowSampler
            Says which rows come.
        batch_size : int
            Rows a step; the last may have fewer.
        epoch : int
            Which epoch, from 0.
        start : int
            The batch to begin with.
        shares : Tensor, shape (n_batches,) or (n_batches, 2), optional
            Shares of the mixtures, one a batch of the epoch.

        Yields
        ------
        RowBatch
            What `__call__` takes.
        """
        device = self._pixels.device
        rows = torch.from_numpy(sampler.epoch_indices(epoch)).to(device)
        # The ranks of a group share one stream and hold every world_size-th place of it.
        places = torch.arange(len(rows), device=device) * sampler.world_size + sampler.rank
        number = torch.tensor(epoch, device=device)
        for batch, begin in enumerate(range(start * batch_size, len(rows), batch_size), start):
            part = slice(begin, begin + batch_size)
            share = None if shares is None else shares[batch]
            yield RowBatch(rows[part], places[part], number, share)

    def __call__(self, batch: RowBatch) -> ImageBatch:
        """Give the images of a batch; pure tensor code on the device.

        Parameters
        ----------
        batch : RowBatch
            Which images.

        Returns
        -------
        ImageBatch
            What a method takes.
        """
        pixels = self._pixels[batch.rows]
        images = self._augment(pixels, batch.places, batch.epoch)
        augment = self._second
        second = None if augment is None else augment(pixels, batch.places, batch.epoch)
        views = ImageBatch(images, self.labels[batch.rows], second=second)
        if self._mixing is None or batch.share is None:
            return views
        return mix_views(
            views,
            batch.share,
            batch.places,
            batch.epoch,
            kind=self._mixing,
            seed=self._seed,
        )

    def clean(self, images: ImageSet) -> Iterator[Tensor]:
        """Give images as they are, ready for the backbone.

        Parameters
        ----------
        images : ImageSet
            Resident images, these or others.

        Yields
        ------
        Tensor
            Normalised images on the device.
        """
        pixels = torch.from_numpy(images.pixels)
        for begin in range(0, len(pixels), CLEAN_BATCH):
            part = pixels[begin : begin + CLEAN_BATCH]
            yield self._augment.clean(part.to(self._pixels.device))

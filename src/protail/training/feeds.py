"""Where batches come from: images that live on the device, or files that workers read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from protail._stopping import check_stop
from protail.data import RowSampler
from protail.data.augment import Augment
from protail.data.sets import ImageSet
from protail.methods import ImageBatch
from protail.training.mixtures import Partners, mix_views

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
    partners : Tensor of int, shape (batch,), or None
        Rows of the images that these are mixed with; None where they are mixed with one another.
    """

    rows: Tensor
    places: Tensor
    epoch: Tensor
    share: Tensor | None = None
    partners: Tensor | None = None


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


class ResidentFeed:
    """Feed from images that live on the device, all of them.

    Parameters
    ----------
    images : ImageSet
        Resident images to train on.
    augment : Augment
        Pixels, places and epoch to what the backbone takes; on the device.
    mixing : {"mixup", "cutmix", "mixup-cutmix"}, optional
        How images are mixed.
    seed : int
        Of the mixtures.
    second : Augment, optional
        What makes the second view of an image.
    partners : Partners, optional
        Whom images are mixed with; by default one another, within a batch.

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
        partners: Partners[Augment] | None = None,
    ) -> None:
        device = augment.scale.device
        self.labels = torch.from_numpy(images.labels).to(device)
        self._pixels = torch.from_numpy(images.pixels).to(device)
        self._augment = augment
        self._views = [augment] if second is None else [augment, second]
        self._mixing = mixing
        self._seed = seed
        self._partners = partners

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
        others = None
        if self._partners is not None and shares is not None:
            others = torch.from_numpy(self._partners.rows(sampler, epoch)).to(device)
        for batch, begin in enumerate(range(start * batch_size, len(rows), batch_size), start):
            check_stop()
            part = slice(begin, begin + batch_size)
            share = None if shares is None else shares[batch]
            partners = None if others is None else others[part]
            yield RowBatch(rows[part], places[part], number, share, partners)

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
        images = self._augmented(batch.rows, batch, self._views)
        if self._mixing is None or batch.share is None:
            return images
        partners = None
        if self._partners is not None and batch.partners is not None:
            partners = self._augmented(batch.partners, batch, self._partners.views)
        return mix_views(
            images,
            batch.share,
            batch.places,
            batch.epoch,
            kind=self._mixing,
            seed=self._seed,
            partners=partners,
        )

    def _augmented(self, rows: Tensor, batch: RowBatch, views: Sequence[Augment]) -> ImageBatch:
        pixels = self._pixels[rows]
        images, *others = (view(pixels, batch.places, batch.epoch) for view in views)
        return ImageBatch(images, self.labels[rows], second=others[0] if others else None)

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
            check_stop()
            part = pixels[begin : begin + CLEAN_BATCH]
            yield self._augment.clean(part.to(self._pixels.device))

"""Images in files, read and augmented by workers beside the training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from protail.data import RowSampler
from protail.data.augment import (
    InputSpec,
    LoaderTransform,
    make_augment,
    make_loader_transform,
    mix,
)
from protail.data.sets import ImageSet
from protail.methods import ImageBatch
from protail.training.feeds import CLEAN_BATCH, Feed, ResidentFeed

# Images of files are large: the batches in which nothing is learned are smaller.
_CLEAN_FILES = CLEAN_BATCH // 4


class LoaderFeed:
    """Feed from image files, through workers.

    Parameters
    ----------
    images : ImageSet
        Files to train on.
    transform : LoaderTransform
        One image, its place and the epoch to what the backbone takes.
    device : torch.device
        Where batches are wanted.
    workers : int, optional
        Processes that read; by default one a core, at most 16.
    mixing : {"mixup", "cutmix", "mixup-cutmix"}, optional
        How images of a batch are mixed.
    seed : int
        Of the mixtures.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: LoaderTransform,
        device: torch.device,
        workers: int | None = None,
        mixing: str | None = None,
        seed: int = 0,
    ) -> None:
        self.labels = torch.from_numpy(images.labels).to(device)
        self._images = images
        self._transform = transform
        self._device = device
        self._workers = min(16, os.cpu_count() or 1) if workers is None else workers
        self._mixing = mixing
        self._seed = seed

    def batches(
        self,
        sampler: RowSampler,
        batch_size: int,
        epoch: int,
        start: int = 0,
        shares: Tensor | None = None,
    ) -> Iterator[ImageBatch]:
        """Walk through an epoch from batch ``start`` on.

        Parameters
        ----------
        sampler : RowSampler
            Says which images come.
        batch_size : int
            Images a step; the last may have fewer.
        epoch : int
            Which epoch, from 0.
        start : int
            The batch to begin with.
        shares : Tensor, shape (n_batches,) or (n_batches, 2), optional
            Shares of the mixtures, one a batch of the epoch.

        Yields
        ------
        ImageBatch
            Images that workers have augmented, on the CPU.
        """
        rows = sampler.epoch_indices(epoch)
        places = np.arange(len(rows)) * sampler.world_size + sampler.rank
        first = start * batch_size
        reader = _Reader(self._images, rows[first:], places[first:], self._transform, epoch)
        loaded = self._load(reader, batch_size)
        for number, (images, chosen, keys) in enumerate(loaded, start):
            labels = self.labels[chosen.to(self._device)]
            if self._mixing is None or shares is None:
                yield ImageBatch(images, labels)
                continue
            moved = images.to(self._device, non_blocking=True)
            keys = keys.to(self._device)
            share = shares[number]
            kind, seed = self._mixing, self._seed
            yield ImageBatch(*mix(moved, labels, share, keys, epoch, kind=kind, seed=seed))

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        """Move a batch to the device.

        Parameters
        ----------
        batch : ImageBatch
            What workers made.

        Returns
        -------
        ImageBatch
            The same on the device.
        """
        return batch._replace(images=batch.images.to(self._device, non_blocking=True))

    def clean(self, images: ImageSet) -> Iterator[Tensor]:
        """Give images as they are, ready for the backbone.

        Parameters
        ----------
        images : ImageSet
            Files, these or others.

        Yields
        ------
        Tensor
            Resized, cut and normalised images on the device.
        """
        rows = np.arange(len(images))
        for part, _, _ in self._load(_Reader(images, rows, rows, self._transform), _CLEAN_FILES):
            yield part.to(self._device, non_blocking=True)

    def _load(self, reader: _Reader, batch_size: int) -> DataLoader[tuple[Tensor, int, int]]:
        return DataLoader(
            reader,
            batch_size,
            num_workers=0 if len(reader) == 1 else self._workers,
            pin_memory=self._device.type == "cuda",
            persistent_workers=False,
        )


class _Reader(Dataset[tuple[Tensor, int, int]]):
    """Read image after image of a stream; without an epoch, as they are."""

    def __init__(
        self,
        images: ImageSet,
        rows: NDArray[np.int64],
        places: NDArray[np.int64],
        transform: LoaderTransform,
        epoch: int | None = None,
    ) -> None:
        self._images, self._rows, self._places = images, rows, places
        self._transform, self._epoch = transform, epoch

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Tensor, int, int]:
        row, place = int(self._rows[number]), int(self._places[number])
        image = self._images.image(row)
        if self._epoch is None:
            return self._transform.clean(image), row, place
        return self._transform(image, place, self._epoch), row, place


def make_feed(
    images: ImageSet,
    augment: Sequence[str],
    *,
    seed: int,
    device: torch.device,
    mixing: str | None = None,
    workers: int | None = None,
    backbone: nn.Module | None = None,
) -> Feed:
    """Make the feed that suits images: on the device where they are resident, else by workers.

    Parameters
    ----------
    images : ImageSet
        What to train on.
    augment : sequence of str
        What happens to an image.
    seed : int
        Same seed, same images.
    device : torch.device
        Where batches are wanted.
    mixing : {"mixup", "cutmix", "mixup-cutmix"}, optional
        How images of a batch are mixed.
    workers : int, optional
        Processes that read files.
    backbone : nn.Module, optional
        What the images are for. Those in files are resized and normalised as its ``input_spec``
        says, where it has one.

    Returns
    -------
    Feed
        Gives batches.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from protail.data.sets import ImageSet
    >>> from protail.training.loader import make_feed
    >>> images = ImageSet([0, 0], ("ant",), np.zeros((2, 3, 32, 32), np.uint8))
    >>> feed = make_feed(images, ["flip"], seed=0, device=torch.device("cpu"))
    >>> next(feed.clean(images)).shape
    torch.Size([2, 3, 32, 32])
    """
    if images.pixels is None:
        inputs = getattr(backbone, "input_spec", InputSpec())
        transform = make_loader_transform(augment, inputs, seed=seed)
        return LoaderFeed(images, transform, device, workers, mixing, seed)
    height, width = images.pixels.shape[2:]
    resident = make_augment(
        augment, size=(height, width), seed=seed, channels_last=device.type == "cuda"
    )
    return ResidentFeed(images, resident.to(device), mixing, seed)

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
)
from protail.data.sets import ImageSet
from protail.methods import ImageBatch
from protail.training._randomness import derived_seed
from protail.training.feeds import CLEAN_BATCH, Feed, ResidentFeed, mix_views

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
    second : LoaderTransform, optional
        What makes the second view of an image.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: LoaderTransform,
        device: torch.device,
        workers: int | None = None,
        mixing: str | None = None,
        seed: int = 0,
        second: LoaderTransform | None = None,
    ) -> None:
        self.labels = torch.from_numpy(images.labels).to(device)
        self._images = images
        self._transform = transform
        self._device = device
        self._workers = min(16, os.cpu_count() or 1) if workers is None else workers
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
        views = [self._transform] if self._second is None else [self._transform, self._second]
        reader = _Reader(self._images, rows[first:], places[first:], views, epoch)
        loaded = self._load(reader, batch_size)
        for number, ((images, *others), chosen, keys) in enumerate(loaded, start):
            labels = self.labels[chosen.to(self._device)]
            batch = ImageBatch(images, labels, second=others[0] if others else None)
            if self._mixing is None or shares is None:
                yield batch
                continue
            yield mix_views(
                self(batch),
                shares[number],
                keys.to(self._device),
                epoch,
                kind=self._mixing,
                seed=self._seed,
            )

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
        moved = batch._replace(images=batch.images.to(self._device, non_blocking=True))
        if batch.second is None:
            return moved
        return moved._replace(second=batch.second.to(self._device, non_blocking=True))

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
        reader = _Reader(images, rows, rows, [self._transform])
        for (part,), _, _ in self._load(reader, _CLEAN_FILES):
            yield part.to(self._device, non_blocking=True)

    def _load(self, reader: _Reader, batch_size: int) -> DataLoader[tuple[list[Tensor], int, int]]:
        return DataLoader(
            reader,
            batch_size,
            num_workers=0 if len(reader) == 1 else self._workers,
            pin_memory=self._device.type == "cuda",
            persistent_workers=False,
        )


class _Reader(Dataset[tuple[list[Tensor], int, int]]):
    """Read image after image of a stream, in each view; without an epoch, as they are."""

    def __init__(
        self,
        images: ImageSet,
        rows: NDArray[np.int64],
        places: NDArray[np.int64],
        views: Sequence[LoaderTransform],
        epoch: int | None = None,
    ) -> None:
        self._images, self._rows, self._places = images, rows, places
        self._views, self._epoch = views, epoch

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[list[Tensor], int, int]:
        row, place = int(self._rows[number]), int(self._places[number])
        image = self._images.image(row)
        if self._epoch is None:
            return [view.clean(image) for view in self._views], row, place
        epoch = self._epoch
        return [view(image, place, epoch) for view in self._views], row, place


def make_feed(
    images: ImageSet,
    augment: Sequence[str],
    *,
    seed: int,
    device: torch.device,
    mixing: str | None = None,
    second: Sequence[str] = (),
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
    second : sequence of str
        What happens to an image in its second view; empty where there is none.
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
    # Of a seed of its own: two views of an image have nothing in common but the image.
    seeds = {"first": seed, "second": derived_seed(seed, "second view")}
    names = {"first": augment, "second": second} if second else {"first": augment}
    if images.pixels is None:
        inputs = getattr(backbone, "input_spec", InputSpec())
        read = {
            view: make_loader_transform(names[view], inputs, seed=seeds[view]) for view in names
        }
        return LoaderFeed(
            images, read["first"], device, workers, mixing, seed, second=read.get("second")
        )
    height, width = images.pixels.shape[2:]
    made = {
        view: make_augment(
            names[view],
            size=(height, width),
            seed=seeds[view],
            channels_last=device.type == "cuda",
        ).to(device)
        for view in names
    }
    return ResidentFeed(images, made["first"], mixing, seed, second=made.get("second"))

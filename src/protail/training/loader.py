"""Images in files, read and augmented by workers beside the training."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, StackDataset

from protail._stopping import check_stop
from protail.data import RowSampler
from protail.data.augment import (
    Augment,
    InputSpec,
    LoaderTransform,
    make_augment,
    make_loader_transform,
)
from protail.data.sets import ImageSet
from protail.methods import ImageBatch
from protail.training._randomness import derived_seed
from protail.training.feeds import CLEAN_BATCH, Feed, ResidentFeed
from protail.training.mixtures import Partners, View, make_partners, mix_views

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
        How images are mixed.
    seed : int
        Of the mixtures.
    second : LoaderTransform, optional
        What makes the second view of an image.
    partners : Partners, optional
        Whom images are mixed with; by default one another, within a batch. The same workers read
        them.
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
        partners: Partners[LoaderTransform] | None = None,
    ) -> None:
        self.labels = torch.from_numpy(images.labels).to(device)
        self._images = images
        self._transform = transform
        self._device = device
        self._workers = min(16, os.cpu_count() or 1) if workers is None else workers
        self._views = [transform] if second is None else [transform, second]
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
        streams = [(sampler.epoch_indices(epoch), self._views)]
        places = np.arange(len(sampler)) * sampler.world_size + sampler.rank
        mixing = None if shares is None else self._mixing
        if self._partners is not None and mixing is not None:
            streams.append((self._partners.rows(sampler, epoch), self._partners.views))
        first = start * batch_size
        readers = (
            _Reader(self._images, rows[first:], places[first:], views, epoch)
            for rows, views in streams
        )
        loaded = self._load(StackDataset(*readers), batch_size)
        for number, read in enumerate(loaded, start):
            batch, *partners = (self._read_batch(*part) for part in read)
            if mixing is None or shares is None:
                yield batch
                continue
            _, _, keys = read[0]
            yield mix_views(
                self(batch),
                shares[number],
                keys.to(self._device),
                epoch,
                kind=mixing,
                seed=self._seed,
                partners=self(partners[0]) if partners else None,
            )

    def _read_batch(self, views: list[Tensor], rows: Tensor, places: Tensor) -> ImageBatch:
        images, *others = views
        labels = self.labels[rows.to(self._device)]
        return ImageBatch(images, labels, second=others[0] if others else None)

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

    def _load(self, reader: _Reader | StackDataset[Any], batch_size: int) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            reader,
            batch_size,
            num_workers=0 if len(reader) == 1 else self._workers,
            pin_memory=self._device.type == "cuda",
            persistent_workers=False,
            worker_init_fn=_leave_ctrl_c_to_the_loader,
        )
        for batch in loader:
            check_stop()
            yield batch


def _leave_ctrl_c_to_the_loader(worker: int) -> None:
    """Go on reading until the process that loads has come to the end of its step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    partners: str = "batch",
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
        How images are mixed.
    second : sequence of str
        What happens to an image in its second view; empty where there is none.
    partners : {"batch", "instance", "class-balanced", "square-root"}
        Whom images are mixed with: another of the batch, or what a sampler draws from all.
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
    names = (augment, second) if second else (augment,)
    if images.pixels is None:
        inputs = getattr(backbone, "input_spec", InputSpec())
        read = partial(_make_views, partial(make_loader_transform, inputs=inputs), names)
        transform, *other_view = read(seed)
        return LoaderFeed(
            images,
            transform,
            device,
            workers,
            mixing,
            seed,
            second=other_view[0] if other_view else None,
            partners=make_partners(partners, images.labels, read, seed),
        )
    height, width = images.pixels.shape[2:]

    def on_device(names: Sequence[str], seed: int) -> Augment:
        last = device.type == "cuda"
        return make_augment(names, size=(height, width), seed=seed, channels_last=last).to(device)

    made = partial(_make_views, on_device, names)
    first, *others = made(seed)
    return ResidentFeed(
        images,
        first,
        mixing,
        seed,
        second=others[0] if others else None,
        partners=make_partners(partners, images.labels, made, seed),
    )


def _make_views(make: Callable[..., View], names: Sequence[Sequence[str]], seed: int) -> list[View]:
    """Make each view by a seed of its own: they have nothing in common but the image."""
    seeds = (seed, derived_seed(seed, "second view"))
    return [make(each, seed=own) for each, own in zip(names, seeds, strict=False)]

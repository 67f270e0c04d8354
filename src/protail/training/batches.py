"""Where the batches of a training come from: which images, augmented and mixed how.

Images in memory are augmented on the device, in the step; those in files by worker processes.
Everything random about an image depends on seed, epoch and its place in the stream alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from protail._messages import unknown_name
from protail._stopping import check_stop
from protail.data import RowSampler, make_sampler, stream_key, whole_number
from protail.data.augment import (
    Augment,
    InputSpec,
    LoaderTransform,
    make_augment,
    make_loader_transform,
    mix,
    mix_weights,
)
from protail.data.images import ImageSet
from protail.methods import ImageBatch
from protail.training.settings import PartnerSource, RepresentationSettings

Rows = NDArray[np.int64]

# Images at a time where nothing is learned: enough to fill a GPU, few enough for a laptop.
CLEAN_BATCH = 1024
# Images of files are large: their batches are smaller.
_CLEAN_FILES = CLEAN_BATCH // 4
# Between the passes of partners that one epoch takes: more than any training has epochs.
_FAR = 1 << 32


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Make a seed, from 0 to below 2^63, for one purpose out of the seed of everything.

    Examples
    --------
    >>> from protail.training.batches import derived_seed
    >>> derived_seed(0, "representation")
    7563898709387865231
    """
    parts: list[int] = [whole_number("seed", seed, 0)]
    for part in purpose:
        parts += [part] if isinstance(part, int) else [*part.encode(), -1]
    return int(stream_key(*parts)[0]) >> 1


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
    fraction : Tensor, shape () or (2,), or None
        Where images are mixed, how much of each is kept.
    partners : Tensor of int, shape (batch,), or None
        Rows of the images that these are mixed with; None where they are mixed with one another.
    weight : float or None
        Of the loss, where parts of a batch differ in size: what makes the mean over all parts that
        over all images. A part without images has one of another part, of no weight.
    """

    rows: Tensor
    places: Tensor
    epoch: Tensor
    fraction: Tensor | None = None
    partners: Tensor | None = None
    weight: float | None = None


@dataclass(frozen=True)
class Partners:
    """Draw the images that others are mixed with from all of them, by a sampler of one process.

    ``views`` say what happens to a partner in each view; they have a seed of their own, so that an
    image that is its own partner is augmented another way.
    """

    sampler: RowSampler
    views: Sequence[Any]

    def rows(self, sampler: RowSampler, epoch: int) -> Rows:
        """Draw the partner of every image of an epoch that a sampler draws.

        Each place of the stream has a partner, whichever process holds it.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.data import ClassBalancedSampler, InstanceSampler
        >>> from protail.training.batches import Partners
        >>> labels = np.repeat([0, 1], [90, 10])
        >>> partners = Partners(ClassBalancedSampler(labels), views=[])
        >>> np.bincount(labels[partners.rows(InstanceSampler(labels), epoch=0)])
        array([50, 50])
        """
        n = len(sampler) * sampler.world_size
        # A pass of this sampler may be shorter than an epoch of the other.
        n_passes = max(1, -(-n // len(self.sampler)))
        passes = [self.sampler.epoch_indices(epoch + each * _FAR) for each in range(n_passes)]
        return np.concatenate(passes)[:n][sampler.rank :: sampler.world_size]


class Loader:
    """What loaders of images in memory and in files have in common."""

    def __init__(
        self,
        images: ImageSet,
        views: Sequence[Any],
        device: torch.device,
        mixing: str | None = None,
        seed: int = 0,
        partners: Partners | None = None,
    ) -> None:
        self.labels = torch.from_numpy(images.labels).to(device)
        self._images, self._views, self._device = images, views, device
        self._mixing, self._seed, self._partners = mixing, seed, partners
        self._pixels: Any = images.pixels
        if images.pixels is not None:
            self._pixels = torch.from_numpy(images.pixels).to(device)

    def batches(
        self,
        sampler: RowSampler,
        batch_size: int,
        epoch: int,
        *,
        fractions: Tensor | None = None,
        n: int | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[Any]:
        """Walk through an epoch.

        Parameters
        ----------
        sampler : RowSampler
            Says which rows come, to one process.
        batch_size : int
            Rows a step, of all parts; the last may have fewer.
        epoch : int
            Which epoch, from 0.
        fractions : Tensor, shape (n_batches,) or (n_batches, 2), optional
            How much of each image is kept in the mixtures of each batch; without, none is mixed.
        n : int, optional
            How many images of the epoch; by default all.
        part : (int, int)
            Which of how many parts of each batch to give: parts of (0, 2) and (1, 2) are the whole.

        Yields
        ------
        object
            What `__call__` takes.
        """
        rows = torch.from_numpy(sampler.epoch_indices(epoch)[:n])
        first, n_parts = part
        places, weight = torch.arange(first, len(rows), n_parts), None
        if (n_last := len(rows) % batch_size) % n_parts:
            n_own = len(range(first, n_last, n_parts))
            weight = n_own * n_parts / n_last
            if n_own == 0:  # all parts take as many steps
                places = torch.cat([places, torch.tensor([len(rows) - n_last])])
        partners = None
        if self._partners is not None and fractions is not None:
            partners = torch.from_numpy(self._partners.rows(sampler, epoch)[:n])[places]
        whole = RowBatch(rows[places], places, torch.tensor(epoch), fractions, partners, weight)
        return self._split(whole, batch_size // n_parts)

    def _split(self, whole: RowBatch, batch_size: int) -> Iterator[Any]:
        """Cut an epoch into batches; it goes to the device in one piece."""
        rows, places, epoch = (each.to(self._device) for each in whole[:3])
        others = None if whole.partners is None else whole.partners.to(self._device)
        for number, begin in enumerate(range(0, len(rows), batch_size)):
            check_stop()
            part = slice(begin, begin + batch_size)
            fraction = None if whole.fraction is None else whole.fraction[number]
            partners = None if others is None else others[part]
            weight = whole.weight if begin + batch_size >= len(rows) else None
            yield RowBatch(rows[part], places[part], epoch, fraction, partners, weight)

    def _labelled(self, rows: Tensor, views: Iterable[Tensor]) -> ImageBatch:
        images, *others = views
        return ImageBatch(images, self.labels[rows], second=others[0] if others else None)

    def _mixed(
        self, batch: RowBatch, images: ImageBatch, partners: ImageBatch | None
    ) -> ImageBatch:
        if self._mixing is None or batch.fraction is None:
            return images
        how: dict[str, Any] = {"kind": self._mixing, "seed": self._seed, "partners": partners}
        return mix_views(images, batch.fraction, batch.places, batch.epoch, **how)


class ResidentLoader(Loader):
    """Load batches of images that live in memory, all of them on the device.

    Parameters
    ----------
    images : ImageSet
        Resident images to train on.
    views : sequence of Augment
        Pixels, places and epoch to what the backbone takes, for one view of an image or for two.
    device : torch.device
        Where images live and are augmented.
    mixing : {"mixup", "cutmix", "mixup-cutmix"}, optional
        How images are mixed.
    seed : int
        Of the mixtures.
    partners : Partners, optional
        What draws the images that others are mixed with; by default those of the same batch.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from protail.data import InstanceSampler
    >>> from protail.data.augment import make_augment
    >>> from protail.data.images import ImageSet
    >>> from protail.training import ResidentLoader
    >>> images = ImageSet([0] * 10, ("ant",), np.zeros((10, 3, 32, 32), np.uint8))
    >>> loader = ResidentLoader(images, [make_augment(["crop", "flip"])], torch.device("cpu"))
    >>> batches = list(loader.batches(InstanceSampler(images.labels), 4, epoch=0))
    >>> [len(batch.rows) for batch in batches], loader(batches[0]).images.shape
    ([4, 4, 2], torch.Size([4, 3, 32, 32]))
    """

    def __call__(self, batch: RowBatch) -> ImageBatch:
        """Give the images of a batch, augmented and mixed; pure tensor code on the device."""
        partners = None
        if self._partners is not None and batch.partners is not None:
            partners = self._augmented(batch.partners, batch, self._partners.views)
        return self._mixed(batch, self._augmented(batch.rows, batch, self._views), partners)

    def _augmented(self, rows: Tensor, batch: RowBatch, views: Sequence[Augment]) -> ImageBatch:
        pixels = self._pixels[rows]
        return self._labelled(rows, [view(pixels, batch.places, batch.epoch) for view in views])

    def clean(self, images: ImageSet) -> Iterator[Tensor]:
        """Give resident images, these or others, as they are: normalised, on the device."""
        pixels = torch.from_numpy(images.pixels)
        for begin in range(0, len(pixels), CLEAN_BATCH):
            check_stop()
            part = pixels[begin : begin + CLEAN_BATCH]
            yield self._views[0].clean(part.to(self._device))


class FileLoader(Loader):
    """Load batches of images in files, which worker processes read and augment, partners too."""

    workers = min(16, os.cpu_count() or 1)

    def _split(self, whole: RowBatch, batch_size: int) -> Iterator[tuple[RowBatch, Any]]:
        """Give batches with what workers have read for each."""
        streams = [(whole.rows, self._views)]
        if self._partners is not None and whole.partners is not None:
            streams.append((whole.partners, self._partners.views))
        reader = _Reader(self._images, streams, whole.places, int(whole.epoch))
        return zip(super()._split(whole, batch_size), self._load(reader, batch_size), strict=True)

    def __call__(self, batch: tuple[RowBatch, list[list[Tensor]]]) -> ImageBatch:
        """Move the images of a batch to the device and mix them."""
        named, read = batch
        images = self._labelled(named.rows, self._finished(read[0]))
        partners = None
        if named.partners is not None:
            partners = self._labelled(named.partners, self._finished(read[1]))
        return self._mixed(named, images, partners)

    def clean(self, images: ImageSet) -> Iterator[Tensor]:
        """Give images in files, these or others, as they are: resized, cut and normalised."""
        rows = torch.arange(len(images))
        reader = _Reader(images, [(rows, self._views[:1])], rows)
        for (levels,) in self._load(reader, _CLEAN_FILES):
            yield self._finished(levels)[0]

    def _finished(self, views: list[Tensor]) -> list[Tensor]:
        """Normalise what workers have read, on the device; partners look as images do."""
        there = (levels.to(self._device, non_blocking=True) for levels in views)
        return [view.finish(levels) for view, levels in zip(self._views, there, strict=False)]

    def _load(self, reader: _Reader, batch_size: int) -> Iterator[list[list[Tensor]]]:
        loader: DataLoader[Any] = DataLoader(
            reader,
            batch_size,
            num_workers=0 if len(reader) == 1 else self.workers,
            pin_memory=self._device.type == "cuda",
            worker_init_fn=leave_ctrl_c_to_the_loader,
        )
        for batch in loader:
            check_stop()
            yield batch


def leave_ctrl_c_to_the_loader(worker: int) -> None:
    """Go on reading until the process that loads has come to the end of its step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Reader(Dataset[list[list[Tensor]]]):
    """Read the images of streams side by side, in each view; without an epoch, as they are."""

    def __init__(
        self,
        images: ImageSet,
        streams: Sequence[tuple[Tensor, Sequence[LoaderTransform]]],
        places: Tensor,
        epoch: int | None = None,
    ) -> None:
        self._images, self._streams, self._places = images, streams, places
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> list[list[Tensor]]:
        read, place, epoch = [], int(self._places[number]), self._epoch
        for rows, views in self._streams:
            image = self._images.image(int(rows[number]))
            read.append([view.levels(image, place, epoch) for view in views])
        return read


def make_loader(
    images: ImageSet,
    augment: Sequence[str],
    *,
    seed: int,
    device: torch.device,
    mixing: str | None = None,
    second: Sequence[str] = (),
    partners: str = "batch",
    backbone: nn.Module | None = None,
) -> ResidentLoader | FileLoader:
    """Make the loader that suits images: on the device where they are resident, else by workers.

    ``second`` is the augment of the second view, where there is one, and ``partners`` says where
    the images come from that others are mixed with. Images in files are resized and normalised as
    the ``input_spec`` of the backbone says, where it has one.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from protail.data.images import ImageSet
    >>> from protail.training.batches import make_loader
    >>> images = ImageSet([0, 0], ("ant",), np.zeros((2, 3, 32, 32), np.uint8))
    >>> loader = make_loader(images, ["flip"], seed=0, device=torch.device("cpu"))
    >>> next(loader.clean(images)).shape
    torch.Size([2, 3, 32, 32])
    """

    def make_views(seed: int) -> list[Any]:
        """Make each view by a seed of its own: they have nothing in common but the image."""
        seeded = [(augment, seed)]
        seeded += [(second, derived_seed(seed, "second view"))] if second else []
        if images.pixels is None:
            inputs = getattr(backbone, "input_spec", InputSpec())
            return [make_loader_transform(names, seed=own, inputs=inputs) for names, own in seeded]
        height, width = images.pixels.shape[2:]
        how: dict[str, Any] = {"size": (height, width), "channels_last": device.type == "cuda"}
        # CIFAR's, and in larger images as much of them.
        how |= {"pad": max(4, min(height, width) // 8), "cutout": max(16, min(height, width) // 2)}
        return [make_augment(names, seed=own, **how).to(device) for names, own in seeded]

    if partners not in get_args(PartnerSource):
        raise ValueError(unknown_name("partners", partners, get_args(PartnerSource)))
    views, drawn = make_views(seed), None
    if partners != "batch":
        own = derived_seed(seed, "partners")
        drawn = Partners(make_sampler(partners, images.labels, seed=own), make_views(own))
    kind = FileLoader if images.pixels is None else ResidentLoader
    return kind(images, views, device, mixing, seed, drawn)


def mixing_alphas(settings: RepresentationSettings) -> dict[str, float]:
    """Say in which ways a stage mixes images, and with which alpha each.

    Examples
    --------
    >>> from protail.training import RepresentationSettings
    >>> from protail.training.batches import mixing_alphas
    >>> mixing_alphas(RepresentationSettings(cutmix=1.0))
    {'cutmix': 1.0}
    """
    kinds = {"mixup": settings.mixup, "cutmix": settings.cutmix}
    return {kind: alpha for kind, alpha in kinds.items() if alpha}


def draw_fractions(settings: RepresentationSettings, n_steps: int, seed: int) -> Tensor | None:
    """Draw how much of each image is kept: a number a step, or one for each kind of mixture.

    Examples
    --------
    >>> from protail.training import RepresentationSettings
    >>> from protail.training.batches import draw_fractions
    >>> draw_fractions(RepresentationSettings(mixup=0.2, cutmix=1.0), 5, seed=0).shape
    torch.Size([5, 2])
    """
    series = [
        mix_weights(alpha, n_steps, derived_seed(seed, kind))
        for kind, alpha in mixing_alphas(settings).items()
    ]
    if not series:
        return None
    return series[0] if len(series) == 1 else torch.stack(series, 1)


def mix_views(
    batch: ImageBatch,
    fraction: Tensor,
    places: Tensor,
    epoch: int | Tensor,
    *,
    kind: str,
    seed: int,
    partners: ImageBatch | None = None,
) -> ImageBatch:
    """Mix the images of a batch, in both views where there are two. Pure tensor code.

    Without ``partners`` they are mixed with one another. A second view meets the same partners
    with the same fraction. With "mixup-cutmix" the first view is then always blended and the second
    pasted, both by mixup's fraction, so that both hold as much of the partner, up to the border
    that clips a box.

    Examples
    --------
    >>> import torch
    >>> from protail.methods import ImageBatch
    >>> from protail.training.batches import mix_views
    >>> views = ImageBatch(
    ...     torch.ones(2, 3, 8, 8), torch.arange(2), second=torch.ones(2, 3, 8, 8)
    ... )
    >>> fraction, places = torch.tensor([0.75, 0.1]), torch.arange(2)
    >>> mixed = mix_views(views, fraction, places, 0, kind="mixup-cutmix", seed=3)
    >>> mixed.fraction, mixed.second_fraction  # a box of 4 x 4 pixels, inside the image
    (tensor(0.7500), tensor(0.7500))
    """
    where: dict[str, Any] = {"index": places, "epoch": epoch, "seed": seed}
    pairs: list[Any] = [None, None]
    if partners is not None:
        pairs = [(view, partners.labels) for view in (partners.images, partners.second)]
    if batch.second is None:
        mixed = mix(batch.images, batch.labels, fraction, kind=kind, partners=pairs[0], **where)
        return ImageBatch(*mixed)
    kinds, fraction = kind.split("-"), fraction.flatten()[0]
    mixed = mix(batch.images, batch.labels, fraction, kind=kinds[0], partners=pairs[0], **where)
    second = mix(batch.second, batch.labels, fraction, kind=kinds[-1], partners=pairs[1], **where)
    return ImageBatch(*mixed, second=second.images, second_fraction=second.weight)

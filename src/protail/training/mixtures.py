"""Mixtures of images: in which shares, with which partners, in one view or in two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from typing import Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail._messages import unknown_name
from protail.data import RowSampler, make_sampler
from protail.data.augment import Mixed, mix, mix_weights
from protail.methods import ImageBatch
from protail.training._randomness import derived_seed
from protail.training.settings import PartnerSource, RepresentationSettings

View = TypeVar("View")

# Between the passes of partners that one epoch takes: more than any training has epochs.
_FAR = 1 << 32


def mixing_alphas(settings: RepresentationSettings) -> dict[str, float]:
    """Say in which ways a stage mixes images, and with which alpha each.

    Parameters
    ----------
    settings : RepresentationSettings
        What the stage hangs on.

    Returns
    -------
    dict of str to float
        By kind; empty where nothing is mixed.

    Examples
    --------
    >>> from protail.training.mixtures import mixing_alphas
    >>> from protail.training.settings import RepresentationSettings
    >>> mixing_alphas(RepresentationSettings(cutmix=1.0))
    {'cutmix': 1.0}
    """
    kinds = {"mixup": settings.mixup, "cutmix": settings.cutmix}
    return {kind: alpha for kind, alpha in kinds.items() if alpha}


def draw_shares(settings: RepresentationSettings, n_steps: int, seed: int) -> Tensor | None:
    """Draw the shares of a training's mixtures: one a step, or one for each kind a step.

    Parameters
    ----------
    settings : RepresentationSettings
        How images are mixed.
    n_steps : int
        Steps of the whole training.
    seed : int
        Same seed, same shares.

    Returns
    -------
    Tensor, shape (n_steps,) or (n_steps, 2), or None
        None where nothing is mixed.

    Examples
    --------
    >>> from protail.training.mixtures import draw_shares
    >>> from protail.training.settings import RepresentationSettings
    >>> draw_shares(RepresentationSettings(mixup=0.2, cutmix=1.0), 5, seed=0).shape
    torch.Size([5, 2])
    """
    series = [
        mix_weights(alpha, n_steps, derived_seed(seed, kind))
        for kind, alpha in mixing_alphas(settings).items()
    ]
    if not series:
        return None
    return series[0] if len(series) == 1 else torch.stack(series, 1)


@dataclass(frozen=True)
class Partners(Generic[View]):
    """Draw whom the images of a stream are mixed with from all of them, by a sampler.

    Attributes
    ----------
    sampler : RowSampler
        Of one process, whoever asks.
    views : list of Augment or LoaderTransform
        What happens to a partner in each view; of a seed of its own, so that an image that is
        its own partner is augmented another way.
    """

    sampler: RowSampler
    views: list[View]

    def rows(self, sampler: RowSampler, epoch: int) -> NDArray[np.int64]:
        """Draw the partner of every image of an epoch.

        Parameters
        ----------
        sampler : RowSampler
            Draws the images. Each place of its stream has a partner, whichever process holds it.
        epoch : int
            Which epoch, from 0.

        Returns
        -------
        ndarray of int64, shape (len(sampler),)
            Rows of the training set.

        Examples
        --------
        >>> import numpy as np
        >>> from protail.data import ClassBalancedSampler, InstanceSampler
        >>> from protail.training.mixtures import Partners
        >>> labels = np.repeat([0, 1], [90, 10])
        >>> partners = Partners(ClassBalancedSampler(labels), views=[])
        >>> np.bincount(labels[partners.rows(InstanceSampler(labels), epoch=0)])
        array([50, 50])
        """
        rows = np.empty(len(sampler) * sampler.world_size, dtype=np.int64)
        # A pass of this sampler may be shorter than an epoch of the other.
        passes = (self.sampler.blocks(epoch + number * _FAR) for number in count())
        blocks = chain.from_iterable(passes)
        filled = 0
        while filled < len(rows):
            block = next(blocks)[: len(rows) - filled]
            rows[filled : filled + block.size] = block
            filled += block.size
        return rows[sampler.rank :: sampler.world_size]


def make_partners(
    source: str,
    labels: NDArray[np.int64],
    make_views: Callable[[int], list[View]],
    seed: int,
) -> Partners[View] | None:
    """Make what draws partners, with a seed of its own.

    Parameters
    ----------
    source : {"batch", "instance", "class-balanced", "square-root"}
        Where partners come from: a sampler that needs no options, or out of the batch.
    labels : ndarray of int64, shape (n_images,)
        Class codes of the training images.
    make_views : callable
        Maps a seed to what happens to an image in each view.
    seed : int
        Of the images that are mixed with them.

    Returns
    -------
    Partners or None
        None for "batch".

    Examples
    --------
    >>> import numpy as np
    >>> from protail.training.mixtures import make_partners
    >>> labels = np.array([0, 0, 1])
    >>> make_partners("class-balanced", labels, lambda seed: [], seed=0).sampler.run
    1
    """
    if source not in get_args(PartnerSource):
        raise ValueError(unknown_name("partners", source, get_args(PartnerSource)))
    if source == "batch":
        return None
    own = derived_seed(seed, "partners")
    return Partners(make_sampler(source, labels, seed=own), make_views(own))


def mix_views(
    batch: ImageBatch,
    share: Tensor,
    places: Tensor,
    epoch: int | Tensor,
    *,
    kind: str,
    seed: int,
    partners: ImageBatch | None = None,
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
        Same seed, same partners and boxes.
    partners : ImageBatch, optional
        Whom the images are mixed with, in as many views; by default one another.

    Returns
    -------
    ImageBatch
        With the true share of each view.

    Examples
    --------
    >>> import torch
    >>> from protail.methods import ImageBatch
    >>> from protail.training.mixtures import mix_views
    >>> views = ImageBatch(
    ...     torch.ones(2, 3, 8, 8), torch.arange(2), second=torch.ones(2, 3, 8, 8)
    ... )
    >>> share, places = torch.tensor([0.75, 0.1]), torch.arange(2)
    >>> mixed = mix_views(views, share, places, 0, kind="mixup-cutmix", seed=3)
    >>> mixed.share, mixed.second_share  # a box of 4 x 4 pixels, inside the image
    (tensor(0.7500), tensor(0.7500))
    """

    def mixed(view: Literal["images", "second"], share: Tensor, kind: str) -> Mixed:
        given = None if partners is None else (getattr(partners, view), partners.labels)
        images = getattr(batch, view)
        return mix(images, batch.labels, share, places, epoch, kind=kind, seed=seed, partners=given)

    if batch.second is None:
        return ImageBatch(*mixed("images", share, kind))
    kinds, first_share = kind.split("-"), share.flatten()[0]
    first = mixed("images", first_share, kinds[0])
    second = mixed("second", first_share, kinds[-1])
    return ImageBatch(*first, second=second.images, second_share=second.weight)

"""What a frozen backbone makes of the training images: computed once, used by every head."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protail.data import RowSampler, make_sampler
from protail.data.sets import DataSet, ImageSet
from protail.training.feature_cache import FeatureCache
from protail.training.feeds import CLEAN_BATCH
from protail.training.inference import collect, inferring
from protail.training.loader import make_feed
from protail.training.settings import ClassifierSettings, Precision


@dataclass(frozen=True)
class Stream:
    """Which images come in which order, and what happens to them.

    Attributes
    ----------
    sampler : str
        Which image comes next.
    sampler_options : str
        What the sampler takes, as JSON.
    augment : tuple of str
        What happens to an image.
    precision : {"bfloat16", "float32"}
        What the backbone computes in.
    """

    sampler: str
    sampler_options: str
    augment: tuple[str, ...]
    precision: Precision

    @classmethod
    def of(cls, settings: ClassifierSettings) -> Stream:
        """Take out of settings what the stream hangs on."""
        options = json.dumps(settings.sampler_options, sort_keys=True)
        return cls(settings.sampler, options, tuple(settings.augment), settings.precision)


class FrozenFeatures:
    """Features of training images under a frozen backbone, in eval mode.

    Parameters
    ----------
    backbone : nn.Module
        Images to features; it is not changed.
    data : DataSet
        Images, resident or in files.
    device : torch.device
        Where to compute.
    cache : FeatureCache, optional
        Where features stay for the next time.

    Attributes
    ----------
    counts : ndarray of int
        Training images of each class.
    n_features : int
        Width of a feature vector.
    """

    def __init__(
        self,
        backbone: nn.Module,
        data: DataSet,
        device: torch.device,
        cache: FeatureCache | None = None,
    ) -> None:
        self.device = device
        self.counts: NDArray[np.int64] = data.train.profile.counts
        self.n_features = int(backbone.n_features)  # type: ignore[arg-type]
        self._backbone = backbone
        self._images = data.train
        self._cache = cache or FeatureCache(None)

    @cached_property
    def _identity(self) -> dict[str, str]:
        return {"data": self._images.fingerprint(), "weights": weights_hash(self._backbone)}

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give features and labels of the training images as they are."""
        key = {**self._identity, "stream": "clean", "precision": precision}
        features = self._cache.get(key, lambda: self.of(self._images, precision), self.device)
        return features, torch.from_numpy(self._images.labels).to(self.device)

    def of(self, images: ImageSet, precision: Precision, *, mirrored: bool = False) -> Tensor:
        """Give features of any images as they are, or of their mirror images."""
        feed = make_feed(images, (), seed=0, device=self.device)
        batches = (part.flip(3) if mirrored else part for part in feed.clean(images))
        with inferring(self._backbone):
            return collect(self._backbone, batches, precision)

    def stream(self, stream: Stream, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Give features and labels of an epoch of augmented images, in their order."""
        sampler = self._sampler(stream, seed)
        feed = make_feed(self._images, stream.augment, seed=seed, device=self.device)

        def compute() -> Tensor:
            batches = (feed(batch).images for batch in feed.batches(sampler, CLEAN_BATCH, epoch))
            with inferring(self._backbone):
                return collect(self._backbone, batches, stream.precision)

        key = {**self._identity, "stream": repr(stream), "seed": seed, "epoch": epoch}
        rows = torch.from_numpy(sampler.epoch_indices(epoch)).to(self.device)
        return self._cache.get(key, compute, self.device), feed.labels[rows]

    def n_draws(self, stream: Stream, seed: int) -> int:
        """Say how many images an epoch of a stream has."""
        return len(self._sampler(stream, seed))

    def _sampler(self, stream: Stream, seed: int) -> RowSampler:
        options = json.loads(stream.sampler_options)
        return make_sampler(stream.sampler, self._images.labels, seed=seed, **options)


def weights_hash(module: nn.Module) -> str:
    """Name the weights of a module: same values, same text."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

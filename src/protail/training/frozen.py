"""What a frozen backbone makes of the training images: computed once, used by every head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protail.data import RowSampler, make_sampler
from protail.data.sets import DataSet, ImageSet
from protail.training.feature_cache import FeatureCache
from protail.training.feeds import CLEAN_BATCH, Feed
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
    """Features of images under a frozen backbone, in eval mode.

    Training images are those of stage 2, where a data set has others for it.

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
    backbone : nn.Module
        What is evaluated.
    counts : ndarray of int
        Training images of each class.
    group_counts : ndarray of int
        Images of each class that say which group it is in.
    test_labels : ndarray of int
        Class codes of the test images.
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
        self.backbone = backbone
        self.device = device
        self.counts: NDArray[np.int64] = data.train.profile.counts
        self.group_counts = self.counts if data.group_counts is None else data.group_counts
        self.n_features = int(backbone.n_features)  # type: ignore[arg-type]
        self.test_labels: NDArray[np.int64] = data.test.labels
        self._data = data
        self._images = data.train if data.classifier_train is None else data.classifier_train
        self._cache = cache or FeatureCache(None)
        self._drifted: dict[tuple[Any, ...], FrozenFeatures] = {}

    @cached_property
    def _weights(self) -> str:
        inputs = getattr(self.backbone, "input_spec", None)
        return weights_hash(self.backbone) + ("" if inputs is None else f" {inputs}")

    @cached_property
    def _test_images(self) -> str:
        return self._data.test.fingerprint()

    @cached_property
    def _identity(self) -> dict[str, str]:
        return {"data": self._images.fingerprint(), "weights": self._weights}

    def for_stage(self, settings: ClassifierSettings, seed: int) -> FrozenFeatures:
        """Give what a stage learns from, and what its heads are to be judged by."""
        if settings.batch_norm == "eval" or settings.epochs <= 1:
            return self
        key = (Stream.of(settings), settings.epochs, settings.max_steps, settings.batch_size, seed)
        if key not in self._drifted:
            self._drifted[key] = _DriftedFeatures(self, settings, seed)
        return self._drifted[key]

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of an image as the backbone gets it."""
        one = self._data.test.subset([0])
        feed = make_feed(one, (), seed=0, device=self.device, backbone=self.backbone)
        height, width = next(feed.clean(one)).shape[2:]
        return height, width

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give features and labels of the training images as they are."""
        key = {**self._identity, "stream": "clean", "precision": precision}
        features = self._cache.get(key, lambda: self.of(self._images, precision), self.device)
        return features, torch.from_numpy(self._images.labels).to(self.device)

    def test(self, *, mirrored: bool = False) -> Tensor:
        """Give features of the test images as they are, or of their mirror images."""
        images = self._data.test
        key = {
            "data": self._test_images,
            "weights": self._weights,
            "stream": "mirrored" if mirrored else "clean",
            "precision": "float32",
        }
        compute = partial(self.of, images, "float32", mirrored=mirrored)
        return self._cache.get(key, compute, self.device)

    def of(self, images: ImageSet, precision: Precision, *, mirrored: bool = False) -> Tensor:
        """Give features of any images as they are, or of their mirror images."""
        feed = make_feed(images, (), seed=0, device=self.device, backbone=self.backbone)
        batches = (part.flip(3) if mirrored else part for part in feed.clean(images))
        return self._computed(batches, len(images), precision)

    def stream(
        self, stream: Stream, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give features and labels of the first ``n`` augmented images of an epoch, or of all."""
        sampler, feed = self._sampler(stream, seed), self._feed(stream, seed)
        key = {**self._identity, "stream": repr(stream), "seed": seed, "epoch": epoch}
        # Whole batches: their features are then, to the bit, those of the whole epoch.
        n_computed = len(sampler) if n is None else -(-n // CLEAN_BATCH) * CLEAN_BATCH
        if n_computed < len(sampler):
            sampler = _Beginning(sampler, n_computed)
            key["rows"] = n_computed

        def compute() -> Tensor:
            batches = (feed(batch).images for batch in feed.batches(sampler, CLEAN_BATCH, epoch))
            return self._computed(batches, len(sampler), stream.precision)

        rows = torch.from_numpy(sampler.epoch_indices(epoch)[:n]).to(self.device)
        return self._cache.get(key, compute, self.device)[:n], feed.labels[rows]

    def _computed(self, batches: Iterable[Tensor], n: int, precision: Precision) -> Tensor:
        """Compute features into one place: putting parts together would need twice the memory."""
        features = torch.empty(n, self.n_features, device=self.device)
        begin = 0
        with inferring(self.backbone):
            for batch in batches:
                part = collect(self.backbone, [batch], precision)
                features[begin : begin + len(part)] = part
                begin += len(part)
        return features

    def n_draws(self, stream: Stream, seed: int) -> int:
        """Say how many images an epoch of a stream has."""
        return len(self._sampler(stream, seed))

    def _feed(self, stream: Stream, seed: int) -> Feed:
        return make_feed(
            self._images, stream.augment, seed=seed, device=self.device, backbone=self.backbone
        )

    def _sampler(self, stream: Stream, seed: int) -> RowSampler:
        options = json.loads(stream.sampler_options)
        return make_sampler(stream.sampler, self._images.labels, seed=seed, **options)


class _Beginning(RowSampler):
    """The first draws of every epoch of another sampler."""

    def __init__(self, whole: RowSampler, n: int) -> None:
        super().__init__([0], seed=whole.seed)
        self._whole, self._n = whole, n

    @property
    def _n_draws(self) -> int:
        return self._n

    def _stream(self, epoch: int, position: int) -> Iterator[NDArray[np.int64]]:
        return self._whole._stream(epoch, position)


class _DriftedFeatures(FrozenFeatures):
    """Features as the published code has them: after the first epoch, batch norms learn on.

    How they drift hangs on the stream alone, so it is computed before any head learns.
    """

    def __init__(self, start: FrozenFeatures, settings: ClassifierSettings, seed: int) -> None:
        super().__init__(deepcopy(start.backbone), start._data, start.device, start._cache)
        self._start = start
        self._later: dict[tuple[Stream, int, int], Tensor] = {}
        stream = Stream.of(settings)
        an_epoch, n_steps = stage_steps(settings, self.n_draws(stream, seed))
        sampler, feed = self._sampler(stream, seed), self._feed(stream, seed)
        with inferring(self.backbone):
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):  # not dropout: same seed, same features
                    module.train()
            for epoch, begin in enumerate(range(an_epoch, n_steps, an_epoch), start=1):
                taken = feed.batches(sampler, settings.batch_size, epoch)
                batches = (feed(batch).images for batch in islice(taken, n_steps - begin))
                features = collect(self.backbone, batches, stream.precision)
                self._later[stream, seed, epoch] = features

    def for_stage(self, settings: ClassifierSettings, seed: int) -> FrozenFeatures:
        """Give what another stage on the same backbone learns from."""
        return self._start.for_stage(settings, seed)

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give what is there before the drift: where prototypes start."""
        return self._start.clean(precision)

    def stream(
        self, stream: Stream, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give features and labels of an epoch, as far as there are steps in it."""
        if epoch == 0:
            return self._start.stream(stream, seed, epoch, n)
        features = self._later[stream, seed, epoch][:n]
        rows = self._sampler(stream, seed).epoch_indices(epoch)[: len(features)]
        return features, torch.from_numpy(self._images.labels[rows]).to(self.device)


def stage_steps(settings: ClassifierSettings, n_draws: int) -> tuple[int, int]:
    """Say how many steps an epoch and the whole of stage 2 have.

    Parameters
    ----------
    settings : ClassifierSettings
        Epochs, batch size and the limit on the steps.
    n_draws : int
        Images of an epoch.

    Returns
    -------
    tuple of int
        Steps of an epoch, steps of the stage.

    Examples
    --------
    >>> from protail.training.frozen import stage_steps
    >>> from protail.training.settings import ClassifierSettings
    >>> stage_steps(ClassifierSettings(epochs=3, batch_size=64, max_steps=5), 100)
    (2, 5)
    """
    an_epoch = -(-n_draws // settings.batch_size)
    whole = settings.epochs * an_epoch
    return an_epoch, min(whole, settings.max_steps or whole)


def weights_hash(module: nn.Module) -> str:
    """Name the weights of a module: same values, same text."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

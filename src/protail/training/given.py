"""Features that somebody has computed already, in the place of a frozen backbone and images."""

from __future__ import annotations

import json
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail.data import RowSampler, make_sampler
from protail.data.sets import FeatureData, FeatureSet
from protail.training.frozen import FrozenFeatures, Stream
from protail.training.settings import ClassifierSettings, Precision


class GivenFeatures:
    """Give features as they are stored; otherwise as `FrozenFeatures`.

    What they were computed in and how images were augmented was decided by whoever computed them.

    Parameters
    ----------
    data : FeatureData
        The features.
    device : torch.device
        Where they are wanted.

    Attributes
    ----------
    counts : ndarray of int
        Training images of each class.
    group_counts : ndarray of int
        Images of each class that say which group it is in.
    test_labels : ndarray of int
        Class codes of the test images.
    n_features : int
        Width of a feature vector.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from protail.data.sets import FeatureData, FeatureSet
    >>> from protail.training.given import GivenFeatures
    >>> rows = FeatureSet(np.eye(3), [0, 0, 1])
    >>> data = FeatureData("insects", ("ant", "bee"), rows, rows)
    >>> given = GivenFeatures(data, torch.device("cpu"))
    >>> given.n_features, given.test().shape, given.test(mirrored=True)
    (3, torch.Size([3, 3]), None)
    """

    def __init__(self, data: FeatureData, device: torch.device) -> None:
        self.device = device
        self.counts: NDArray[np.int64] = data.train.profile.counts
        self.group_counts = self.counts
        self.n_features = data.n_features
        self.test_labels: NDArray[np.int64] = data.test.labels
        self._data = data

    def for_stage(self, settings: ClassifierSettings, seed: int) -> Self:
        """Give what a stage learns from: the same for all that leave the backbone alone."""
        if settings.batch_norm != "eval" and settings.epochs > 1:
            raise ValueError(
                f"classifier.batch_norm={settings.batch_norm!r} changes the backbone, and "
                f"{self._data.name} holds its features only; expected 'eval'."
            )
        return self

    def clean(self, precision: Precision) -> tuple[Tensor, Tensor]:
        """Give features and labels of the training images as they are."""
        return self._labelled(self._data.train)

    def test(self, *, mirrored: bool = False) -> Tensor | None:
        """Give features of the test images, or of their mirror images: None without those."""
        rows = self._data.mirrored if mirrored else self._data.test.rows
        return None if rows is None else torch.from_numpy(rows).to(self.device)

    def stream(
        self, stream: Stream, seed: int, epoch: int, n: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give features and labels of an epoch, or its first ``n``, in their order.

        Those of the stored stream, the same each epoch; without one, training rows as the sampler
        draws them.
        """
        if self._data.stream is not None:
            features, labels = self._labelled(self._data.stream)
            return features[:n], labels[:n]
        features, labels = self._labelled(self._data.train)
        drawn = self._sampler(stream, seed).epoch_indices(epoch)[:n]
        rows = torch.from_numpy(drawn).to(self.device)
        return features[rows], labels[rows]

    def n_draws(self, stream: Stream, seed: int) -> int:
        """Say how many rows an epoch of a stream has."""
        stored = self._data.stream
        return len(self._sampler(stream, seed)) if stored is None else len(stored)

    def _labelled(self, part: FeatureSet) -> tuple[Tensor, Tensor]:
        features = torch.from_numpy(part.rows).to(self.device)
        return features, torch.tensor(part.labels, device=self.device)

    def _sampler(self, stream: Stream, seed: int) -> RowSampler:
        options = json.loads(stream.sampler_options)
        return make_sampler(stream.sampler, self._data.train.labels, seed=seed, **options)


Features = FrozenFeatures | GivenFeatures

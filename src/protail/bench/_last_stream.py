"""Memory for features of images in files: an epoch of them takes gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from protail.training.feature_cache import FeatureCache


class LastStream(FeatureCache):
    """Keep clean and test features, but of the epochs of augmented images only the last one.

    Heads that learn from the same stream one after the other still share it.

    Examples
    --------
    >>> import torch
    >>> from protail.bench._last_stream import LastStream
    >>> cache, cpu = LastStream(), torch.device("cpu")
    >>> first, second = ({"stream": "flip", "epoch": epoch} for epoch in (0, 1))
    >>> for key in (first, first, second, first):
    ...     _ = cache.get(key, lambda: print("computed") or torch.ones(2, 3), cpu)
    computed
    computed
    computed
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._key: dict[str, Any] | None = None
        self._features: Tensor | None = None

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Tensor], device: torch.device
    ) -> Tensor:
        """Give the features that a key names, as `FeatureCache.get` does."""
        if "epoch" not in key:
            return super().get(key, compute, device)
        if self._features is None or self._key != dict(key):
            self._features = None  # before others are computed: there is not room for both
            self._features = compute()
            self._key = dict(key)
        return self._features.to(device)

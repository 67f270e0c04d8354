"""Features kept, in memory or on disk, under the name of everything they depend on."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protail._files import OutputError, new_file


class FeatureCache:
    """Compute features once; the next time they are read, memory-mapped, from a file.

    A file that does not agree with its checksum is reported, and its features are computed again.

    Parameters
    ----------
    folder : Path or None
        Where the files lie; None keeps features in memory, as long as the cache lives, and so are
        those kept that cannot be written.

    Examples
    --------
    >>> import torch
    >>> from protail.training import FeatureCache
    >>> cache, cpu = FeatureCache(None), torch.device("cpu")
    >>> key = {"weights": "a", "data": "b"}
    >>> cache.get(key, lambda: torch.ones(2, 3), cpu).shape
    torch.Size([2, 3])
    >>> cache.get(key, lambda: torch.zeros(0), cpu).sum()  # not computed again
    tensor(6.)
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._in_memory: dict[str, Tensor] = {}
        self._has_warned = False

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Tensor], device: torch.device
    ) -> Tensor:
        """Give the features that a key names.

        Parameters
        ----------
        key : mapping
            Everything the features depend on, in plain values.
        compute : callable
            Makes them, where they are not there yet.
        device : torch.device
            Where they are wanted.

        Returns
        -------
        Tensor, shape (n, n_features)
            The features.
        """
        name = _name(key)
        if name in self._in_memory:
            return self._in_memory[name].to(device)
        path = None if self._folder is None else self._folder / f"{name}.safetensors"
        found = None if path is None else _read(path, key)
        if found is None:
            found = compute()
            if path is None or not self._write(path, key, found):
                self._in_memory[name] = found
        return found.to(device)

    def _write(self, path: Path, key: Mapping[str, Any], features: Tensor) -> bool:
        """Write features; where that fails, say so once: they are no reason to lose a run."""
        stored = features.cpu().contiguous()
        try:
            with new_file(path, overwrite=True) as temporary:
                temporary.write_bytes(save({"features": stored}, _about(key, stored)))
        except OutputError as error:
            if not self._has_warned:
                warnings.warn(f"{error.strerror} It goes on without.", stacklevel=3)
            self._has_warned = True
            return False
        return True


class LastStream(FeatureCache):
    """Keep clean and test features, but of the epochs of augmented images only the last one.

    For images in files, of which an epoch of features takes gigabytes. Heads that learn from the
    same stream one after the other still share it.

    Examples
    --------
    >>> import torch
    >>> from protail.training import LastStream
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
        self._last = ""

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Tensor], device: torch.device
    ) -> Tensor:
        """Give the features that a key names, as `FeatureCache.get` does."""
        if "epoch" in key and _name(key) != self._last:
            # Before others are computed: there is not room for both.
            self._in_memory.pop(self._last, None)
            self._last = _name(key)
        return super().get(key, compute, device)


def _name(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _read(path: Path, key: Mapping[str, Any]) -> Tensor | None:
    """Map features; a file that is damaged is as good as none, and is reported."""
    try:
        with safe_open(path, framework="pt") as file:
            features: Tensor = file.get_tensor("features")
            if file.metadata() == _about(key, features):
                return features
        reason = "it does not agree with its checksum"
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        reason = f"it cannot be read ({' '.join(str(error).split())})"
    warnings.warn(f"{path}: {reason}, so these features are computed again.", stacklevel=3)
    return None


def _about(key: Mapping[str, Any], features: Tensor) -> dict[str, str]:
    """Say what a file holds, with a checksum of every byte of the features."""
    numbers = features.reshape(-1).view(torch.uint8).numpy().data
    about = {
        "key": key,
        "dtype": str(features.dtype),
        "shape": list(features.shape),
        "sha256": hashlib.sha256(numbers).hexdigest(),
    }
    # One entry: the library writes several in an order that changes from run to run.
    return {"protail": json.dumps(about, sort_keys=True)}

"""Features kept on disk under the name of everything they hang on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protail._files import new_file


class FeatureCache:
    """Compute features once; the next time they are read, memory-mapped, from a file.

    Parameters
    ----------
    folder : Path or None
        Where the files lie; None keeps features in memory, as long as the cache lives.

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

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Tensor], device: torch.device
    ) -> Tensor:
        """Give the features that a key names.

        Parameters
        ----------
        key : mapping
            Everything the features hang on, in plain values.
        compute : callable
            Makes them, where they are not there yet.
        device : torch.device
            Where they are wanted.

        Returns
        -------
        Tensor, shape (n, n_features)
            The features.
        """
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        if self._folder is None:
            if name not in self._in_memory:
                self._in_memory[name] = compute()
            return self._in_memory[name].to(device)
        path = self._folder / f"{name}.safetensors"
        found = _read(path, device)
        if found is None:
            found = compute()
            metadata = {"key": json.dumps(key, sort_keys=True)}
            with new_file(path, overwrite=True) as temporary:
                temporary.write_bytes(save({"features": found.cpu().contiguous()}, metadata))
        return found


def _read(path: Path, device: torch.device) -> Tensor | None:
    """Read features; a file that cannot be read is as good as none and will be made anew."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            features: Tensor = file.get_tensor("features")
            return features
    except (OSError, SafetensorError):
        return None

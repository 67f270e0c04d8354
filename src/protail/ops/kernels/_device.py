"""Where the kernels run, how they multiply, and how large their tiles are."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import compute_dtype, scheme_of
from protail.ops.distance.base import Distance
from protail.ops.distance.euclidean import Euclidean

# By the name of how products are taken: products of parts for one, and what a part is.
PRECISIONS = {
    "float32": (3, torch.float32),
    "tf32": (1, torch.float32),
    "bfloat16": (1, torch.bfloat16),
}
# The oldest GPU whose matrix units know TF32 and bfloat16.
_CAPABILITY = (8, 0)
_INDEX = 2**31


def interpreted() -> bool:
    """Say whether Triton's interpreter stands for a GPU, which is slow and only for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _has_kernels(index: int) -> bool:
    if importlib.util.find_spec("triton") is None or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(index) >= _CAPABILITY


def square_or_root(distance: Distance) -> bool | None:
    """Say whether a distance is a root (or a multiple of a square); None if it is neither."""
    kind = type(distance)
    for root, like in ((True, Euclidean), (False, Distance)):
        if kind.link_ is like.link_ and kind.pull_ is like.pull_:
            return root
    return None


def unsupported(
    x: Tensor, prototypes: Tensor, temperature: Tensor | None, distance: Distance
) -> str | None:
    """Say why the kernels cannot take these, in words for an error; None where they can."""
    if not interpreted() and not (x.is_cuda and _has_kernels(x.device.index or 0)):
        return f"x is on {x.device}; expected an NVIDIA GPU of at least Ampere, with Triton."
    if compute_dtype(x, prototypes, temperature) != torch.float32:
        return "an input is float64; expected float32 or shorter numbers."
    if scheme_of(temperature) not in (None, "channel"):
        return f"temperature is by {scheme_of(temperature)}; expected one a channel, or None."
    if square_or_root(distance) is None:
        return f"the distance {distance!r} has a gradient of its own; expected a root or a square."
    if x.shape[0] * prototypes.shape[1] >= _INDEX:
        return f"x has {x.numel()} numbers; expected fewer than {_INDEX}."
    return None


def precision_of(device: torch.device) -> str:
    """Name the precision that torch multiplies float32 matrices in."""
    chosen = torch.backends.cuda.matmul.fp32_precision if device.type == "cuda" else "ieee"
    return "tf32" if chosen == "tf32" else "float32"


class Tiles(NamedTuple):
    """How a product is cut: classes and rows of a tile, and numbers of each vector at a time."""

    classes: int
    rows: int
    deep: int
    warps: int
    stages: int

    @classmethod
    def of(cls, n_rows: int, n_classes: int, dtype: torch.dtype, device: torch.device) -> Tiles:
        """Choose them; the interpreter takes small ones."""
        if interpreted():
            return cls(16, 16, 16, 4, 1)
        classes = 64 if n_rows <= 64 and n_classes <= 2**14 else 128
        rows = 64 if n_rows <= 64 else 128
        deep = 128 // dtype.itemsize
        if n_rows > 128 and n_classes >= 2**14:
            rows = 256
        warps = 8 if rows * classes >= 2**15 else 4
        tile = (classes + rows) * deep * dtype.itemsize
        stages = max(2, min(5, _shared_memory(device.index or 0) // tile))
        return cls(classes, rows, deep, warps, min(stages, 4) if warps == 8 else stages)

    def options(self) -> dict[str, int]:
        """Give what a launch takes beside its arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@functools.cache
def _shared_memory(index: int) -> int:
    properties = torch.cuda.get_device_properties(index)
    return int(getattr(properties, "shared_memory_per_block_optin", 96 * 1024)) - 4096


def whole(number: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-number // step) * step

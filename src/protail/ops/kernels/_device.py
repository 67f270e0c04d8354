"""Where the kernels run, how they multiply, and how large their tiles are."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import compute_dtype, scheme_of
from protail.ops.distance import Distance, Euclidean

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
    for name, other in (("prototypes", prototypes), ("temperature", temperature)):
        if other is not None and other.device != x.device:
            return f"{name} is on {other.device}; expected {x.device}, where x is."
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
    """How a product is cut: rows of either side in a tile, and numbers of each at a time."""

    left: int
    right: int
    deep: int
    warps: int
    stages: int
    described: bool = False  # read by descriptors, which Hopper's copy engine follows

    def table(self, vectors: Tensor, rows: int, columns: int | None = None) -> Any:
        """Give a table as a product takes it, so many rows and columns at a time."""
        if not self.described:
            return vectors
        from triton.tools.tensor_descriptor import (  # type: ignore[import-untyped]
            TensorDescriptor,
        )

        return TensorDescriptor.from_tensor(vectors, [rows, columns or self.deep])

    def options(self) -> dict[str, int]:
        """Give what a launch takes beside its arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    def fitted(self, itemsize: int, device: torch.device) -> Tiles:
        """Keep fewer tiles in flight where a GPU has less shared memory."""
        fit = _shared_memory(device.index or 0) // ((self.left + self.right) * self.deep * itemsize)
        return self._replace(stages=max(1, min(self.stages, fit)))


_INTERPRETED = Tiles(16, 16, 16, 4, 1, described=True)
# Classes are placed in whole tiles of this size, so that any tile below divides them.
CLASS_STEP = 128


def product_tiles(n_rows: int, parts: int, dtype: torch.dtype, device: torch.device) -> Tiles:
    """Choose tiles of classes by rows; the interpreter takes small ones."""
    if interpreted():
        return _INTERPRETED
    deep = 128 // dtype.itemsize
    tiles = (
        Tiles(64, 64, deep, 4, 3 if parts == 3 else 5)
        if n_rows <= 64
        else Tiles(128, 128, deep, 4, 3, _follows_descriptors(device.index or 0))
    )
    return tiles.fitted(dtype.itemsize, device)


def gradient_tiles(n_channels: int, dtype: torch.dtype, device: torch.device) -> Tiles:
    """Choose tiles of classes by channels, where rows are what is summed."""
    if interpreted():
        return _INTERPRETED
    right = 64 if n_channels <= 64 else 128
    described = _follows_descriptors(device.index or 0)
    tiles = Tiles(128, right, 128 // dtype.itemsize, 4 if described else 8, 3, described)
    return tiles.fitted(dtype.itemsize, device)


@functools.cache
def _follows_descriptors(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)


@functools.cache
def _shared_memory(index: int) -> int:
    properties = torch.cuda.get_device_properties(index)
    return int(getattr(properties, "shared_memory_per_block_optin", 96 * 1024)) - 4096


def whole(number: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-number // step) * step


_READY: dict[tuple[Any, ...], Any] = {}
_MOST_READY = 4096


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a kernel; one that has run with such arguments before without asking Triton again.

    Triton's own start looks at every argument in Python, which takes longer than small kernels.
    """
    if interpreted():
        kernel[grid](*arguments, **constants)
        return
    first = next(each for each in arguments if isinstance(each, Tensor))
    if first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            launch(kernel, grid, *arguments, **constants)
        return
    if constants.get("DESCRIBED"):  # a descriptor is made anew for each start
        kernel[grid](*arguments, **constants)
        return
    key = (
        kernel.fn,
        first.device.index,
        *(
            (each.dtype, each.data_ptr() % 16) if isinstance(each, Tensor) else each
            for each in arguments
        ),
        *constants.values(),
    )
    ready = _READY.get(key)
    grid = (*grid, 1, 1)[:3]
    if ready is not None:
        compiled, own = ready
        compiled[grid](*arguments, *own)
        return
    compiled = kernel[grid](*arguments, **constants)
    if len(_READY) >= _MOST_READY:
        _READY.clear()
    _READY[key] = compiled, [constants[name] for name in kernel.arg_names[len(arguments) :]]

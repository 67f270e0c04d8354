"""Feature rows, wherever they lie, handed out as tensors ready for distances."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops

# Rows that take no more than this are kept, placed, in memory; others are read as they are needed.
_KEPT_BYTES = 256 * 2**20
_BLOCK_BYTES = 16 * 2**20

Rows = NDArray[Any] | Tensor


@dataclass(frozen=True)
class Placement:
    """How a feature row becomes the vector that distances are measured on."""

    radius: float | None = None
    factor: float = 1.0

    def __call__(self, rows: Tensor) -> Tensor:
        """Place rows (n, channels)."""
        if self.radius is not None:
            return _scaled_to(self.radius, rows)
        if self.factor == 1:
            return rows
        placed: Tensor = rows * self.factor
        largest = torch.finfo(rows.dtype).max
        return placed.clamp_(-largest, largest)

    def scaled(self, factor: float) -> Placement:
        """Give the placement whose vectors are ``factor`` times as long."""
        if self.radius is not None:
            return Placement(self.radius * factor)
        return Placement(None, self.factor * factor)


def _scaled_to(radius: float, rows: Tensor) -> Tensor:
    """Scale rows to a length; those of zeros stay zero."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    limits = torch.finfo(rows.dtype)
    scaled: Tensor = rows * (radius / length)
    unusual = ~((length > limits.tiny**0.25) & (length < limits.max)).squeeze(1)
    if bool(unusual.any()):
        # Rows so long or short that their squares over- or underflow first get a largest entry of
        # 1. The others stay as they would be without them.
        some = rows[unusual]
        largest = some.abs().amax(1, keepdim=True)
        scaled[unusual] = ops.unit_rows(some / torch.where(largest > 0, largest, 1))[0] * radius
    return scaled


# What can be done to a row before anything is measured, and which of them scale it to length 1.
PREPARATIONS = ("l2", "centred-l2", "root-l2", "scaled", "none")
_OF_LENGTH_1 = ("l2", "centred-l2", "root-l2")
PREPARATION_ARRAYS = ("centre", "spread", "origin", "axes")
# A covariance has channels x channels: wider rows are projected onto the span of some of them.
_WIDEST = 4096


class Preparation(NamedTuple):
    """How a row becomes the vector that a shared covariance is measured on.

    The centre is taken off and each channel divided by its spread; then follow the signed square
    root and the length of 1, where the kind has them, and the origin is taken off. Rows too wide
    for a covariance are at last projected onto some axes.
    """

    kind: str
    centre_d: Tensor
    spread_d: Tensor
    origin_d: Tensor
    axes_dr: Tensor | None = None

    @classmethod
    def of(cls, kind: str, x_nd: Tensor, weight_n: Tensor) -> Preparation:
        """Centre on these rows; where they are too wide, take the axes that they span."""
        dtype, x_nd = x_nd.dtype, x_nd.double()
        part_n = (weight_n / weight_n.sum()).to(x_nd)
        nothing_d = x_nd.new_zeros(x_nd.shape[1])
        ones_d = torch.ones_like(nothing_d)
        if kind in ("l2", "root-l2"):
            bare = cls(kind, nothing_d, ones_d, nothing_d)
        elif kind == "scaled":
            spread_d = (part_n @ (x_nd - part_n @ x_nd).square()).sqrt()
            bare = cls(kind, part_n @ x_nd, torch.where(spread_d > 0, spread_d, 1), nothing_d)
        else:
            size = (x_nd - part_n @ x_nd).abs().amax()
            bare = cls(kind, part_n @ x_nd, torch.where(size > 0, size, 1) * ones_d, nothing_d)
        prepared = bare._replace(origin_d=part_n @ bare(x_nd))
        if x_nd.shape[1] <= _WIDEST:
            return prepared.to(x_nd.device, dtype)
        axes_dr = torch.linalg.qr(prepared(x_nd[:_WIDEST]).mT)[0]
        return prepared._replace(axes_dr=axes_dr).to(x_nd.device, dtype)

    @property
    def drops_lengths(self) -> bool:
        """Whether rows of zeros have nothing to be told by."""
        return self.kind in _OF_LENGTH_1

    def to(self, device: torch.device, dtype: torch.dtype) -> Preparation:
        """Take it where rows lie."""
        moved = (None if each is None else each.to(device, dtype) for each in self[1:])
        return Preparation(self.kind, *moved)  # type: ignore[arg-type]

    def arrays(self, dtype: torch.dtype) -> dict[str, NDArray[Any]]:
        """Give its arrays by name."""
        return {
            name: part.to("cpu", dtype).contiguous().numpy()
            for name, part in zip(PREPARATION_ARRAYS, self[1:], strict=True)
            if part is not None
        }

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]]) -> Preparation:
        """Take back what `arrays` gave."""
        parts = (arrays.get(name) for name in PREPARATION_ARRAYS)
        return cls(kind, *(None if part is None else as_tensor(part) for part in parts))  # type: ignore[arg-type]

    def __call__(self, x_nd: Tensor) -> Tensor:
        """Prepare rows; of those of zeros only the origin is taken off."""
        if self.kind not in ("l2", "root-l2"):
            x_nd = x_nd - self.centre_d
        if not self.drops_lengths:
            largest = torch.finfo(x_nd.dtype).max
            x_nd = (x_nd / self.spread_d).clamp_(-largest, largest)
        if self.kind == "root-l2":
            x_nd = x_nd.sign() * x_nd.abs().sqrt()
        if self.drops_lengths:
            x_nd = _scaled_to(1.0, x_nd)
        x_nd = x_nd - self.origin_d
        return x_nd if self.axes_dr is None else x_nd @ self.axes_dr


class Features:
    """Rows of a table, placed, a few at a time."""

    def __init__(
        self,
        rows: Rows,
        placement: Placement | Preparation,
        device: torch.device,
        dtype: torch.dtype | None = None,
        *,
        keep: bool = True,
    ) -> None:
        self._rows = rows
        self.placement = placement
        self.device = device
        self.dtype = dtype or compute_dtype(rows)
        self._kept: Tensor | None = None
        if keep and len(rows) * rows.shape[1] * self.dtype.itemsize <= _KEPT_BYTES:
            self._kept = self._placed(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def n_channels(self) -> int:
        """Columns of the table."""
        return int(self._rows.shape[1])

    def placed_as(self, placement: Placement | Preparation) -> Features:
        """Hand out the same rows under another placement."""
        return Features(self._rows, placement, self.device, self.dtype)

    def take(self, index: NDArray[np.int64]) -> Tensor:
        """Hand out the rows of an index."""
        if self._kept is not None:
            return self._kept.index_select(0, torch.from_numpy(index).to(self.device))
        if isinstance(self._rows, Tensor):
            return self._placed(self._rows[torch.from_numpy(index).to(self._rows.device)])
        return self._placed(self._rows[index])

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Hand out all rows in order, a block at a time."""
        step = max(1, _BLOCK_BYTES // (self.n_channels * self.dtype.itemsize))
        for start in range(0, len(self), step):
            part = slice(start, min(start + step, len(self)))
            if self._kept is not None:
                yield part, self._kept[part]
            else:
                yield part, self._placed(self._rows[part])

    def _placed(self, rows: Rows) -> Tensor:
        return self.placement(as_tensor(rows).to(self.device, self.dtype))


def as_tensor(rows: Rows) -> Tensor:
    """Give a tensor of the rows, without a copy where numpy and torch can share memory."""
    if isinstance(rows, Tensor):
        return rows.detach()
    if min(rows.strides, default=0) < 0 or not rows.dtype.isnative:
        rows = np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C")
    with warnings.catch_warnings():
        # Torch warns of read-only memory, such as a memory-mapped file; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(rows)


def compute_dtype(rows: Rows) -> torch.dtype:
    """Give the dtype distances are computed in: float64 for float64 rows, float32 for others."""
    return torch.float64 if str(rows.dtype).endswith("float64") else torch.float32


def class_means(features: Features, labels: Tensor, n_classes: int) -> Tensor:
    """Average the rows of each class, in float64; a class without rows gets zeros."""
    sums = torch.zeros(n_classes, features.n_channels, dtype=torch.float64, device=features.device)
    for part, rows in features.blocks():
        ops.add_rows_(sums, labels[part], rows.double())
    counts = torch.bincount(labels, minlength=n_classes).clamp(min=1)
    return (sums / counts.unsqueeze(1)).to(features.dtype)

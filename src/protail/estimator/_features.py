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
from protail._files import check_mapped
from protail.data.tables import ShardedRows

# Rows that take no more than this are kept, placed, in memory; others are read as they are needed.
_KEPT_BYTES = 256 * 2**20
_BLOCK_BYTES = 16 * 2**20
# Rows are added up in float64, so many at a time.
_SUMMED_AT_A_TIME = 1024

Rows = NDArray[Any] | Tensor | ShardedRows


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
        some = rows[unusual].clamp(-limits.max, limits.max)  # less a centre they may be infinite
        largest = some.abs().amax(1, keepdim=True)
        scaled[unusual] = ops.unit_rows(some / torch.where(largest > 0, largest, 1))[0] * radius
    return scaled


# What can be done to a row before anything is measured, and which of them scale it to length 1.
PREPARATIONS = ("l2", "centred-l2", "root-l2", "scaled", "none")
_OF_LENGTH_1 = ("l2", "centred-l2", "root-l2")
_CENTRED = ("centred-l2", "scaled", "none")
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
    def of(cls, kind: str, x_nd: Tensor, weight_n: Tensor) -> tuple[Preparation, Tensor]:
        """Centre on these rows, and prepare them; too wide ones are given the axes they span."""
        part_n = (weight_n / weight_n.sum()).double()
        centre_d = spread_d = torch.zeros_like(x_nd[0])
        if kind in _CENTRED:
            parts = [torch.split(each, _SUMMED_AT_A_TIME) for each in (part_n, x_nd)]
            blocks = list(zip(*parts, strict=True))
            exact_d = sum(part_b @ x_bd.double() for part_b, x_bd in blocks)
            centre_d = exact_d.to(x_nd)
            if kind == "scaled":
                square_d = sum(part_b @ (x_bd - exact_d).square() for part_b, x_bd in blocks)
                spread_d = square_d.sqrt().to(x_nd)
            elif kind == "none":
                spread_d = (x_nd - centre_d).abs().amax().expand_as(centre_d)
            spread_d = spread_d.clamp_max(torch.finfo(x_nd.dtype).max)
        spread_d = torch.where(spread_d > 0, spread_d, 1)
        bare = cls(kind, centre_d, spread_d, torch.zeros_like(centre_d))
        prepared_nd = bare(x_nd)
        origin_d = part_n.to(x_nd) @ prepared_nd
        found, prepared_nd = bare._replace(origin_d=origin_d), prepared_nd.sub_(origin_d)
        if x_nd.shape[1] <= _WIDEST:
            return found, prepared_nd
        axes_dr = torch.linalg.qr(prepared_nd[:_WIDEST].double().mT)[0].to(x_nd)
        return found._replace(axes_dr=axes_dr), prepared_nd @ axes_dr

    @property
    def drops_lengths(self) -> bool:
        """Whether prepared rows have a length of 1."""
        return self.kind in _OF_LENGTH_1

    @property
    def keeps_zeros(self) -> bool:
        """Whether rows of zeros have nothing to be told by; less a centre they have."""
        return self.drops_lengths and self.kind not in _CENTRED

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
        if self.kind in _CENTRED:
            x_nd = x_nd - self.centre_d
        if not self.drops_lengths:
            largest = torch.finfo(x_nd.dtype).max
            x_nd = x_nd.clamp_(-largest, largest)  # centred: a new tensor
            x_nd = x_nd.div_(self.spread_d).clamp_(-largest, largest)
        if self.kind == "root-l2":
            # The signed square root: torch's sqrt takes ten times as long as its rsqrt.
            x_nd = x_nd.abs().clamp_min_(torch.finfo(x_nd.dtype).tiny).rsqrt_().mul_(x_nd)
        if self.drops_lengths:
            x_nd = _scaled_to(1.0, x_nd)
        x_nd = x_nd.sub_(self.origin_d)
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
        self.rows = rows
        self.placement = placement
        self.device = device
        self.dtype = dtype or compute_dtype(rows)
        self._kept: Tensor | None = None
        keep = keep and not isinstance(rows, ShardedRows)
        if keep and len(rows) * rows.shape[1] * self.dtype.itemsize <= _KEPT_BYTES:
            self._kept = self._placed(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_channels(self) -> int:
        """Columns of the table."""
        return int(self.rows.shape[1])

    def placed_as(self, placement: Placement | Preparation) -> Features:
        """Hand out the same rows under another placement."""
        return Features(self.rows, placement, self.device, self.dtype)

    def take(self, index: NDArray[np.int64]) -> Tensor:
        """Hand out the rows of an index."""
        if self._kept is not None:
            return self._kept.index_select(0, torch.from_numpy(index).to(self.device))
        if isinstance(self.rows, Tensor):
            return self._placed(self.rows[torch.from_numpy(index).to(self.rows.device)])
        if isinstance(self.rows, ShardedRows):
            return self._placed(self.rows.take(index))
        return self._placed(self.rows[index])

    def blocks(self, n_bytes: int = _BLOCK_BYTES) -> Iterator[tuple[slice, Tensor]]:
        """Hand out all rows in order, a block at a time."""
        step = max(1, n_bytes // (self.n_channels * self.dtype.itemsize))
        if isinstance(self.rows, ShardedRows):
            start = 0
            for block in self.rows.blocks():
                for rows in np.split(block, range(step, len(block), step)):
                    yield slice(start, start + len(rows)), self._placed(rows)
                    start += len(rows)
            return
        for start in range(0, len(self), step):
            part = slice(start, min(start + step, len(self)))
            if self._kept is not None:
                yield part, self._kept[part]
            else:
                yield part, self._placed(self.rows[part])

    def _placed(self, rows: Rows) -> Tensor:
        check_mapped(rows)
        return self.placement(as_tensor(rows).to(self.device, self.dtype))


def as_tensor(rows: Rows) -> Tensor:
    """Give a tensor of the rows, without a copy where numpy and torch can share memory."""
    if isinstance(rows, Tensor):
        return rows.detach()
    rows = np.asarray(rows)
    if min(rows.strides, default=0) < 0 or not rows.dtype.isnative:
        rows = np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C")
    if rows.flags.writeable:
        return torch.from_numpy(rows)
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

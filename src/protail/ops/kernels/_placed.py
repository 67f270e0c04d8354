"""Vectors as the kernels multiply them: centred, scaled, rounded, in whole tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops.kernels._device import PRECISIONS, interpreted, launch, whole

# A mean of some prototypes centres as well as that of all.
_CENTRING_SAMPLE = 2**16
# Numbers of vectors that a program places at a time.
_PLACED_AT_A_TIME = 2048


class Placed(NamedTuple):
    """Vectors ready for products, padded with zeros."""

    vectors: Tensor  # (padded n, width), twice as wide with three parts
    square_n: Tensor
    error_n: Tensor | None
    across: Tensor | None  # the same with channels first
    n: int
    width: int
    spread: int = 0  # so many numbers, then as much room; without room if 0

    def total(self) -> Tensor:
        """Give the vectors in float32, without padding."""
        vectors_nd = self.vectors[: self.n].float()
        if self.spread:
            return vectors_nd.view(self.n, -1, 2, self.spread)[:, :, 0].flatten(1)
        if vectors_nd.shape[1] == self.width:
            return vectors_nd
        return vectors_nd[:, : self.width] + vectors_nd[:, self.width :]


class Placing(NamedTuple):
    """How vectors are placed: the same for rows and classes; channels in whole steps."""

    middle_d: Tensor
    temperature: Tensor | None
    precision: str
    step: int
    unit: bool = False

    @property
    def parts(self) -> int:
        """Products that one takes."""
        return PRECISIONS[self.precision][0]

    def place(
        self,
        vectors_nd: Tensor,
        step: int,
        *,
        across: bool = False,
        measured: tuple[Tensor, Tensor] | None = None,
        room: Tensor | None = None,
    ) -> Placed:
        """Place vectors, in whole steps; ``measured`` takes squares and errors in.

        ``room``, as large as the vectors are in float32, takes those of one part in.
        """
        from protail.ops.kernels import _tiles

        n, n_channels = vectors_nd.shape
        n_padded, width = whole(n, step), whole(n_channels, self.step)
        parts, dtype = PRECISIONS[self.precision]
        copies = 2 if parts == 3 else 1
        spread = 0
        if room is None:
            placed = vectors_nd.new_empty(n_padded, copies * width, dtype=dtype)
        else:
            placed, spread = room.view(dtype), self.step if dtype.itemsize == 2 else 0
        other = vectors_nd.new_empty(width, copies * n_padded, dtype=dtype) if across else None
        square_n, error_n = (vectors_nd.new_empty(n_padded), None) if measured is None else measured
        block = min(512, 1 << (width - 1).bit_length())
        rows = 4 if interpreted() else max(1, _PLACED_AT_A_TIME // block)
        launch(
            _tiles.place,
            (-(-n_padded // rows),),
            vectors_nd,
            self.middle_d,
            self.temperature,
            placed,
            other,
            square_n,
            error_n,
            n,
            n_padded,
            n_channels,
            width,
            SCALED=self.temperature is not None,
            UNIT=self.unit,
            ACROSS=across,
            ERROR=error_n is not None,
            PARTS=parts,
            SPREAD=spread,
            ROWS=rows,
            BLOCK=block,
            num_warps=4,
        )
        return Placed(placed, square_n, error_n, other, n, width, spread)


def middle_of(prototypes_cd: Tensor) -> Tensor:
    """Give a point among the prototypes: the mean of some of them, taken at equal steps."""
    stride = max(1, -(-prototypes_cd.numel() // _CENTRING_SAMPLE))
    return torch.mean(prototypes_cd[::stride], 0)

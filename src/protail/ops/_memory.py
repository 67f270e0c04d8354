"""How much memory a computation may use, and the pieces it is cut into where that is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Bytes that are always allowed, and the most on a CPU, where larger pieces are no faster.
MEMORY_BUDGET = 256 * 2**20
# The part of a GPU's free memory that one computation may take: the rest is for what comes next.
_PART_OF_FREE = 0.5
_KINDS = ("reserved", "active")

# Copies alive at a time of a rows x classes block and of its vectors, at most (autograd's too).
_BLOCK_COPIES = 8
_VECTOR_COPIES = 6


def memory_budget(device: torch.device, needed: int) -> int:
    """Give the bytes that a computation may use beside its inputs and result.

    On a GPU it is half of what is free there, rounded down to a power of two, so that small
    differences of what else lies there do not change the pieces, and with them the last bits.
    """
    if device.type != "cuda" or needed <= MEMORY_BUDGET:
        return MEMORY_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    budget = _part_of(free)
    if budget < needed:  # what torch holds without using it is free too, but takes longer to ask
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        reserved, active = (stats[f"{kind}_bytes"]["all"]["current"] for kind in _KINDS)
        budget = _part_of(free + reserved - active)
    return max(MEMORY_BUDGET, budget)


def _part_of(free: int) -> int:
    part = int(free * _PART_OF_FREE)
    return 1 << (part.bit_length() - 1) if part else 0


class Blocks(NamedTuple):
    """Sizes of the pieces in which rows and classes are worked through."""

    rows: int
    classes: int

    @classmethod
    def within(
        cls,
        budget: int | None,
        x_bd: Tensor,
        prototypes_cd: Tensor,
        itemsize: int,
        copies: int = _BLOCK_COPIES,
        vector_copies: int = _VECTOR_COPIES,
    ) -> Blocks:
        """Choose the largest pieces that a budget allows: many rows first, then many classes."""
        (n_rows, n_features), n_classes = x_bd.shape, prototypes_cd.shape[0]
        vector = vector_copies * n_features
        needed = itemsize * (n_rows * n_classes * copies + (n_rows + n_classes) * vector)
        if budget is None:
            budget = memory_budget(x_bd.device, needed)
        if needed <= budget:
            return cls(max(1, n_rows), n_classes)
        numbers = budget // itemsize
        rows = max(1, min(n_rows, numbers // (4 * max(vector, 1))))
        classes = (numbers - rows * vector) // (rows * copies + vector)
        return cls(rows, max(1, min(n_classes, classes)))


def pieces(total: int, size: int) -> Iterator[slice]:
    """Cut a range into slices of at most one size."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))

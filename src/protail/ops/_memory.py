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

    Parameters
    ----------
    device : torch.device
        Where it computes.
    needed : int
        Bytes with which it would not have to be cut into pieces. A GPU is asked only where they
        are many, because asking takes as long as a small computation.

    Returns
    -------
    int
        Bytes; at least `MEMORY_BUDGET`.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._memory import memory_budget
    >>> memory_budget(torch.device("cpu"), 2**40) // 2**20
    256
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
        """Choose the largest pieces that a budget allows: many rows first, then many classes.

        Parameters
        ----------
        budget : int or None
            Bytes for everything that one piece needs; one row and one class are always taken.
            None asks `memory_budget`.
        x_bd, prototypes_cd : Tensor
            What will be worked through.
        itemsize : int
            Bytes of a number.
        copies, vector_copies : int
            How many rows x classes blocks, and how many sets of their vectors, are needed at a
            time.

        Returns
        -------
        Blocks
            Rows and classes of a piece.

        Examples
        --------
        >>> import torch
        >>> from protail.ops._memory import Blocks
        >>> Blocks.within(2**20, torch.empty(64, 32), torch.empty(100_000, 32), 4)
        Blocks(rows=64, classes=354)
        """
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
    """Cut a range into slices of at most one size.

    Parameters
    ----------
    total, size : int
        Length of the range and of a piece.

    Yields
    ------
    slice
        Every piece, with its true end.

    Examples
    --------
    >>> from protail.ops._memory import pieces
    >>> list(pieces(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))

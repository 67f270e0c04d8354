"""What every form settles before it computes: shapes, schemes, dtype, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from protail.ops.distance import Distance

TEMPERATURES = ("channel", "class", "dense")


def check_inputs(
    x_bd: Tensor, prototypes_cd: Tensor, distance: Distance, temperature: Tensor | None
) -> Tensor | None:
    """Check names and shapes; give the temperature as (1, D), (C, 1) or (C, D)."""
    for name, tensor in (("x", x_bd), ("prototypes", prototypes_cd)):
        if tensor.ndim != 2:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; "
                "expected two dimensions, one vector a row."
            )
    n_classes, n_features = prototypes_cd.shape
    if n_classes == 0:
        raise ValueError("prototypes has no rows; expected at least one class.")
    if x_bd.shape[1] != n_features:
        raise ValueError(
            f"x has {x_bd.shape[1]} features a row; expected {n_features}, as the prototypes have."
        )
    n_channels = distance.width(n_features)
    if temperature is None:
        return None
    scale = temperature if temperature.ndim > 1 else temperature.reshape(1, -1)
    if (
        scale.ndim != 2
        or scale.shape[0] not in (1, n_classes)
        or scale.shape[1] not in (1, n_channels)
    ):
        raise ValueError(
            f"temperature has shape {tuple(temperature.shape)}; "
            f"expected {(1, n_channels)} (channel), {(n_classes, 1)} (class) or "
            f"{(n_classes, n_channels)} (dense)."
        )
    return scale.expand(1, n_channels) if scale.shape == (1, 1) else scale


def check_target(target_b: Tensor, n_rows: int) -> Tensor:
    """Check the class indices of a batch; give them in int64."""
    if target_b.shape != (n_rows,):
        raise ValueError(
            f"target has shape {tuple(target_b.shape)}; expected ({n_rows},), one class a row of x."
        )
    if target_b.dtype == torch.int64:
        return target_b
    if target_b.is_floating_point():
        raise TypeError(f"target has dtype {target_b.dtype}; expected integer class indices.")
    return target_b.long()


def scheme_of(temperature: Tensor | None) -> str | None:
    """Name the scheme of a temperature that `check_inputs` returned."""
    if temperature is None:
        return None
    if temperature.shape[0] == 1:
        return "channel"
    return "class" if temperature.shape[1] == 1 else "dense"


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Give the dtype to compute in: float64 if any input has it, otherwise float32.

    Parameters
    ----------
    *tensors : Tensor or None
        Everything that enters the computation.

    Returns
    -------
    torch.dtype
        ``torch.float64`` or ``torch.float32``.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import compute_dtype
    >>> compute_dtype(torch.zeros(1, dtype=torch.bfloat16), None)
    torch.float32
    """
    for tensor in tensors:
        if tensor is not None and tensor.dtype == torch.float64:
            return torch.float64
    return torch.float32


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

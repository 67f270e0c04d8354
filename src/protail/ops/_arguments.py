"""What every form settles before it computes: shapes, schemes, dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from protail.ops.distance.base import Distance

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

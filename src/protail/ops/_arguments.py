"""What every form settles before it computes: names, shapes, dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from protail._messages import unknown_name

DISTANCES = ("cosine", "euclidean", "sqeuclidean")
TEMPERATURES = ("channel", "class", "dense")


def check_distance(distance: str) -> None:
    """Raise unless ``distance`` is a name of :data:`DISTANCES`.

    Parameters
    ----------
    distance : str
        The name to check.

    Examples
    --------
    >>> from protail.ops._arguments import check_distance
    >>> check_distance("cosine")
    """
    if distance not in DISTANCES:
        raise ValueError(unknown_name("distance", distance, DISTANCES))


def check_inputs(
    x_bd: Tensor, prototypes_cd: Tensor, distance: str, temperature: Tensor | None
) -> Tensor | None:
    """Check names and shapes; give the temperature as (1, D), (C, 1) or (C, D).

    Parameters
    ----------
    x_bd : Tensor
        Feature vectors, one a row.
    prototypes_cd : Tensor
        Prototypes, one a row.
    distance : str
        A name of :data:`DISTANCES`.
    temperature : Tensor or None
        Positive, broadcastable to the prototypes.

    Returns
    -------
    Tensor or None
        The temperature in two dimensions.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._arguments import check_inputs
    >>> check_inputs(torch.zeros(2, 3), torch.zeros(4, 3), "cosine", torch.ones(3)).shape
    torch.Size([1, 3])
    """
    check_distance(distance)
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
    if temperature is None:
        return None
    scale = temperature if temperature.ndim > 1 else temperature.reshape(1, -1)
    if (
        scale.ndim != 2
        or scale.shape[0] not in (1, n_classes)
        or scale.shape[1] not in (1, n_features)
    ):
        raise ValueError(
            f"temperature has shape {tuple(temperature.shape)}; "
            f"expected {(1, n_features)} (channel), {(n_classes, 1)} (class) or "
            f"{(n_classes, n_features)} (dense)."
        )
    return scale.expand(1, n_features) if scale.shape == (1, 1) else scale


def check_target(target_b: Tensor, n_rows: int) -> Tensor:
    """Check the class indices of a batch; give them in int64.

    Parameters
    ----------
    target_b : Tensor
        Class index of each row, of any integer dtype.
    n_rows : int
        Rows of the batch.

    Returns
    -------
    Tensor
        The same in int64.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._arguments import check_target
    >>> check_target(torch.tensor([1, 0], dtype=torch.int32), 2).dtype
    torch.int64
    """
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
    """Name the scheme of a temperature that `check_inputs` returned.

    Parameters
    ----------
    temperature : Tensor or None
        (1, D), (C, 1) or (C, D).

    Returns
    -------
    str or None
        ``"channel"``, ``"class"``, ``"dense"`` or None.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._arguments import scheme_of
    >>> scheme_of(torch.ones(4, 1))
    'class'
    """
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
    >>> from protail.ops._arguments import compute_dtype
    >>> compute_dtype(torch.zeros(1, dtype=torch.bfloat16), None)
    torch.float32
    """
    for tensor in tensors:
        if tensor is not None and tensor.dtype == torch.float64:
            return torch.float64
    return torch.float32

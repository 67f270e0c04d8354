"""What losses settle about a batch before they compute."""

from __future__ import annotations

import torch
from torch import Tensor

from protail.ops._precision import in_full


def checked_batch(logits: Tensor, target: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Check a batch; give it in the precision that losses compute in.

    Parameters
    ----------
    logits : Tensor, shape (batch, n_classes)
        Of any floating-point dtype.
    target : Tensor of int, shape (batch,)
        The class code of every row.
    n_classes : int
        How many classes the loss knows.

    Returns
    -------
    logits_bc, target_b : Tensor
        The logits in float32 or, where they came so, in float64; the class codes in int64.

    Examples
    --------
    >>> import torch
    >>> from protail.losses._batch import checked_batch
    >>> logits, target = checked_batch(torch.zeros(1, 2).half(), torch.tensor([1]), 2)
    >>> logits.dtype
    torch.float32
    """
    if logits.ndim != 2 or logits.shape[1] != n_classes or not logits.is_floating_point():
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and dtype {logits.dtype}; expected "
            f"floating point of shape (batch, {n_classes}), a column for each of the counts."
        )
    if target.shape != logits.shape[:1] or target.is_floating_point():
        raise ValueError(
            f"target has shape {tuple(target.shape)} and dtype {target.dtype}; expected "
            f"integer class codes of shape ({logits.shape[0]},), one for each row of logits."
        )
    _check_range(target, n_classes)
    return in_full(logits), target.long()


def own_class(target_b: Tensor, n_classes: int) -> Tensor:
    """Mark the class of every row, without reading values back from a GPU.

    Parameters
    ----------
    target_b : Tensor of int, shape (batch,)
        The class code of every row.
    n_classes : int
        How many classes there are.

    Returns
    -------
    Tensor of bool, shape (batch, n_classes)
        True in the column of its class.

    Examples
    --------
    >>> import torch
    >>> from protail.losses._batch import own_class
    >>> own_class(torch.tensor([1]), 3)
    tensor([[False,  True, False]])
    """
    return target_b[:, None] == torch.arange(n_classes, device=target_b.device)


def _check_range(target: Tensor, n_classes: int) -> None:
    # Reading values would break a compiled graph, and on a GPU stall the queue.
    if torch.compiler.is_compiling() or target.device.type != "cpu" or target.numel() == 0:
        return
    low, high = int(target.min()), int(target.max())
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"target runs from {low} to {high}; expected class codes from 0 to {n_classes - 1}."
        )

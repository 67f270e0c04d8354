"""Losses by name, and what losses share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from protail._registry import Registry
from protail.ops import in_full
from protail.profile import Counts

Loss = TypeVar("Loss", bound=Callable[..., nn.Module])

# A loss may take a dtype; recipes set none.
LOSSES: Registry[nn.Module] = Registry("loss", given=["counts", "dtype"], package="protail.losses")


def register_loss(name: str, *, heads: Sequence[str] = ()) -> Callable[[Loss], Loss]:
    """Give a loss a name that `make_loss` and recipes know.

    Parameters
    ----------
    name : str
        What users will write. It must be free.
    heads : sequence of str
        The heads whose logits it can take; empty for any. Where head and loss both have a
        ``scale``, it must be the same one.

    Returns
    -------
    callable
        A decorator for a class or function that takes ``counts``, the training rows of every
        class, and options, and gives a module: logits and labels to a number. One with a method
        ``on_epoch`` is told each epoch as it begins, and may change its buffers in place.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.losses import make_loss, register_loss
    >>> @register_loss("summed")
    ... def summed(counts) -> nn.Module:
    ...     return nn.CrossEntropyLoss(reduction="sum")
    >>> make_loss("summed", [3, 1])
    CrossEntropyLoss()
    """
    return LOSSES.register(name, heads=tuple(heads))


def make_loss(name: str, counts: Counts, **options: Any) -> nn.Module:
    """Make a loss by name.

    Parameters
    ----------
    name : str
        One of `loss_names`.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class.
    **options
        What that loss takes; for "logit-adjusted" ``tau``, for "cross-entropy"
        ``label_smoothing``, and ``reweight_from`` and ``beta`` for weights of the classes from
        an epoch on.

    Returns
    -------
    torch.nn.Module
        Logits and labels to a number.

    Examples
    --------
    >>> from protail.losses import make_loss
    >>> make_loss("logit-adjusted", [3, 1], tau=0.5)
    LogitAdjustedLoss(n_classes=2, tau=0.5)
    """
    return LOSSES.taking(name, options)(counts, **options)


def loss_names() -> list[str]:
    """List the losses that `make_loss` knows.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.losses import loss_names
    >>> {"cross-entropy", "logit-adjusted"} <= set(loss_names())
    True
    """
    return LOSSES.names()


def begin_epoch(loss: nn.Module, epoch: int) -> None:
    """Tell a loss which epoch begins, from 0; only one with ``on_epoch`` is told.

    Examples
    --------
    >>> from protail.losses import LDAMLoss, begin_epoch
    >>> begin_epoch(LDAMLoss([3, 1], reweight_from=160), 160)
    """
    tell = getattr(loss, "on_epoch", None)
    if tell is not None:
        tell(epoch)


def check_plain_cross_entropy(loss: nn.Module, because: str) -> None:
    """Raise unless a loss is the cross-entropy without options, ``because`` of a method's own."""
    if (
        type(loss) is not nn.CrossEntropyLoss
        or loss.weight is not None
        or loss.label_smoothing
        or loss.reduction != "mean"
    ):
        raise ValueError(
            f"loss={loss!r}; {because}, and expected the plain cross-entropy, 'cross-entropy' "
            "without options."
        )


def checked_batch(logits: Tensor, target: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Check a batch; give its logits in float32 or float64 and its class codes in int64."""
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
    # Reading values would break a compiled graph, and on a GPU stall the queue.
    can_be_read = target.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_be_read and target.numel() > 0:
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= n_classes:
            raise ValueError(
                f"target runs from {low} to {high}; expected class codes from 0 to {n_classes - 1}."
            )
    return in_full(logits), target.long()


def is_target(target_b: Tensor, n_classes: int) -> Tensor:
    """Mark the target class of every row (batch, classes); reads no value back from a GPU."""
    return target_b[:, None] == torch.arange(n_classes, device=target_b.device)

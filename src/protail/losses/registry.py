"""Losses by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from protail._registry import Registry
from protail.losses.logit_adjusted import LogitAdjustedLoss
from protail.losses.reweighted import ReweightedCrossEntropy
from protail.profile import Counts

Loss = TypeVar("Loss", bound=Callable[..., nn.Module])

LOSSES: Registry[nn.Module] = Registry("loss", given=["counts"], package="protail.losses")


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
    >>> from protail.losses.registry import make_loss, register_loss
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
    >>> from protail.losses.registry import make_loss
    >>> make_loss("logit-adjusted", [3, 1], tau=0.5)
    LogitAdjustedLoss(n_classes=2, tau=0.5)
    """
    return LOSSES.make(name, counts, **options)


def loss_names() -> list[str]:
    """List the losses that `make_loss` knows.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.losses.registry import loss_names
    >>> {"cross-entropy", "logit-adjusted"} <= set(loss_names())
    True
    """
    return LOSSES.names()


@register_loss("cross-entropy")
def _cross_entropy(
    counts: Counts,
    *,
    label_smoothing: float = 0.0,
    reweight_from: int | None = None,
    beta: float = 0.9999,
) -> nn.Module:
    """Make the cross-entropy.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class.
    label_smoothing : float, default=0
        How much of each label is spread over all classes.
    reweight_from : int, optional
        The epoch, counted from 0, from which on a class counts the more the rarer it is: one over
        its effective number of images, ``(1 - beta^N) / (1 - beta)``.
    beta : float, default=0.9999
        0 weighs all classes alike; towards 1 a class counts as one over its images.

    Returns
    -------
    torch.nn.Module
        Logits and labels to a number.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing={label_smoothing!r}; expected from 0 to below 1.")
    if not 0 <= beta < 1:
        raise ValueError(f"beta={beta!r}; expected from 0 to below 1, as in 0.9999.")
    if reweight_from is None:
        return nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    return ReweightedCrossEntropy(counts, reweight_from, beta, label_smoothing)


@register_loss("logit-adjusted")
def _logit_adjusted(counts: Counts, *, tau: float = 0.25) -> nn.Module:
    return LogitAdjustedLoss(counts, tau)

"""Whether a loss is the cross-entropy and nothing else."""

from __future__ import annotations

from torch import nn


def check_plain_cross_entropy(loss: nn.Module, because: str) -> None:
    """Raise unless a loss is the cross-entropy without any option.

    For methods that have a loss of their own: what another one would do would not be done.

    Parameters
    ----------
    loss : nn.Module
        What came.
    because : str
        Why nothing else is taken, for the message, as in "'paco' has a loss of its own".

    Examples
    --------
    >>> from torch import nn
    >>> from protail.losses._plain import check_plain_cross_entropy
    >>> check_plain_cross_entropy(nn.CrossEntropyLoss(), "'paco' has a loss of its own")
    """
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

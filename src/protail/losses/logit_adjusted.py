"""Cross-entropy that expects less of a class the rarer it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protail.losses.registry import checked_batch, register_loss
from protail.options import NonNegative, checked
from protail.profile import ClassProfile, Counts


@register_loss("logit-adjusted")
class LogitAdjustedLoss(nn.Module):
    """Average the cross-entropy of ``logits + tau * log N_y`` over a batch.

    The adjustment belongs to training alone: at inference nothing is added, so every class
    stands where it would under equal counts.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    tau : float, default=0.25
        Strength of the adjustment; 0 is plain cross-entropy, the paper uses 1/4.
    dtype : torch.dtype, optional
        Precision of the adjustment; by default torch's default dtype.

    Attributes
    ----------
    adjustment : Tensor, shape (n_classes,)
        ``tau * log N_y``; a buffer, so it moves and saves with the module.

    References
    ----------
    Long-Tail Learning via Logit Adjustment. ICLR 2021.

    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import LogitAdjustedLoss
    >>> loss = LogitAdjustedLoss([100, 10, 1], tau=1.0)
    >>> logits = torch.zeros(2, 3)
    >>> loss(logits, torch.tensor([0, 2]))  # -log(100/111) and -log(1/111), averaged
    tensor(2.4069)
    """

    adjustment: Tensor

    @checked
    def __init__(
        self, counts: Counts, tau: NonNegative = 0.25, *, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.tau = float(tau)
        adjustment = torch.as_tensor(
            self.tau * ClassProfile.of(counts).log_counts, dtype=dtype or torch.get_default_dtype()
        )
        self.register_buffer("adjustment", adjustment)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        logits : Tensor, shape (batch, n_classes)
            Unadjusted logits. float16 and bfloat16 are summed in float32.
        target : Tensor of int, shape (batch,)
            The class code of every row.

        Returns
        -------
        Tensor, shape ()
            The mean over the batch, in float32 or, for float64 logits, in float64.

        Examples
        --------
        >>> loss = LogitAdjustedLoss([3, 1], tau=0)
        >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1269)
        """
        logits, target = checked_batch(logits, target, len(self.adjustment))
        return cross_entropy(logits + self.adjustment.to(logits.dtype), target)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"n_classes={self.adjustment.shape[0]}, tau={self.tau:g}"

"""Cross-entropy that expects less of a class the rarer it is."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protail.losses._batch import checked_batch
from protail.profile import ClassProfile, Counts


class LogitAdjustedLoss(nn.Module):
    """Average the cross-entropy of ``logits + tau * log N_y`` over a batch.

    The adjustment belongs to training alone: at inference nothing is added, so every class
    stands where it would under equal counts.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class, none of them 0.
    tau : float
        Strength of the adjustment; 0 is plain cross-entropy, the paper uses 1/4.
    dtype : torch.dtype, optional
        Precision of the adjustment; by default torch's default dtype.

    Attributes
    ----------
    adjustment : Tensor, shape (n_classes,)
        ``tau * log N_y``; a buffer, so it moves and saves with the module.

    Examples
    --------
    >>> import torch
    >>> from protail import LogitAdjustedLoss
    >>> loss = LogitAdjustedLoss([100, 10, 1], tau=1.0)
    >>> logits = torch.zeros(2, 3)
    >>> loss(logits, torch.tensor([0, 2]))  # -log(100/111) and -log(1/111), averaged
    tensor(2.4069)
    """

    adjustment: Tensor

    def __init__(
        self,
        counts: Counts,
        tau: float = 0.25,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(tau, Real) or not math.isfinite(tau) or tau < 0:
            raise ValueError(
                f"tau={tau!r}; expected a finite number >= 0. "
                "Use tau=0 for plain cross-entropy, tau=0.25 for the paper's setting."
            )
        profile = ClassProfile.of(counts)
        self.tau: float = float(tau)
        adjustment = torch.as_tensor(
            self.tau * profile.log_counts, dtype=dtype or torch.get_default_dtype()
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
        """Say what the module's repr shows.

        Returns
        -------
        str
            Class count and tau.

        Examples
        --------
        >>> LogitAdjustedLoss([3, 1])
        LogitAdjustedLoss(n_classes=2, tau=0.25)
        """
        return f"n_classes={self.adjustment.shape[0]}, tau={self.tau:g}"

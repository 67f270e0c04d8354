"""The tau-normalised head: the classifier of stage 1 with the lengths of its weights undone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import linear

from protail.heads._frozen_linear import FrozenLinear
from protail.heads.registry import register_head
from protail.ops import unit_rows
from protail.ops._precision import full_precision


@register_head("tau-normalized", builds_on=("linear",))
class TauNormalizedHead(FrozenLinear):
    """Divide the weight vector of each class by its length to the power of tau.

    Frequent classes have long weight vectors; without the lengths they lose that advantage.
    Nothing learns here: there are no parameters.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_features : int
        Length of a feature vector.
    tau : float, default=1
        0 leaves the weights as they are; at 1 all have length 1 (L2-norm).
    bias : bool, default=False
        Whether the bias of stage 1 is added, as it is.

    Examples
    --------
    >>> import torch
    >>> from protail.heads.linear import LinearHead
    >>> from protail.heads.tau_normalized import TauNormalizedHead
    >>> first = LinearHead(2, 2)
    >>> _ = first.weight.data.copy_(torch.tensor([[6.0, 8.0], [0.0, 0.5]]))
    >>> TauNormalizedHead(2, 2).build_on(first, [9, 1])(torch.ones(1, 2))
    tensor([[1.4000, 1.0000]])
    """

    def __init__(
        self, n_classes: int, n_features: int, *, tau: float = 1.0, bias: bool = False
    ) -> None:
        super().__init__(n_classes, n_features)
        if not 0 <= tau < math.inf:
            raise ValueError(f"tau={tau!r}; expected a finite number from 0 on, as in 1.0.")
        self.tau = tau
        self.has_bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits.

        Parameters
        ----------
        x : Tensor
            Feature vectors (batch, channels); brought to the precision of the weights.

        Returns
        -------
        Tensor
            (batch, classes).
        """
        bias_c = self.frozen_bias if self.has_bias else None
        with full_precision(x.device):
            return linear(self.checked(x), self.normalized_weight(), bias_c)

    def normalized_weight(self) -> Tensor:
        """Give the weights as they are used.

        Returns
        -------
        Tensor, shape (n_classes, n_features)
            A row without length stays as it is.
        """
        _, zero_c = unit_rows(self.frozen_weight)
        lengths_c = torch.linalg.vector_norm(self.frozen_weight, dim=1)
        lengths_c = torch.where(zero_c > 0, 1, lengths_c)
        return self.frozen_weight * lengths_c.pow(-self.tau)[:, None]

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, tau={self.tau!r}, bias={self.has_bias!r}"

"""The tau-normalised head: the classifier of stage 1 with the lengths of its weights undone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from protail.models.heads.linear import FrozenLinear
from protail.models.heads.registry import register_head
from protail.ops import full_precision, unit_rows
from protail.options import NonNegative, checked


@register_head("tau-normalized", builds_on=("linear",), learns=False)
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

    References
    ----------
    Decoupling Representation and Classifier for Long-Tailed Recognition. ICLR 2020.

    Examples
    --------
    >>> import torch
    >>> from protail.models.heads import LinearHead, TauNormalizedHead
    >>> first = LinearHead(2, 2)
    >>> _ = first.weight.data.copy_(torch.tensor([[6.0, 8.0], [0.0, 0.5]]))
    >>> TauNormalizedHead(2, 2).build_on(first, [9, 1])(torch.ones(1, 2))
    tensor([[1.4000, 1.0000]])
    """

    @checked
    def __init__(
        self, n_classes: int, n_features: int, *, tau: NonNegative = 1.0, bias: bool = False
    ) -> None:
        super().__init__(n_classes, n_features)
        self.tau = tau
        self.has_bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits (batch, classes), in the precision of the weights."""
        bias_c = self.frozen_bias if self.has_bias else None
        with full_precision(x.device):
            return linear(self._checked_features(x), self.normalized_weight(), bias_c)

    def normalized_weight(self) -> Tensor:
        """Give the weights as they are used; a row without length stays as it is."""
        _, zero_c = unit_rows(self.frozen_weight)
        lengths_c = torch.linalg.vector_norm(self.frozen_weight, dim=1)
        lengths_c = torch.where(zero_c > 0, 1, lengths_c)
        return self.frozen_weight * lengths_c.pow(-self.tau)[:, None]

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"{super().extra_repr()}, tau={self.tau!r}, bias={self.has_bias!r}"

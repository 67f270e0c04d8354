"""The loss of gates: whether a further expert would have helped."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from protail.losses.registry import register_loss
from protail.models.heads import Routing
from protail.ops import in_full
from protail.options import Positive, checked
from protail.profile import Counts


@register_loss("routing", heads=("routed-experts",))
class RoutingLoss(nn.Module):
    """Average the binary cross-entropy of the gates over images and gates.

    A gate should be open where the experts so far are wrong together and with some of the later
    ones they would be right.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training rows of every class; not needed.
    positive_weight : float, default=100
        How much more a gate counts that should be open, which few should.

    References
    ----------
    Long-tailed Recognition by Routing Diverse Distribution-Aware Experts. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.losses import RoutingLoss
    >>> from protail.models.heads import Routing
    >>> # The first expert takes it for class 0, both together for class 1.
    >>> running = torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])
    >>> loss = RoutingLoss([3, 1], positive_weight=10.0)
    >>> loss(Routing(torch.zeros(1, 1), running), torch.tensor([1]))  # 10 log 2
    tensor(6.9315)
    """

    @checked
    def __init__(self, counts: Counts, *, positive_weight: Positive = 100.0) -> None:
        super().__init__()
        self.positive_weight = positive_weight

    def forward(self, routing: Routing, target: Tensor) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        routing : Routing
            What the head "routed-experts" gives in training mode.
        target : Tensor of int, shape (batch,)
            The class code of every row.

        Returns
        -------
        Tensor, shape ()
            The mean, in float32 or, for float64 gates, in float64.
        """
        if not isinstance(routing, Routing):
            raise TypeError(
                f"the loss 'routing' got a {type(routing).__name__}; expected what the head "
                "'routed-experts' gives in training mode."
            )
        gates = in_full(routing.gates)
        wanted = should_be_open(routing.running, target).to(gates.dtype)
        weights = 1 + (self.positive_weight - 1) * wanted
        return binary_cross_entropy_with_logits(gates, wanted, weights)

    def extra_repr(self) -> str:
        """Show the options in ``repr``."""
        return f"positive_weight={self.positive_weight:g}"


def should_be_open(running_bec: Tensor, target_b: Tensor) -> Tensor:
    """Mark the gates (batch, experts - 1) where experts so far are wrong and later ones right."""
    right_be = running_bec.argmax(2) == target_b[:, None]
    later_be = [right_be[:, expert:].any(1) for expert in range(1, right_be.shape[1])]
    return ~right_be[:, :-1] & torch.stack(later_be, dim=1)

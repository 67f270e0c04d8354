"""Experts that learn side by side and are kept from agreeing."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from protail.methods.method import ImageBatch, Method, register_method
from protail.models.heads import HeadPerExpert
from protail.ops import in_full
from protail.options import BelowOne, Epoch, Positive, checked
from protail.profile import ClassProfile, Counts


@checked
def class_temperatures(
    counts: Counts, rho: BelowOne = 0.05, temperature: Positive = 1.0
) -> NDArray[np.float64]:
    """Give each class a temperature, the lower the rarer it is.

    With the fraction ``pi_c`` of all images that are of class c and C classes, ``b_c = rho C pi_c
    + 1 - rho``, and the temperature is ``temperature * b_c / max b``.

    Parameters
    ----------
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class.
    rho : float, default=0.05
        0 gives all classes the same, from 0 to below 1.
    temperature : float, default=1
        That of the most frequent class.

    Returns
    -------
    ndarray of float64, shape (n_classes,)
        A temperature a class.

    Examples
    --------
    >>> from protail.methods import class_temperatures
    >>> class_temperatures([3, 1], rho=0.5)  # b = 5/4 and 3/4
    array([1. , 0.6])
    """
    profile = ClassProfile.of(counts)
    prior = profile.counts / profile.counts.sum()
    spread = rho * len(prior) * prior + 1 - rho
    return np.asarray(temperature * spread / spread.max())


@register_method("ride", heads=("experts",), losses=("ldam", "cross-entropy"))
class RoutedDiverseExperts(Method):
    """Add up the experts' losses, and take off how far they are from their mean (RIDE).

    Each expert has a loss of its own, on its own logits. What is taken off is the divergence of
    its softmax from that of the mean logits, averaged over the batch, with a temperature for every
    class: 1 at first, and from some epoch on the lower the rarer a class is, so that experts differ
    there the most.

    Parameters
    ----------
    backbone : nn.Module
        Images to the experts' features, side by side.
    head : HeadPerExpert
        Features to logits, those of each expert and their mean.
    loss : nn.Module
        Logits and labels to a number, for each expert.
    counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
        Training images of every class.
    diversity : float, default=0.45
        How much the divergence counts; below 1, because it has no bound.
    rho : float, default=0.05
        How far the temperatures of classes are apart, as in `class_temperatures`.
    temperature : float, default=1
        The highest of them.
    reweight_from : int, default=160
        The first epoch with temperatures by class, counted from 0.
    pairwise : bool, default=False
        Whether experts diverge from each other, as in the paper, or, as in its published code, from
        their mean: ``KL(expert || other)``, averaged over the others, or ``mean(T)^2 KL(mean ||
        expert)``, through which no gradient passes into the mean.

    Attributes
    ----------
    temperatures : Tensor, shape (n_classes,)
        Those of now; a buffer that changes in place.

    References
    ----------
    Long-tailed Recognition by Routing Diverse Distribution-Aware Experts. ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from protail.models.heads import ExpertsHead
    >>> from protail.methods import ImageBatch, RoutedDiverseExperts
    >>> parts = nn.Flatten(), ExpertsHead(2, 12, experts=3), nn.CrossEntropyLoss(), [3, 1]
    >>> method = RoutedDiverseExperts(*parts, rho=0.5, reweight_from=2)
    >>> method(ImageBatch(torch.randn(4, 3, 2, 2), torch.tensor([0, 0, 0, 1]))).shape
    torch.Size([])
    >>> method.on_epoch(2)
    >>> method.temperatures
    tensor([1.0000, 0.6000])
    """

    head: HeadPerExpert
    temperatures: Tensor
    later_temperatures: Tensor

    @checked
    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        loss: nn.Module,
        counts: Counts,
        *,
        diversity: BelowOne = 0.45,
        rho: BelowOne = 0.05,
        temperature: Positive = 1.0,
        reweight_from: Epoch = 160,
        pairwise: bool = False,
    ) -> None:
        super().__init__(backbone, head, loss, counts)
        if not isinstance(head, HeadPerExpert):
            raise TypeError(
                f"head is a {type(head).__name__}; expected one with experts, such as 'experts'."
            )
        self.diversity = diversity
        self.reweight_from = reweight_from
        self.pairwise = pairwise
        later = torch.from_numpy(class_temperatures(counts, rho, temperature)).float()
        self.register_buffer("later_temperatures", later)
        self.register_buffer("temperatures", torch.ones_like(later))

    def on_epoch(self, epoch: int) -> None:
        """Set the temperatures of an epoch, counted from 0, and what the loss sets, in place."""
        super().on_epoch(epoch)
        if epoch >= self.reweight_from:
            self.temperatures.copy_(self.later_temperatures)
        else:
            self.temperatures.fill_(1.0)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Give the loss of a batch.

        Parameters
        ----------
        batch : ImageBatch
            What the step gets.

        Returns
        -------
        Tensor, shape ()
            The sum over experts; of mixed images, with both classes in their fractions.
        """
        logits_ebc = in_full(self.head.expert_logits(self.features(batch.images)))
        losses = torch.stack([self.loss_of(logits_bc, batch) for logits_bc in logits_ebc])
        return losses.sum() - self.diversity * self._divergence(logits_ebc)

    def _divergence(self, logits_ebc: Tensor) -> Tensor:
        """Add up over experts how far each is from the others, averaged over the batch."""
        temperatures = self.temperatures.to(logits_ebc.dtype)
        experts_ebc = log_softmax(logits_ebc / temperatures, dim=2)
        n_experts, n_images, _ = logits_ebc.shape
        if self.pairwise:
            divergences = _divergence(experts_ebc[:, None], experts_ebc[None])
            return divergences.sum() / (n_images * max(n_experts - 1, 1))
        # Of all distributions this one is the least far from the experts: no gradient through it.
        mean_bc = log_softmax(logits_ebc.mean(0) / temperatures, dim=1).detach()
        divergences = _divergence(mean_bc, experts_ebc)
        return temperatures.mean().square() * divergences.sum() / n_images


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Kullback and Leibler's, of p from q, over the last dimension."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)

"""A moving average of weights, for whoever is evaluated in the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class MovingAverage(nn.Module):
    """Follow a module with an exponential moving average of its parameters.

    Its tensors change in place and only by tensor code, so a CUDA graph can hold `update`. The
    statistics of batch norms are averaged too, which is near enough on the way; in the end
    `count_anew` gives the average those of its own. Other buffers are taken over as they are.

    Parameters
    ----------
    module : nn.Module
        Whom to follow.
    decay : float
        How much of the average stays at each step; 0 is the module itself.

    Attributes
    ----------
    average : nn.Module
        A copy of the module with averaged parameters.

    Examples
    --------
    >>> import torch
    >>> from protail.training import MovingAverage
    >>> module = torch.nn.Linear(1, 1, bias=False)
    >>> average = MovingAverage(module, decay=0.75)
    >>> start = module.weight.item()
    >>> _ = torch.nn.init.constant_(module.weight, start + 1)
    >>> average.update()
    >>> round(average.average.weight.item() - start, 6)
    0.25
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay!r}; expected 0 <= decay < 1, as in 0.999.")
        self.decay = decay
        self.average = copy.deepcopy(module).requires_grad_(False)
        pairs: list[tuple[Tensor, Tensor]] = list(
            zip(self.average.parameters(), module.parameters(), strict=True)
        )
        taken = dict(zip(self.average.buffers(), module.buffers(), strict=True))
        for norm in _batch_norms(self.average):
            pairs += [(each, taken.pop(each)) for each in _statistics(norm)]
        # In tuples, so that they are not registered as parts of the average.
        self._averaged = (tuple(own for own, _ in pairs), tuple(other for _, other in pairs))
        self._taken = tuple(taken.items())

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the module."""
        averaged, followed = self._averaged
        if averaged:
            torch._foreach_lerp_(averaged, followed, 1 - self.decay)
        for own, other in self._taken:
            own.copy_(other)

    @torch.no_grad()
    def count_anew(
        self,
        batches: Iterable[Any],
        forward: Callable[[Any], object],
        shared: Callable[[Tensor], Tensor] = lambda mean: mean,
    ) -> None:
        """Let the average's batch norms forget their statistics, and count those of batches.

        Parameters
        ----------
        batches : iterable
            Each counts as much as every other.
        forward : callable
            Shows the average a batch.
        shared : callable, optional
            The mean over processes, where each has its own batches.

        Examples
        --------
        >>> import torch
        >>> from protail.training import MovingAverage
        >>> average = MovingAverage(torch.nn.BatchNorm1d(1), decay=0.75)
        >>> average.count_anew([torch.tensor([[1.0], [2.0]])], average.average)
        >>> average.average.running_mean, average.average.running_var
        (tensor([1.5000]), tensor([0.5000]))
        """
        # What a module keeps in eval mode while it is trained has statistics that stay.
        norms = [norm for norm in _batch_norms(self.average.train()) if norm.training]
        before = [norm.momentum for norm in norms]
        # Dropout stays off, as it does not under torch's `update_bn`: the same weights then have
        # the same statistics, and no generator is drawn from that recorded steps share.
        self.average.eval()
        try:
            for norm in norms:
                norm.train()
                norm.reset_running_stats()
                norm.momentum = None  # a plain mean
            for batch in batches:
                forward(batch)
        finally:
            self.average.eval()
            for norm, momentum in zip(norms, before, strict=True):
                norm.momentum = momentum
        for norm in norms:
            for each in _statistics(norm):
                each.copy_(shared(each))


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [
        each
        for each in module.modules()
        if isinstance(each, _BatchNorm) and each.track_running_stats
    ]


def _statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var

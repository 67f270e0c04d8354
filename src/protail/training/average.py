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

    Its tensors change in place and only by tensor code, so a CUDA graph can hold
    `update`. Buffers, such as the statistics of batch normalisation, are taken over as
    they are; `count_anew` gives the average statistics of its own.

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
        # In a tuple, so that they are not registered as parts of the average.
        self._followed = (tuple(module.parameters()), tuple(module.buffers()))

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the module."""
        parameters, buffers = self._followed
        averaged = tuple(self.average.parameters())
        if averaged:
            torch._foreach_lerp_(averaged, parameters, 1 - self.decay)
        for own, other in zip(self.average.buffers(), buffers, strict=True):
            own.copy_(other)

    @torch.no_grad()
    def count_anew(
        self,
        batches: Iterable[Any],
        forward: Callable[[Any], object],
        shared: Callable[[Tensor], Tensor] = lambda mean: mean,
    ) -> None:
        """Let the average's batch norms forget the followed module's statistics, and count theirs.

        Parameters
        ----------
        batches : iterable
            Each counts as much as every other.
        forward : callable
            Shows the average a batch.
        shared : callable, optional
            The mean over processes, where each has its own batches.
        """
        norms = [each for each in self.average.modules() if isinstance(each, _BatchNorm)]
        before = [norm.momentum for norm in norms]
        self.average.eval()
        for norm in norms:  # not dropout: same weights, same statistics
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean
        for batch in batches:
            forward(batch)
        self.average.eval()
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
            for statistic in (norm.running_mean, norm.running_var):
                if statistic is not None:
                    statistic.copy_(shared(statistic))

"""A moving average of weights, for whoever is evaluated in the end."""

from __future__ import annotations

import copy

import torch
from torch import nn


class MovingAverage(nn.Module):
    """Follow a module with an exponential moving average of its parameters.

    Its tensors change in place and only by tensor code, so a CUDA graph can hold
    `update`. Buffers, such as the statistics of batch normalisation, are taken over as
    they are.

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

"""The plain driver: autograd and a torch optimiser, a kernel at a time, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


class PlainDriver(Generic[Batch]):
    """Step by step: loss, gradient, optimiser.

    Parameters
    ----------
    loss : callable
        Maps a batch to a number with a gradient.
    optimizer : torch.optim.Optimizer
        Moves the parameters; its rates at this moment are the base rates.
    after_step : callable, optional
        Called after each step, for instance to project the parameters.

    Examples
    --------
    >>> import torch
    >>> from protail.training import PlainDriver
    >>> place = torch.nn.Parameter(torch.tensor(0.0))
    >>> driver = PlainDriver(lambda goal: (place - goal) ** 2, torch.optim.SGD([place], lr=0.5))
    >>> driver.advance(3.0), place.item()
    (tensor(9.), 3.0)
    """

    def __init__(
        self,
        loss: Callable[[Batch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._after_step = after_step
        self._base_rates = [group["lr"] for group in optimizer.param_groups]

    def set_rate(self, factor: float) -> None:
        """Multiply every base rate by ``factor`` for the steps to come.

        Parameters
        ----------
        factor : float
            1 for the rates the optimiser came with.
        """
        for group, base in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor

    def advance(self, batch: Batch) -> Tensor:
        """Take one step.

        Parameters
        ----------
        batch : object
            Whatever the loss takes.

        Returns
        -------
        Tensor
            The loss before the step, detached.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        return loss.detach()

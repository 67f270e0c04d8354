"""Sharpness-aware minimisation: gradients from the worst place near the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# No gradient is no direction.
_SMALLEST = 1e-12


class SharpnessAware:
    """Take the gradient where the loss within a radius is highest, to first order.

    The weights are moved by ``radius`` along the gradient before the loss that counts is computed,
    and are back in their place when the optimiser moves them [1]_. That takes two passes a step.
    Batch norms count the first alone. Pure tensor code: a CUDA graph can hold it.

    Parameters
    ----------
    module : nn.Module
        Whose batch norms are not to count the second pass.
    optimizer : torch.optim.Optimizer
        Whose parameters are moved; it restores them before each of its steps.
    radius : float
        How far, in the norm over all parameters; 0 takes the gradient where the weights are, in
        one pass.

    References
    ----------
    .. [1] P. Foret et al., "Sharpness-Aware Minimization for Efficiently Improving
       Generalization", ICLR 2021.

    Examples
    --------
    >>> import torch
    >>> from protail.training.sharpness import SharpnessAware
    >>> module = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(module.weight, 2.0)
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> sharp = SharpnessAware(module, optimizer, radius=0.5)
    >>> loss = sharp(lambda: module(torch.ones(1, 1)).square().sum())  # at 2.5: slope 5
    >>> loss.backward()
    >>> optimizer.step()
    >>> module.weight.item()
    1.5
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, radius: float) -> None:
        if not 0 <= radius < float("inf"):
            raise ValueError(f"radius={radius!r}; expected a number from 0 on, as in 0.05.")
        self._radius = radius
        groups = optimizer.param_groups
        self._parameters: list[Tensor] = [each for group in groups for each in group["params"]]
        self._norms = [each for each in module.modules() if isinstance(each, _BatchNorm)]
        self._moved: list[tuple[Tensor, Tensor]] = []
        if radius:
            optimizer.register_step_pre_hook(self._restore)

    def __call__(self, loss: Callable[[], Tensor]) -> Tensor:
        """Compute a loss at the worst place near the weights.

        Parameters
        ----------
        loss : callable
            Computes it where the weights are; called twice, but for radius 0.

        Returns
        -------
        Tensor, shape ()
            The last one. Its gradient is the one to step by; nothing else may change the
            parameters before the optimiser's step.
        """
        if not self._radius:
            return loss()
        self._restore()
        self._move(torch.autograd.grad(loss(), self._parameters, allow_unused=True))
        try:
            with self._uncounted():
                return loss()
        except BaseException:
            self._restore()
            raise

    @torch.no_grad()
    def _move(self, gradients: Sequence[Tensor | None]) -> None:
        pairs = zip(self._parameters, gradients, strict=True)
        used = [(place, slope) for place, slope in pairs if slope is not None]
        places, slopes = [place for place, _ in used], [slope for _, slope in used]
        self._moved = [(place, place.clone()) for place in places]
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(slopes)))
        away = torch._foreach_mul(slopes, self._radius / length.clamp_min(_SMALLEST))
        torch._foreach_add_(places, away)
        # An autocast around both passes would go on with copies of the weights as they were.
        torch.clear_autocast_cache()

    @torch.no_grad()
    def _restore(self, *_: Any) -> None:
        for place, before in self._moved:
            place.copy_(before)
        self._moved = []

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        before = [norm.track_running_stats for norm in self._norms]
        for norm in self._norms:
            norm.track_running_stats = False
        try:
            yield
        finally:
            for norm, tracked in zip(self._norms, before, strict=True):
                norm.track_running_stats = tracked

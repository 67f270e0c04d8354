"""What changes weights beside the optimiser: row limits, SAM and moving averages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protail.options import BelowOne, NonNegative, Positive, Range, checked

# Where the gradient is zero, it has no direction.
_SMALLEST = 1e-12


class MaxNorm:
    """Keep every row of a weight within a radius.

    The radius is set once: a number, or ``part`` of the way from the shortest to the longest row
    that the weight has at the beginning. Applying it is pure tensor code.

    Parameters
    ----------
    weight : Tensor, shape (n_classes, n_features)
        Whose rows to keep.
    part : float
        0 is the shortest row's length, 1 the longest one's; infinity constrains nothing.
    radius : float, optional
        The radius itself, whatever ``part`` says.

    Examples
    --------
    >>> import torch
    >>> from protail.training import MaxNorm
    >>> weight = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> MaxNorm(weight, part=0.25)()
    >>> weight.norm(dim=1)
    tensor([2., 1.])
    >>> MaxNorm(weight, radius=0.5)()
    >>> weight.norm(dim=1)
    tensor([0.5000, 0.5000])
    """

    @checked
    def __init__(
        self,
        weight: Tensor,
        part: Annotated[float, Range(closed="both")] = 0.1,
        *,
        radius: Positive | None = None,
    ) -> None:
        self._weight = weight
        if part == inf and radius is None:
            radius = inf  # where all rows have one length, inf * 0 would be NaN
        lengths = torch.linalg.vector_norm(weight.detach(), dim=1)
        low, high = lengths.min(), lengths.max()
        self.radius = low + part * (high - low) if radius is None else torch.full_like(low, radius)

    @torch.no_grad()
    def __call__(self) -> None:
        """Shorten the rows that are too long."""
        # Not torch.renorm: it adds 1e-7 to the lengths, so rows of the radius itself would shrink.
        lengths = torch.linalg.vector_norm(self._weight, dim=1, keepdim=True)
        self._weight.mul_((self.radius / lengths.clamp(min=1e-30)).clamp(max=1.0))


def head_constraint(head: nn.Module, radius: float, part: float | None = None) -> MaxNorm | None:
    """Limit the rows of a head's weight; None for a radius of 0 and no part."""
    if radius == 0 and part is None:
        return None
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        what = f"max_norm={radius:g}" if part is None else f"max_norm_part={part:g}"
        raise ValueError(
            f"{what}: {type(head).__name__} has no matrix of weights to keep within "
            "it; expected a head that has one, such as 'linear'."
        )
    return MaxNorm(weight, radius=radius) if part is None else MaxNorm(weight, part)


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
    >>> from protail.training import SharpnessAware
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

    @checked
    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, radius: NonNegative
    ) -> None:
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


class MovingAverage(nn.Module):
    """Follow a module with an exponential moving average of its parameters.

    Its tensors change in place and only by tensor code, so a CUDA graph can hold `update`. The
    statistics of batch norms are averaged too, which is near enough while training; in the end
    `recompute_batch_norms` computes those of the averaged weights. Other buffers are copied.

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

    # Not torch's AveragedModel: its first update copies the weights, and it reads a counter on
    # the host, which a CUDA graph cannot hold.
    @checked
    def __init__(self, module: nn.Module, decay: BelowOne) -> None:
        super().__init__()
        self.decay = decay
        self.average = copy.deepcopy(module).requires_grad_(False)
        pairs: list[tuple[Tensor, Tensor]] = list(
            zip(self.average.parameters(), module.parameters(), strict=True)
        )
        copied = dict(zip(self.average.buffers(), module.buffers(), strict=True))
        for norm in _batch_norms(self.average):
            pairs += [(each, copied.pop(each)) for each in _statistics(norm)]
        # In tuples, so that they are not registered as parts of the average.
        self._averaged = (tuple(own for own, _ in pairs), tuple(other for _, other in pairs))
        self._copied = tuple(copied.items())

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the module."""
        averaged, followed = self._averaged
        if averaged:
            torch._foreach_lerp_(averaged, followed, 1 - self.decay)
        for own, other in self._copied:
            own.copy_(other)

    @torch.no_grad()
    def recompute_batch_norms(
        self,
        batches: Iterable[Any],
        forward: Callable[[Any], object],
        shared: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Compute the statistics of the average's batch norms again, from batches.

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
        >>> average.recompute_batch_norms([torch.tensor([[1.0], [2.0]])], average.average)
        >>> average.average.running_mean, average.average.running_var
        (tensor([1.5000]), tensor([0.5000]))
        """
        # A batch norm that its module keeps in eval mode while training keeps its statistics.
        norms = [norm for norm in _batch_norms(self.average.train()) if norm.training]
        before = [norm.momentum for norm in norms]
        # Dropout stays off, as it does not under torch's `update_bn`: the same weights then have
        # the same statistics, and nothing is drawn from the generator that captured steps share.
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
        if shared is not None:
            for each in [each for norm in norms for each in _statistics(norm)]:
                each.copy_(shared(each))


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    norms = (each for each in module.modules() if isinstance(each, _BatchNorm))
    return [each for each in norms if each.track_running_stats]


def _statistics(norm: _BatchNorm) -> list[Tensor]:
    return [each for each in (norm.running_mean, norm.running_var) if each is not None]

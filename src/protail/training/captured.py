"""The captured driver: a whole step as one CUDA graph, launched with one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

Batch = TypeVar("Batch", bound=tuple[Any, ...])
_Shapes = tuple[Any, ...]

# Eager steps before a capture: cuDNN chooses its kernels, compilers compile.
_WARM_UP_STEPS = 3


class CapturedDriver(Generic[Batch]):
    """Step by replaying a recording of the step.

    A step of a small network is hundreds of kernels that take less time to run than to launch.
    Recorded once for each batch size, they are launched together. What a step reads must stay
    where it is: parameters and buffers change in place, rates are tensors on the device.

    Parameters
    ----------
    module : nn.Module
        Whose parameters and buffers a step may change.
    loss : callable
        Maps a batch to a number with a gradient; pure tensor code on the device.
    optimizer : torch.optim.Optimizer
        Moves the parameters; its rates at this moment are the base rates. SGD with ``fused=True``
        can be recorded.
    after_step : callable, optional
        Recorded behind each step, for instance to project the parameters.

    Examples
    --------
    >>> import torch
    >>> from protail.training import CapturedDriver
    >>> model = torch.nn.Linear(2, 1, device="cuda")  # doctest: +SKIP
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)  # doctest: +SKIP
    >>> driver = CapturedDriver(model, lambda b: model(b[0]).sum(), optimizer)  # doctest: +SKIP
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Batch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self._module = module
        self._loss_of = loss
        self._optimizer = optimizer
        self._after_step = after_step
        device = next(p for group in optimizer.param_groups for p in group["params"]).device
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        # In double, as other drivers multiply them, and all in one tensor: one kernel sets them.
        self._base_rates = torch.tensor(rates, device=device, dtype=torch.float64)
        self._rates = self._base_rates.float()
        for place, group in enumerate(optimizer.param_groups):
            group["lr"] = self._rates[place]
        self._loss = torch.zeros((), device=device)
        self._graphs: dict[_Shapes, tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def set_rate(self, factor: float) -> None:
        """Multiply every base rate by ``factor`` for the steps to come.

        Parameters
        ----------
        factor : float
            1 for the rates the optimiser came with.
        """
        torch.mul(self._base_rates, factor, out=self._rates)

    def advance(self, batch: Batch) -> Tensor:
        """Take one step.

        Parameters
        ----------
        batch : tuple of Tensor or None
            What the loss takes. A new combination of shapes is recorded first.

        Returns
        -------
        Tensor
            The loss before the step; the next step overwrites it.
        """
        shapes = tuple(None if part is None else part.shape for part in batch)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(batch)
        graph, inputs = self._graphs[shapes]
        for own, part in zip(inputs, batch, strict=True):
            if own is not None:
                own.copy_(part)
        graph.replay()
        return self._loss

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]:
        inputs: tuple[Any, ...] = tuple(None if part is None else part.clone() for part in batch)
        make: Any = type(batch)
        own = make(*inputs) if hasattr(batch, "_fields") else inputs
        # Only the first batch size is worth compiling for; the last, smaller batch of an epoch
        # comes once in hundreds of steps.
        stance: Literal["force_eager", "default"] = "force_eager" if self._graphs else "default"
        stream = torch.cuda.current_stream()
        aside = stream if stream != torch.cuda.default_stream() else torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(stream)
        with torch.compiler.set_stance(stance), torch.cuda.stream(aside):
            with self._everything_restored():
                for _ in range(_WARM_UP_STEPS):
                    self._step(own)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(
                graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"
            ):
                self._step(own)
        stream.wait_stream(aside)
        return graph, inputs

    def _step(self, batch: Any) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        self._loss.copy_(loss.detach())

    @contextmanager
    def _everything_restored(self) -> Iterator[None]:
        """Undo what happens inside to parameters, buffers and momentum."""
        before = {id(t): t.detach().clone() for t in self._changing()}
        yield
        with torch.no_grad():
            for tensor in self._changing():
                saved = before.get(id(tensor))
                # What was not there before, the momentum, starts at nothing.
                tensor.zero_() if saved is None else tensor.copy_(saved)

    def _changing(self) -> Iterator[Tensor]:
        yield from self._module.parameters()
        yield from self._module.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

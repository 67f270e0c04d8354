"""Drivers: what one training step is and where it runs.

`PlainDriver` runs on any device, `CapturedDriver` replays a step as one CUDA graph, and
`FabricDriver` shares it with other processes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, distributed, nn

from protail._messages import not_installed

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Batch = TypeVar("Batch")
TupleBatch = TypeVar("TupleBatch", bound=tuple[Any, ...])

# Eager steps before a capture: cuDNN chooses its kernels, compilers compile.
_WARM_UP_STEPS = 3
# The other processes wait while the first one evaluates and learns stage 2, longer than the half
# hour after which torch would end them.
_PATIENCE = timedelta(days=7)


class PlainDriver(Generic[Batch]):
    """Take a step with autograd and a torch optimiser: loss, gradient, update.

    Parameters
    ----------
    loss : callable
        Maps a batch to a number with a gradient.
    optimizer : torch.optim.Optimizer
        Moves the parameters; its learning rates at this moment are the base rates.
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
        self._loss, self._optimizer, self._after_step = loss, optimizer, after_step
        self._backward: Callable[[Tensor], Any] = torch.Tensor.backward
        self._base_rates = [group["lr"] for group in optimizer.param_groups]

    def set_rate(self, factor: float) -> None:
        """Multiply every base learning rate by ``factor`` for the steps to come."""
        for group, base in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor

    def advance(self, batch: Batch) -> Tensor:
        """Take one step and return the loss before it, detached."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        self._backward(loss)
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        return loss.detach()


class FabricDriver(PlainDriver[Batch]):
    """Take a step in several processes at once; gradients are averaged over all of them.

    Parameters
    ----------
    fabric : lightning.fabric.Fabric
        Knows the devices, the precision and the other processes.
    loss : callable
        Maps this process's part of a batch to a number with a gradient, through a module that
        ``fabric.setup`` gave.
    optimizer : torch.optim.Optimizer
        As ``fabric.setup`` gave it; its learning rates at this moment are the base rates.
    after_step : callable, optional
        Called after each step.

    Examples
    --------
    >>> import torch
    >>> from lightning.fabric import Fabric
    >>> from protail.training import FabricDriver
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> module = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    >>> module, optimizer = fabric.setup(module, optimizer)
    >>> driver = FabricDriver(fabric, lambda x: module(x).sum(), optimizer)
    >>> before = module.weight.item()
    >>> _ = driver.advance(torch.ones(1, 1))
    >>> round(before - module.weight.item(), 6)
    0.5
    """

    def __init__(
        self,
        fabric: Fabric,
        loss: Callable[[Batch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(loss, optimizer, after_step)
        self._backward = fabric.backward


class CapturedDriver(PlainDriver[TupleBatch]):
    """Take a step by replaying a CUDA graph of it.

    A step of a small network is hundreds of kernels that take less time to run than to launch.
    Captured once for each batch size, they are launched together. What a step reads must stay
    where it is: parameters and buffers change in place, learning rates are tensors on the device.

    Parameters
    ----------
    module : nn.Module
        Whose parameters and buffers a step may change.
    loss : callable
        Maps a batch, a tuple of tensors, to a number with a gradient; pure tensor code on the
        device.
    optimizer : torch.optim.Optimizer
        Moves the parameters; its learning rates at this moment are the base rates. SGD with
        ``fused=True`` can be captured.
    after_step : callable, optional
        Captured behind each step, for instance to project the parameters.

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
        loss: Callable[[TupleBatch], Tensor],
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(loss, optimizer, after_step)
        self._module = module
        device = next(p for group in optimizer.param_groups for p in group["params"]).device
        rates = [float(rate) for rate in self._base_rates]
        # In double, as other drivers multiply them, and all in one tensor: one kernel sets them.
        self._base_tensor = torch.tensor(rates, device=device, dtype=torch.float64)
        self._rates = self._base_tensor.float()
        for place, group in enumerate(optimizer.param_groups):
            group["lr"] = self._rates[place]
        self._last_loss = torch.zeros((), device=device)
        # By the shapes of the batch: the graph, and the tensors that it reads.
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def set_rate(self, factor: float) -> None:
        """Multiply every base learning rate by ``factor`` for the steps to come."""
        torch.mul(self._base_tensor, factor, out=self._rates)

    def advance(self, batch: TupleBatch) -> Tensor:
        """Take one step and return the loss before it; the next step overwrites it.

        The first batch of every combination of shapes is captured.
        """
        shapes = tuple(None if part is None else part.shape for part in batch)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(batch)
        graph, inputs = self._graphs[shapes]
        for own, part in zip(inputs, batch, strict=True):
            if own is not None:
                own.copy_(part)
        graph.replay()
        return self._last_loss

    def _capture(self, batch: TupleBatch) -> tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]:
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
        self._last_loss.copy_(super().advance(batch))

    @contextmanager
    def _everything_restored(self) -> Iterator[None]:
        """Undo what happens inside to parameters, buffers and momentum."""
        before = {id(t): t.detach().clone() for t in self._changing()}
        yield
        with torch.no_grad():
            for tensor in self._changing():
                saved = before.get(id(tensor))
                # What was not there before, the momentum, starts at zero.
                tensor.zero_() if saved is None else tensor.copy_(saved)

    def _changing(self) -> Iterator[Tensor]:
        yield from self._module.parameters()
        yield from self._module.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def launch_fabric(device: torch.device) -> Fabric:
    """Join the processes that torchrun started; alone where it started none.

    Parameters
    ----------
    device : torch.device
        The kind of device to train on.

    Returns
    -------
    lightning.fabric.Fabric
        Knows this process's device and the others.

    Examples
    --------
    >>> import torch
    >>> from protail.training import launch_fabric
    >>> launch_fabric(torch.device("cpu")).world_size
    1
    """
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
    except ImportError as error:
        raise ImportError(not_installed("the fabric driver", "lightning", "train")) from error
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    everywhere = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = DDPStrategy(timeout=_PATIENCE) if everywhere > 1 else "auto"
    fabric = Fabric(
        accelerator=device.type, strategy=strategy, devices=here, num_nodes=everywhere // here
    )
    fabric.launch()
    return fabric


@contextmanager
def leave_group_at_end() -> Iterator[None]:
    """End the group of processes that was joined within, after all of them did their work.

    Lightning ends groups of NCCL only. Threads of Gloo that are still there while Python ends
    may abort a process that has done all it should. After a failure nothing is ended: the others
    may never come to the same place.

    Examples
    --------
    >>> from protail.training import leave_group_at_end
    >>> with leave_group_at_end():
    ...     pass  # launch_fabric, train
    """
    if not distributed.is_available() or distributed.is_initialized():
        yield
        return
    # Imported later, it would take the group as default arguments and never let go of it.
    import torch.distributed.nn.functional  # noqa: F401

    yield
    if distributed.is_initialized():
        gc.collect()  # modules that were trained together hold the group, some in cycles
        distributed.destroy_process_group()

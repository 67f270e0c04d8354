"""The fabric driver: CPU, one GPU, several GPUs or nodes, through Lightning Fabric."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, distributed

from protail._messages import not_installed

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Batch = TypeVar("Batch")

# The others wait while the first process judges and learns stage 2, longer than the half hour
# after which torch would end them.
_PATIENCE = timedelta(days=7)


class FabricDriver(Generic[Batch]):
    """Step by step, with gradients averaged over all processes.

    Parameters
    ----------
    fabric : lightning.fabric.Fabric
        Knows the devices, the precision and the other processes.
    loss : callable
        Maps a batch to a number with a gradient, through a module that ``fabric.setup`` gave.
    optimizer : torch.optim.Optimizer
        As ``fabric.setup`` gave it; its rates at this moment are the base rates.
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
        self._fabric: Any = fabric
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
            This process's part of the batch.

        Returns
        -------
        Tensor
            The loss of this process's part before the step, detached.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        self._fabric.backward(loss)
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        return loss.detach()


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
    >>> from protail.training.fabric import launch_fabric
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
    >>> from protail.training.fabric import leave_group_at_end
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
        gc.collect()  # modules that were trained together hold the group, some in circles
        distributed.destroy_process_group()

"""The processes of one training, as torchrun starts them: they meet, wait for each other and end.

Every process says every few seconds that it lives, through the store in which torchrun lets them
meet. So one that waits knows whether it waits for work or for nothing, and what ends a training is
told once, by the process that knew it first.
"""

from __future__ import annotations

import gc
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from protail._messages import counted, not_installed
from protail._stopping import check_stop

if TYPE_CHECKING:
    from lightning.fabric import Fabric

# That of torch: longer than any step, short enough to be noticed the same day.
TIMEOUT = 1800.0
# Seconds for an answer of the store, which another program of this training keeps in memory.
_STORE_PATIENCE = 20.0
_RESUMED = (
    "The same command with --resume goes on from the last checkpoint, with any number of processes."
)


class ProcessError(RuntimeError):
    """Another process of a training has ended, or no longer answers."""


def launch_fabric(device: torch.device, timeout: float = TIMEOUT) -> Fabric:
    """Join the processes that torchrun started; alone where it started none.

    Parameters
    ----------
    device : torch.device
        The kind of device to train on.
    timeout : float, default=1800
        Seconds after which a process that waits for another one gives up.

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
    strategy: Any = "auto"
    if everywhere > 1:
        strategy = DDPStrategy(timeout=timedelta(seconds=timeout))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _meet(everywhere)  # otherwise there is no store before the first process has made one
            if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
                # torch would find the addresses of the processes that have ended in the store.
                distributed.init_process_group(
                    "nccl" if device.type == "cuda" else "gloo",
                    store=_meeting_place(),
                    rank=int(os.environ["RANK"]),
                    world_size=everywhere,
                    timeout=timedelta(seconds=timeout),
                )
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


@contextmanager
def joined(device: torch.device, timeout: float = TIMEOUT) -> Iterator[Processes]:
    """Train together inside the block; where one waits in vain, that is a `ProcessError`.

    Parameters
    ----------
    device : torch.device
        The kind of device to train on.
    timeout : float, default=1800
        Seconds after which a process that waits for another one gives up.

    Yields
    ------
    Processes
        Those that train together.

    Examples
    --------
    >>> import torch
    >>> from protail.training import joined
    >>> with joined(torch.device("cpu")) as processes:
    ...     processes.fabric.world_size
    1
    """
    processes: Processes | None = None
    try:
        with leave_group_at_end():
            processes = Processes(launch_fabric(device, timeout), timeout)
            try:
                yield processes
            finally:
                processes.end()
    except RuntimeError as error:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and (
            isinstance(error, distributed.DistError) or "gloo" in str(error)
        ):
            raise ProcessError(_in_words(error, processes, timeout)) from error
        raise


class Processes:
    """The processes that train together.

    A thread of each lets the others know that it lives, whatever else it does. Only one that is
    stopped, has ended or cannot be reached falls silent.

    Parameters
    ----------
    fabric : lightning.fabric.Fabric
        Knows this process's device and the others.
    timeout : float
        Seconds after which the others give up on the first one, where that is silent.
    store : torch.distributed.Store, optional
        Where the processes meet; by default that of torchrun.
    """

    def __init__(self, fabric: Fabric, timeout: float, store: Any = None) -> None:
        self.fabric, self._timeout, self._blocks = fabric, timeout, 0
        self._rank, world_size = fabric.global_rank, fabric.world_size
        self._pause = min(5.0, timeout / 10)
        self._counts = [0] * world_size
        self._heard = [time.monotonic()] * world_size
        self._ended = Event()
        if world_size == 1:
            return
        self._store = _meeting_place() if store is None else store
        self._store.set(f"machine {self._rank}", socket.gethostname())
        names = [self._store.get(f"machine {rank}").decode() for rank in range(world_size)]
        self._machines = names
        # A connection has one question at a time, and that for the first process may take long.
        connection = _meeting_place() if store is None else store
        Thread(target=self._go_on, args=[connection], name="heartbeats", daemon=True).start()

    def end(self) -> None:
        """Fall silent, at the end of the work."""
        self._ended.set()

    def silent(self) -> dict[int, float]:
        """Give the processes that have missed several beats, and for how many seconds."""
        now = time.monotonic()
        ages = {rank: now - heard for rank, heard in enumerate(self._heard) if rank != self._rank}
        return {rank: age for rank, age in ages.items() if age > 3 * self._pause + 1}

    def in_words(self, silent: dict[int, float]) -> str:
        """Name processes that are silent, and their machines."""
        told = [
            f"process {rank} on {self._machines[rank]} has been silent for {age:.0f} seconds"
            for rank, age in list(silent.items())[:3]
        ]
        return (
            f"{'; '.join(told)}{'; ...' if len(silent) > 3 else ''}. It was stopped, or its "
            f"machine hangs, and the others cannot go on without it. {_RESUMED}"
        )

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Let the first process work alone inside the block, however long it takes.

        The others wait behind the block, as long as the first one lives.
        """
        self._blocks += 1
        done = f"done {self._blocks}"
        yield
        if len(self._heard) == 1:
            return
        if self._rank == 0:
            self._store.set(done, "")
        while not _is_set(self._store, done, self._pause):
            check_stop()
            if (age := self.silent().get(0, 0)) > self._timeout:
                raise ProcessError(self.in_words({0: age}))

    def _go_on(self, store: Any) -> None:
        """Beat, and hear the others, until the work is done or there is no store any more."""
        try:
            while not self._ended.is_set():
                for rank, before in enumerate(self._counts):
                    self._counts[rank] = store.add(f"beats {rank}", int(rank == self._rank))
                    if self._counts[rank] != before:
                        self._heard[rank] = time.monotonic()
                self._ended.wait(self._pause)
        except RuntimeError:
            # The store has gone, with the torchrun that kept it: nothing is known any more.
            self._heard = [math.inf] * len(self._heard)


def first_to_tell() -> bool:
    """Say whether no other process of this training has told yet why it ends; ask once.

    Examples
    --------
    >>> from protail.training.processes import first_to_tell
    >>> first_to_tell()  # of one process
    True
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    try:
        return bool(_meeting_place().add("told", 1) == 1)
    except (KeyError, ValueError, RuntimeError):
        return True  # torchrun has not started this process, or has ended


def _meeting_place() -> Any:
    """Connect to the store of torchrun, at names of our own."""
    store = distributed.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=_STORE_PATIENCE),
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"protail {attempt}", store)  # type: ignore[attr-defined]


def _meet(world_size: int) -> None:
    """Wait for all processes to come: each loads its data in its own time."""
    store, begin = _meeting_place(), time.monotonic()
    if store.add("came", 1) == world_size:
        store.set("all came", "")
    while not _is_set(store, "all came", 1.0):
        check_stop()
        if time.monotonic() - begin > TIMEOUT:
            raise ProcessError(
                f"{store.add('came', 0)} of {world_size} processes of this training have come "
                f"within {TIMEOUT / 60:.0f} minutes; expected all. Start the same command on every "
                "machine, and see that each has the data and reaches the others."
            )


def _is_set(store: Any, key: str, seconds: float) -> bool:
    """Wait for a key of a store, and say whether it has come."""
    try:
        store.wait([key], timedelta(seconds=seconds))
    except distributed.DistStoreError:
        return False
    return True


def _in_words(error: RuntimeError, processes: Processes | None, timeout: float) -> str:
    if processes is not None and (silent := processes.silent()):
        return processes.in_words(silent)
    if "timed out" not in str(error).lower():
        return (
            "another process of this training has ended, or cannot be reached any more: what it "
            f"says itself, and the summary of torchrun, tell why. {_RESUMED}"
        )
    return (
        f"the processes of this training have waited more than {counted(round(timeout), 'second')} "
        "for one another (--timeout), and all of them live: one works longer than that, or cannot "
        f"be reached. Raise --timeout where its work is as long. {_RESUMED}"
    )

"""Threads: more of them do not make small steps faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Multiplications of a step below which one thread is as fast as many. Starting the others costs
# what they save, and where another program keeps a core busy they wait for each other.
_WORTH_MORE_THREADS = 2**26


@contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """Compute with one thread inside the block if the work of a step is small.

    Parameters
    ----------
    multiplications : int
        Of one step's matrix product: rows x classes x channels.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import torch
    >>> from protail.training.threads import threads_for
    >>> with threads_for(64 * 100 * 512):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if multiplications >= _WORTH_MORE_THREADS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

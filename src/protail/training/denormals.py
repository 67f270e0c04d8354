"""Denormal numbers, which a CPU handles a hundred times slower than others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Treat denormal numbers as zero inside the block, and as before after it.

    Gradients of classes that are far away vanish into denormals; without this a fit of one
    second can take minutes on a CPU.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import torch
    >>> from protail.training.denormals import flushed_denormals
    >>> with flushed_denormals():
    ...     (torch.tensor(1e-38) / 10).item()
    0.0
    """
    were_flushed = bool(torch.tensor(1e-38) / 10 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(were_flushed)

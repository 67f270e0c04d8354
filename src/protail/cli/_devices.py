"""The device a network runs on."""

from __future__ import annotations

import torch

from protail._messages import counted


def find_device(name: str) -> torch.device:
    """Find where to compute.

    Parameters
    ----------
    name : str
        "auto" is a GPU where there is one; or "cpu", "cuda", "cuda:1", ...

    Returns
    -------
    torch.device
        One that is there.

    Examples
    --------
    >>> from protail.cli._devices import find_device
    >>> find_device("cpu")
    device(type='cpu')
    >>> find_device("abacus")
    Traceback (most recent call last):
    ValueError: device='abacus' is no device; expected 'auto', 'cpu', 'cuda', 'cuda:0', ...
    """
    n_gpus = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if n_gpus else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device={name!r} is no device; expected 'auto', 'cpu', 'cuda', 'cuda:0', ..."
        )
    if found.type == "cuda" and (found.index or 0) >= n_gpus:
        raise ValueError(
            f"device={name!r} was asked for, but torch can use {counted(n_gpus, 'GPU')}; expected "
            "one that is there. Use --device auto or cpu."
        )
    return found

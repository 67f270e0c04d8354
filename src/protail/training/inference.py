"""What a trained network says about many images: features and logits, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from protail.training.settings import Precision


@contextmanager
def inferring(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, without gradients, and back.

    Parameters
    ----------
    module : nn.Module
        Whom to ask.

    Yields
    ------
    None
        Nothing.

    Examples
    --------
    >>> import torch
    >>> from protail.training.inference import inferring
    >>> module = torch.nn.Dropout()
    >>> with inferring(module):
    ...     module.training
    False
    >>> module.training
    True
    """
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Make the context in which a network computes in the given precision.

    Parameters
    ----------
    device : torch.device
        Where it computes.
    precision : {"bfloat16", "float32"}
        What in.

    Returns
    -------
    torch.autocast
        The context.

    Examples
    --------
    >>> import torch
    >>> from protail.training.inference import autocast
    >>> with autocast(torch.device("cpu"), "bfloat16"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def for_network(images: Tensor) -> Tensor:
    """Lay images out as convolutions on their device like them best."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def collect(
    compute: Callable[[Tensor], Tensor],
    batches: Iterable[Tensor],
    precision: Precision = "float32",
) -> Tensor:
    """Compute something for batches of images and put the results together.

    Parameters
    ----------
    compute : callable
        Images to rows of numbers.
    batches : iterable of Tensor
        Images, ready for the network.
    precision : {"bfloat16", "float32"}
        What the network computes in.

    Returns
    -------
    Tensor
        All rows, in float32.

    Examples
    --------
    >>> import torch
    >>> from protail.training.inference import collect
    >>> collect(lambda images: images.mean((2, 3)), [torch.ones(2, 3, 4, 4)]).shape
    torch.Size([2, 3])
    """
    found = []
    for images in batches:
        with autocast(images.device, precision):
            found.append(compute(for_network(images)).float())
    return torch.cat(found)

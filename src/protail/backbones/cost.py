"""What a backbone costs: the arithmetic of one image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


def gflops(backbone: nn.Module, size: tuple[int, int] = (32, 32), *, in_channels: int = 3) -> float:
    """Count the operations that the features of one image take, in thousands of millions.

    Those of convolutions and matrix products count, a multiply-add as two; what is added to them
    by batch norm, activations and pooling does not. One black image is pushed through, in eval
    mode, where the backbone is; the backbone is left as it was.

    Parameters
    ----------
    backbone : nn.Module
        Images to features.
    size : (int, int), default=(32, 32)
        Height and width of the image.
    in_channels : int, default=3
        Channels of the image.

    Returns
    -------
    float
        Of all experts, where there are several.

    Examples
    --------
    >>> from protail.backbones import make_backbone
    >>> from protail.backbones.cost import gflops
    >>> round(gflops(make_backbone("resnet32")), 4)
    0.1377
    """
    return _operations(backbone, size, in_channels) / 1e9


def gflops_with(
    backbone: nn.Module,
    n_experts_used: float,
    size: tuple[int, int] = (32, 32),
    *,
    in_channels: int = 3,
) -> float:
    """Count the operations of one image that only some of the experts look at.

    Parameters
    ----------
    backbone : nn.Module
        Images to features, with experts: ``shared``, a module that makes of images what every
        expert gets, and ``experts``, an ``nn.ModuleList`` of them, as `ExpertResNet` has.
    n_experts_used : float
        How many experts; the mean over images where it is not the same for all.
    size, in_channels
        As in `gflops`.

    Returns
    -------
    float
        Those of the shared part and of so many experts; nothing for the choice among them.

    Examples
    --------
    >>> from protail.backbones import make_backbone
    >>> from protail.backbones.cost import gflops, gflops_with
    >>> backbone = make_backbone("resnet32-3-experts")
    >>> round(gflops_with(backbone, 1.5), 4), gflops_with(backbone, 3) == gflops(backbone)
    (0.1244, True)
    """
    shared_part, n_experts = _parts(backbone)
    if not 1 <= n_experts_used <= n_experts:
        raise ValueError(
            f"n_experts_used={n_experts_used!r}; expected from 1 to {n_experts}, the experts "
            "there are."
        )
    shared = _operations(shared_part, size, in_channels)
    every = _operations(backbone, size, in_channels)
    return (shared + n_experts_used * (every - shared) / n_experts) / 1e9


def _parts(backbone: nn.Module) -> tuple[nn.Module, int]:
    """Give what all experts share, and how many experts there are."""
    shared, experts = (getattr(backbone, name, None) for name in ("shared", "experts"))
    if isinstance(shared, nn.Module) and isinstance(experts, nn.ModuleList):
        return shared, len(experts)
    raise TypeError(
        f"backbone is a {type(backbone).__name__}; expected two attributes by which experts are "
        "counted: shared, a module from images to what every expert gets (it is "
        f"{_kind(shared)}), and experts, an nn.ModuleList (it is {_kind(experts)}). For a "
        "backbone without experts use gflops."
    )


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _operations(network: nn.Module, size: tuple[int, int], in_channels: int) -> int:
    # It imports Triton, and this module comes with every look for the name of a backbone.
    from torch.utils.flop_counter import FlopCounterMode

    tensors = chain(network.parameters(), network.buffers(), [torch.empty(0)])
    alike = next(tensor for tensor in tensors if tensor.is_floating_point())
    image = torch.zeros(1, in_channels, *size, device=alike.device, dtype=alike.dtype)
    counter = FlopCounterMode(display=False)
    # A real image: what is no parameter and no buffer, or is read in between, has no place on
    # torch's device "meta".
    with _in_eval_mode(network), torch.no_grad(), torch.random.fork_rng(devices=[]), counter:
        network(image)
    return int(counter.get_total_flops())


@contextmanager
def _in_eval_mode(network: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training

"""Seeds that follow from one seed, and trainings that draw from generators of their own."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from protail.data._random import stream_key
from protail.data._row_sampler import whole_number
from protail.training.loop import Steps

Result = TypeVar("Result")


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Make a seed for a purpose; other purposes get others.

    Parameters
    ----------
    seed : int
        The seed of everything.
    *purpose : str or int
        What it is for.

    Returns
    -------
    int
        From 0 to below 2^63.

    Examples
    --------
    >>> from protail.training._randomness import derived_seed
    >>> derived_seed(0, "representation")
    7563898709387865231
    """
    parts: list[int] = [whole_number("seed", seed, 0)]
    for part in purpose:
        parts += [part] if isinstance(part, int) else [*part.encode(), -1]
    return int(stream_key(*parts)[0]) >> 1


def with_own_generators(steps: Steps[Result], seed: int, device: torch.device) -> Steps[Result]:
    """Let torch's generators be seeded for these steps, and as they were for everybody else.

    Parameters
    ----------
    steps : generator
        Hands over after every step; others may then draw from torch's generators.
    seed : int
        Same seed, same numbers.
    device : torch.device
        Whose generator it is, beside that of the CPU.

    Yields
    ------
    None
        After every step.

    Returns
    -------
    object
        What the steps return.

    Examples
    --------
    >>> import torch
    >>> from protail.training import interleave
    >>> from protail.training._randomness import with_own_generators
    >>> def draw(n):
    ...     drawn = []
    ...     for _ in range(n):
    ...         drawn.append(torch.rand(()).item())
    ...         yield
    ...     return drawn
    >>> cpu = torch.device("cpu")
    >>> one, other = interleave([with_own_generators(draw(n), 0, cpu) for n in (2, 3)])
    >>> one == other[:2]
    True
    """
    devices = [device] if device.type == "cuda" else []
    states: list[Tensor] = []
    while True:
        with torch.random.fork_rng(devices):
            if states:
                torch.set_rng_state(states[0])
                for own, state in zip(devices, states[1:], strict=True):
                    torch.cuda.set_rng_state(state, own)
            else:
                # Not torch.manual_seed: it seeds every device there is, and those stay seeded.
                torch.default_generator.manual_seed(seed)
                for own in devices:
                    seed_device(own, seed)
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
        yield


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generator of a GPU.

    Parameters
    ----------
    device : torch.device
        Which GPU.
    seed : int
        Same seed, same numbers.
    """
    with torch.cuda.device(device):
        torch.cuda.manual_seed(seed)

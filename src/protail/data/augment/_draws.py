"""Random numbers on the device, as a pure function of seed, epoch, index, purpose and draw.

A number depends on nothing else: not on the batch an image came in, its place there, the rank or
the device. Whole-number arithmetic that wraps at 64 bits makes it so, bit for bit. Few kernels:
the draws of all purposes come from one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protail.data._random import stream_key

_WORD = 1 << 64
# Steps of a Weyl sequence in three dimensions (powers of the root of x^4 = x + 1): what an epoch,
# an index and a draw add to the state before it is scrambled.
_EPOCH_STEP = 0xD1B54A32D192ED03
_INDEX_STEP = 0xABC98388FB8FAC03
_DRAW_STEP = 0x8CB92BA72F3D8DD7
_SCRAMBLE = 0xD6E8FEB86659FD93
# 23 bits and not 24: then floor(u * n) is below n in float32 for every n.
_KEPT_BITS = 0x7FFF_FF00
_BIT = 2.0**-31


def _signed(word: int) -> int:
    """Write 64 bits as the whole number that int64 takes them for."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def draw_keys(
    seed: int, purpose: int, n_draws: int, device: torch.device | str | None = None
) -> Tensor:
    """Make the keys of ``n_draws`` streams of random numbers.

    Parameters
    ----------
    seed : int
        Seed of the training.
    purpose : int
        What the numbers are for; other purposes get other numbers.
    n_draws : int
        How many numbers an image gets.
    device : torch.device or str, optional
        Where to make them. Nothing is copied there, so a CUDA graph can hold it.

    Returns
    -------
    Tensor of int64, shape (n_draws,)
        What `draw` takes.

    Examples
    --------
    >>> draw_keys(0, 1, 3).shape
    torch.Size([3])
    """
    key = int(stream_key(seed, purpose)[0])
    draws = torch.arange(n_draws, dtype=torch.int64, device=device)
    return draws.mul_(_signed(_DRAW_STEP)).add_(_signed(key))


def draw_scales(highs: Sequence[float]) -> Tensor:
    """Give the scales with which `draw` fills [0, high), high itself left out.

    Examples
    --------
    >>> draw_scales([1.0, 9.0]).shape
    torch.Size([2])
    """
    return torch.tensor(list(highs), dtype=torch.float32) * _BIT


def draw(keys: Tensor, epoch: int | Tensor, index: Tensor, scales: Tensor | float = _BIT) -> Tensor:
    """Draw numbers for every index.

    Pure tensor code that a CUDA graph can hold: eight kernels, however many draws.

    Parameters
    ----------
    keys : Tensor of int64, shape (n_draws,)
        From `draw_keys`; several calls can be concatenated.
    epoch : int or 0-d tensor of int64
        A tensor may change between replays of a captured graph.
    index : Tensor of int64, shape (b,)
        What tells the images of an epoch apart.
    scales : float or Tensor of float32, shape (n_draws,)
        From `draw_scales`; numbers lie in [0, 1) unless given.

    Returns
    -------
    Tensor of float32, shape (b, n_draws)
        The numbers.

    Examples
    --------
    >>> import torch
    >>> both = draw(draw_keys(0, 1, 2), 5, torch.tensor([7, 3]))
    >>> alone = draw(draw_keys(0, 1, 2), torch.tensor(5), torch.tensor([3]))
    >>> torch.equal(both[1:], alone)
    True
    """
    if isinstance(epoch, Tensor):
        keys = torch.add(keys, epoch, alpha=_signed(_EPOCH_STEP))
    else:
        keys = keys + _signed(epoch * _EPOCH_STEP)
    state = torch.add(keys, index[:, None], alpha=_signed(_INDEX_STEP))
    # Little-endian halves: XOR of the upper into the lower one is a shift by 32 in one kernel.
    halves = state.view(torch.int32).view(*state.shape, 2)
    lower, upper = halves[..., 0], halves[..., 1]
    for _ in range(2):
        lower.bitwise_xor_(upper)
        state.mul_(_signed(_SCRAMBLE))
    return (upper & _KEPT_BITS) * scales


def uniforms(seed: int, epoch: int | Tensor, index: Tensor, purpose: int, n: int = 1) -> Tensor:
    """Draw ``n`` uniform numbers in [0, 1) for every index.

    Parameters
    ----------
    seed : int
        Seed of the training.
    epoch : int or 0-d tensor of int64
        The epoch.
    index : Tensor of int64, shape (b,)
        What tells the images of an epoch apart.
    purpose : int
        What the numbers are for; other purposes get other numbers.
    n : int
        Numbers an index.

    Returns
    -------
    Tensor of float32, shape (b, n)
        Multiples of 2**-23.

    Examples
    --------
    >>> import torch
    >>> u = uniforms(0, 0, torch.arange(10_000), purpose=1, n=2)
    >>> bool((u >= 0).all() and (u < 1).all() and (u.mean(0) - 0.5).abs().max() < 0.01)
    True
    """
    return draw(draw_keys(seed, purpose, n, index.device), epoch, index)

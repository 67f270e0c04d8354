"""What every sampler shares: epochs, ranks, batches, and resuming in the middle."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Sampler

from protail.data._cycles import Index, RowsByClass
from protail.data._random import Bits, stream_key
from protail.profile import class_codes

# Draws made at once: few enough to start in a millisecond, enough to hide call overhead.
BLOCK = 1 << 13


class Purpose(IntEnum):
    """Keep the random streams of a sampler apart."""

    CYCLES = 0
    SHUFFLE = 1
    ROUNDS = 2
    CLASSES = 3
    MIXTURE = 4


def whole_number(name: str, value: Any, at_least: int) -> int:
    """Check that ``value`` is a whole number not below ``at_least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}; expected a whole number >= {at_least}.") from None
    if number < at_least:
        raise ValueError(f"{name}={value!r}; expected a whole number >= {at_least}.")
    return number


class RowSampler(Sampler[int], ABC):
    """Say which row comes next.

    The stream of rows is a pure function of seed, epoch and position. It does not depend on
    ``world_size``: rank r takes the positions r, r + world_size, ... of the one stream, cut to a
    multiple of ``world_size``. As a sampler of a ``DataLoader`` it starts a new epoch each time
    it has been walked through; ``set_epoch`` chooses one.

    Parameters
    ----------
    labels : array-like or tensor of int, shape (n_samples,)
        Class codes 0, 1, 2, ...
    seed : int
        Same seed, same rows.
    rank, world_size : int
        Which of how many processes asks.

    Examples
    --------
    >>> from protail.data import RowSampler, make_sampler
    >>> isinstance(make_sampler("instance", [0, 1]), RowSampler)
    True
    """

    def __init__(
        self, labels: ArrayLike | Tensor, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self.seed = whole_number("seed", seed, 0)
        self.world_size = whole_number("world_size", world_size, 1)
        self.rank = whole_number("rank", rank, 0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank={rank}; expected 0 to {world_size - 1}: world_size - 1.")
        self._groups = RowsByClass(class_codes(labels))
        self._n_rows = self._groups.rows.size
        self._epoch = 0
        self._start = 0
        self._position = 0

    @property
    def _n_draws(self) -> int:
        """Length of an epoch, all ranks together."""
        return self._n_rows

    @abstractmethod
    def _stream(self, epoch: int, position: int) -> Iterator[Index]:
        """Yield the rows of all ranks from ``position`` on, in blocks of bounded size."""

    def _key(self, epoch: int, purpose: Purpose) -> Bits:
        return stream_key(self.seed, epoch, purpose)

    def __len__(self) -> int:
        return self._n_draws // self.world_size

    def blocks(self, epoch: int, start: int = 0) -> Iterator[Index]:
        """Yield this rank's draws of an epoch in blocks, so that it never sits in memory.

        Parameters
        ----------
        epoch : int
            Which epoch, from 0.
        start : int
            How many of this rank's draws to leave out at the beginning.

        Yields
        ------
        ndarray of int64
            Row numbers. Where the blocks are cut is of no meaning.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> sum(block.size for block in InstanceSampler([0] * 10).blocks(0, start=4))
        6
        """
        return self._own_blocks(whole_number("epoch", epoch, 0), whole_number("start", start, 0))

    def _own_blocks(self, epoch: int, start: int) -> Iterator[Index]:
        position = self.rank + start * self.world_size
        end = len(self) * self.world_size
        if position >= end:
            return
        for block in self._stream(epoch, position):
            first_own = (self.rank - position) % self.world_size
            own = block[first_own : end - position : self.world_size]
            if own.size:
                yield own
            position += block.size
            if position >= end:
                return

    def epoch_indices(self, epoch: int) -> Index:
        """Collect this rank's whole epoch.

        Parameters
        ----------
        epoch : int
            Which epoch, from 0.

        Returns
        -------
        ndarray of int64, shape (len(self),)
            Row numbers.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> InstanceSampler([0] * 10).epoch_indices(0).shape
        (10,)
        """
        rows = np.empty(len(self), dtype=np.int64)
        filled = 0
        for block in self.blocks(epoch):
            rows[filled : filled + block.size] = block
            filled += block.size
        return rows

    def batches(self, batch_size: int, epoch: int, start: int = 0) -> Iterator[Index]:
        """Yield this rank's epoch in batches; the last one may be smaller.

        Parameters
        ----------
        batch_size : int
            Rows in a batch.
        epoch : int
            Which epoch, from 0.
        start : int
            The batch to begin with: what follows is the same as in an uninterrupted epoch.

        Yields
        ------
        ndarray of int64, shape (batch_size,)
            Row numbers.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> [batch.size for batch in InstanceSampler([0] * 10).batches(4, epoch=0)]
        [4, 4, 2]
        """
        size = whole_number("batch_size", batch_size, 1)
        return _regroup(self.blocks(epoch, whole_number("start", start, 0) * size), size)

    def __iter__(self) -> Iterator[int]:
        self._position, self._start = self._start, 0
        for block in self.blocks(self._epoch, self._position):
            for row in block.tolist():
                self._position += 1
                yield row
        self._epoch, self._position = self._epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration walks through.

        Parameters
        ----------
        epoch : int
            Which epoch, from 0. Naming the epoch that ``load_state_dict`` has restored keeps
            the place in it.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> sampler = InstanceSampler([0] * 10)
        >>> sampler.set_epoch(3)
        >>> list(sampler) == sampler.epoch_indices(3).tolist()
        True
        """
        if whole_number("epoch", epoch, 0) != self._epoch:
            self._epoch, self._start, self._position = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Say where the iteration stands.

        Rows count as drawn when they are handed out; workers of a ``DataLoader`` run ahead of
        the batches used. A loop that must resume to the batch asks ``batches`` itself.

        Returns
        -------
        dict of str to int
            Epoch, position in the stream of all ranks, and what the stream hangs on.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> InstanceSampler([0] * 10, seed=1).state_dict()
        {'epoch': 0, 'position': 0, 'seed': 1, 'n_draws': 10}
        """
        return {
            "epoch": self._epoch,
            "position": self._position * self.world_size,
            "seed": self.seed,
            "n_draws": self._n_draws,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go back to where ``state_dict`` was taken; the next iteration goes on from there.

        Parameters
        ----------
        state : dict of str to int
            From a sampler of the same labels and seed; ``world_size`` may differ.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> sampler, other = InstanceSampler([0] * 10), InstanceSampler([0] * 10)
        >>> walk = iter(sampler)
        >>> first = next(walk)
        >>> other.load_state_dict(sampler.state_dict())
        >>> list(other) == list(walk)
        True
        """
        for name, own in (("seed", self.seed), ("n_draws", self._n_draws)):
            if state[name] != own:
                raise ValueError(
                    f"state has {name}={state[name]}; expected {own}, as this sampler has. "
                    "Build the sampler with the labels and the seed it was saved with."
                )
        start, rest = divmod(state["position"], self.world_size)
        if rest:
            raise ValueError(
                f"state has position={state['position']}; expected a multiple of "
                f"world_size={self.world_size}. Resume with the world_size it was saved with."
            )
        self._epoch, self._start, self._position = state["epoch"], start, start


def _regroup(blocks: Iterator[Index], size: int) -> Iterator[Index]:
    """Cut blocks of any length into batches of ``size`` and what remains."""
    parts: list[Index] = []
    held = 0
    for block in blocks:
        parts.append(block)
        held += block.size
        if held < size:
            continue
        joined = np.concatenate(parts)
        cut = held - held % size
        for begin in range(0, cut, size):
            yield joined[begin : begin + size]
        parts, held = [joined[cut:]], held - cut
    if held:
        yield np.concatenate(parts)

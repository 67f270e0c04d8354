"""Samplers: which row comes next, and what fraction of the draws each class gets."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protail._registry import Registry
from protail.data._random import (
    Bits,
    Index,
    RowsByClass,
    next_rows,
    random_bits,
    random_order,
    random_uniform,
    stream_key,
)
from protail.options import Count, checked
from protail.profile import class_codes

if TYPE_CHECKING:  # a DataLoader takes any iterable for a sampler: torch is not imported here
    from torch import Tensor

    Labels = ArrayLike | Tensor
else:
    Labels = Any

# Draws made at once: few enough to start in a millisecond, enough to hide call overhead.
_BLOCK = 1 << 13
# These keep the random streams of a sampler apart.
_CYCLES, _SHUFFLE, _ROUNDS, _CLASSES, _MIXTURE = range(5)

Kind = TypeVar("Kind", bound=Callable[..., "RowSampler"])


def whole_number(name: str, value: Any, at_least: int) -> int:
    """Check that ``value`` is a whole number not below ``at_least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}; expected a whole number >= {at_least}.") from None
    if number < at_least:
        raise ValueError(f"{name}={value!r}; expected a whole number >= {at_least}.")
    return number


class RowSampler(ABC):
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
        self, labels: Labels, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self.seed = whole_number("seed", seed, 0)
        self.world_size = whole_number("world_size", world_size, 1)
        self.rank = whole_number("rank", rank, 0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank={rank}; expected 0 to {world_size - 1}: world_size - 1.")
        self._groups = RowsByClass(class_codes(labels))
        self._n_rows = self._groups.rows.size
        self._epoch = 0

    @property
    def _n_draws(self) -> int:
        """Length of an epoch, all ranks together."""
        return self._n_rows

    @abstractmethod
    def _stream(self, epoch: int, position: int) -> Iterator[Index]:
        """Yield the rows of all ranks from ``position`` on, in blocks of bounded size."""

    def _key(self, epoch: int, purpose: int) -> Bits:
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
        return np.concatenate([np.empty(0, dtype=np.int64), *self.blocks(epoch)])

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
        for block in self.blocks(self._epoch):
            yield from block.tolist()
        self._epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration walks through.

        Parameters
        ----------
        epoch : int
            Which epoch, from 0. A loop that resumes in the middle of one asks ``batches``.

        Examples
        --------
        >>> from protail.data import InstanceSampler
        >>> sampler = InstanceSampler([0] * 10)
        >>> sampler.set_epoch(3)
        >>> list(sampler) == sampler.epoch_indices(3).tolist()
        True
        """
        self._epoch = whole_number("epoch", epoch, 0)


def _regroup(blocks: Iterator[Index], size: int) -> Iterator[Index]:
    """Cut blocks of any length into batches of ``size`` and what remains."""
    held = np.empty(0, dtype=np.int64)
    for block in blocks:
        held = np.concatenate([held, block])
        cut = held.size - held.size % size
        yield from held[:cut].reshape(-1, size)
        held = held[cut:]
    if held.size:
        yield held


SAMPLERS: Registry[RowSampler] = Registry("sampler", given=["labels", "seed", "rank", "world_size"])


def register_sampler(name: str) -> Callable[[Kind], Kind]:
    """Give a sampler a name that `make_sampler` and recipes know.

    Parameters
    ----------
    name : str
        What users will write. It must be free.

    Returns
    -------
    callable
        A decorator for a `RowSampler` that takes ``labels``, the keywords ``seed``, ``rank`` and
        ``world_size``, and options.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data import ClassBalancedSampler, make_sampler, register_sampler
    >>> @register_sampler("superclass-balanced")
    ... def by_superclass(labels, superclasses: list[int], **ranks) -> ClassBalancedSampler:
    ...     return ClassBalancedSampler(np.array(superclasses)[labels], **ranks)
    >>> len(make_sampler("superclass-balanced", [0, 0, 1, 2], superclasses=[0, 0, 1]))
    6
    """
    return SAMPLERS.register(name)


def make_sampler(
    name: str, labels: Labels, *, seed: int = 0, rank: int = 0, world_size: int = 1, **options: Any
) -> RowSampler:
    """Make a sampler by name.

    Parameters
    ----------
    name : str
        One of `sampler_names`.
    labels : array-like or tensor of int, shape (n_samples,)
        Class codes 0, 1, 2, ...
    seed : int
        Same seed, same rows.
    rank, world_size : int
        Which of how many processes asks.
    **options
        What that sampler takes: ``run`` of "class-balanced", ``epochs`` of "progressive".

    Returns
    -------
    RowSampler
        The sampler.

    Examples
    --------
    >>> from protail.data import make_sampler
    >>> len(make_sampler("class-balanced", [0, 0, 0, 1], run=4))
    6
    """
    sampler = SAMPLERS.taking(name, options)
    return sampler(labels, seed=seed, rank=rank, world_size=world_size, **options)


def sampler_names() -> list[str]:
    """List the samplers that `make_sampler` knows.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.data import sampler_names
    >>> {"class-balanced", "instance"} <= set(sampler_names())
    True
    """
    return SAMPLERS.names()


@register_sampler("instance")
class InstanceSampler(RowSampler):
    """Draw every row once an epoch, in random order: a class counts as often as it occurs.

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
    >>> from protail.data import InstanceSampler
    >>> sampler = InstanceSampler([0, 0, 0, 1])
    >>> sorted(sampler.epoch_indices(0).tolist())
    [0, 1, 2, 3]
    """

    def _stream(self, epoch: int, position: int) -> Iterator[Index]:
        order = random_order(0, random_bits(self._key(epoch, _SHUFFLE), np.arange(self._n_rows)))
        for begin in range(position, self._n_rows, _BLOCK):
            yield order[begin : begin + _BLOCK]


class _ClassStreamSampler(RowSampler):
    """Choose a class for every position; each class walks through its rows in random cycles."""

    @abstractmethod
    def _classes(self, epoch: int, begin: int, end: int) -> Index:
        """Give the class (its place among those with rows) of every position in a range."""

    def _drawn_before(self, epoch: int, position: int) -> Index:
        """Count the draws of every class before ``position``."""
        drawn = np.zeros(len(self._groups), dtype=np.int64)
        for begin, end in self._ranges(0, position):
            drawn += np.bincount(self._classes(epoch, begin, end), minlength=drawn.size)
        return drawn

    def _stream(self, epoch: int, position: int) -> Iterator[Index]:
        drawn = self._drawn_before(epoch, position)
        key = self._key(epoch, _CYCLES)
        for begin, end in self._ranges(position, self._n_draws):
            yield next_rows(self._groups, key, drawn, self._classes(epoch, begin, end))

    def _ranges(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        # A block does some work once a class, and shuffles the unfinished cycle of each class
        # again: with large blocks for many rows that work stays in proportion.
        size = max(_BLOCK, len(self._groups), self._n_rows // 4)
        return ((first, min(first + size, end)) for first in range(begin, end, size))


@register_sampler("class-balanced")
class ClassBalancedSampler(_ClassStreamSampler):
    """Draw every class equally often, class after class in random rounds.

    An epoch has ``max_n * C`` draws, ``max_n`` from each of the C classes that have rows. Each
    round is a fresh random order of all classes; each class in turn gives ``run`` rows (the last
    round is cut so that the numbers come out even). A class gives each of its rows once before
    any of them twice.

    Parameters
    ----------
    labels : array-like or tensor of int, shape (n_samples,)
        Class codes 0, 1, 2, ...; codes that do not occur are never drawn.
    run : int
        Rows a class gives in a row.
    seed : int
        Same seed, same rows.
    rank, world_size : int
        Which of how many processes asks.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data import ClassBalancedSampler
    >>> labels = np.array([0, 0, 0, 1])
    >>> sampler = ClassBalancedSampler(labels)
    >>> len(sampler)
    6
    >>> np.bincount(labels[sampler.epoch_indices(0)])
    array([3, 3])
    """

    @checked
    def __init__(
        self, labels: Labels, run: Count = 1, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(labels, seed=seed, rank=rank, world_size=world_size)
        self.run = int(run)
        self._max_n = int(self._groups.sizes.max())
        self._last_round = (self._max_n - 1) // self.run
        self._last_run = self._max_n - self._last_round * self.run

    @property
    def _n_draws(self) -> int:
        return self._max_n * len(self._groups)

    def _classes(self, epoch: int, begin: int, end: int) -> Index:
        positions = np.arange(begin, end)
        rounds, slots, _ = self._locate(positions)
        first = int(rounds[0])
        orders = self._round_orders(epoch, first, int(rounds[-1]))
        return orders[rounds - first, slots]

    def _drawn_before(self, epoch: int, position: int) -> Index:
        rounds, slots, taken = (int(part[0]) for part in self._locate(np.array([position])))
        order = self._round_orders(epoch, rounds, rounds)[0]
        drawn = np.full(len(self._groups), rounds * self.run, dtype=np.int64)
        drawn[order[:slots]] += self._last_run if rounds == self._last_round else self.run
        drawn[order[slots]] += taken
        return drawn

    def _locate(self, positions: Index) -> tuple[Index, Index, Index]:
        """Find the round, the place in its order of classes, and the draw inside the run."""
        in_round = len(self._groups) * self.run
        rounds = np.minimum(positions // in_round, self._last_round)
        run = np.where(rounds == self._last_round, self._last_run, self.run)
        slots, taken = np.divmod(positions - rounds * in_round, run)
        return rounds, slots, taken

    def _round_orders(self, epoch: int, first: int, last: int) -> Index:
        """Shuffle the classes again for each round from ``first`` to ``last``."""
        n_classes = len(self._groups)
        places = np.arange(first * n_classes, (last + 1) * n_classes).reshape(-1, n_classes)
        return random_order(0, random_bits(self._key(epoch, _ROUNDS), places))


@register_sampler("square-root")
class SquareRootSampler(_ClassStreamSampler):
    """Draw a class with a probability that grows with the square root of its size.

    Half way between instance and class-balanced sampling. An epoch has as many draws as there
    are rows; a class gives each of its rows once before any of them twice.

    Parameters
    ----------
    labels : array-like or tensor of int, shape (n_samples,)
        Class codes 0, 1, 2, ...; codes that do not occur are never drawn.
    seed : int
        Same seed, same rows.
    rank, world_size : int
        Which of how many processes asks.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data import SquareRootSampler
    >>> labels = np.repeat([0, 1], [900, 100])
    >>> drawn = labels[SquareRootSampler(labels).epoch_indices(0)]
    >>> bool(abs((drawn == 1).mean() - 0.25) < 0.05)  # sqrt(100) / (sqrt(900) + sqrt(100))
    True
    """

    @cached_property
    def _fraction_up_to(self) -> NDArray[np.float64]:
        up_to: NDArray[np.float64] = np.cumsum(np.sqrt(self._groups.sizes))
        up_to /= up_to[-1]
        return up_to

    def _classes(self, epoch: int, begin: int, end: int) -> Index:
        draws = random_uniform(self._key(epoch, _CLASSES), np.arange(begin, end))
        return np.searchsorted(self._fraction_up_to, draws, side="right")


@register_sampler("progressive")
class ProgressiveSampler(_ClassStreamSampler):
    """Move from instance to class-balanced sampling, draw by draw, over a number of epochs.

    At the fraction s of the way a class has the probability ``(1 - s) n_c / N + s / C``. An epoch
    has as many draws as there are rows; a class gives each of its rows once before any of them
    twice. After the last of ``epochs`` all classes stay equally likely.

    Parameters
    ----------
    labels : array-like or tensor of int, shape (n_samples,)
        Class codes 0, 1, 2, ...; codes that do not occur are never drawn.
    epochs : int
        How many epochs the way takes.
    seed : int
        Same seed, same rows.
    rank, world_size : int
        Which of how many processes asks.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.data import ProgressiveSampler
    >>> labels = np.repeat([0, 1], [900, 100])
    >>> sampler = ProgressiveSampler(labels, epochs=10)
    >>> [bool((labels[sampler.epoch_indices(e)] == 1).mean() > 0.3) for e in (0, 9)]
    [False, True]
    """

    @checked
    def __init__(
        self, labels: Labels, epochs: Count, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(labels, seed=seed, rank=rank, world_size=world_size)
        self.epochs = int(epochs)
        self._class_of_row = np.repeat(np.arange(len(self._groups)), self._groups.sizes)

    def _classes(self, epoch: int, begin: int, end: int) -> Index:
        positions = np.arange(begin, end)
        way = (epoch + positions / self._n_rows) / self.epochs
        draws = random_uniform(self._key(epoch, _CLASSES), positions)
        balanced = (draws * len(self._groups)).astype(np.int64)
        by_instance = self._class_of_row[(draws * self._n_rows).astype(np.int64)]
        uses_balanced = random_uniform(self._key(epoch, _MIXTURE), positions) < way
        return np.where(uses_balanced, balanced, by_instance)

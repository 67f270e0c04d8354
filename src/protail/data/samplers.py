"""Samplers: which row comes next, by what share each class gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from protail._messages import unknown_name
from protail.data._class_stream import ClassStreamSampler
from protail.data._cycles import Index
from protail.data._random import random_bits, random_order, random_uniform
from protail.data._row_sampler import BLOCK, Purpose, RowSampler, whole_number

_NO_GROUPS = np.zeros(1, dtype=np.uint64)


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
        bits = random_bits(self._key(epoch, Purpose.SHUFFLE), np.arange(self._n_rows))
        order = random_order(_NO_GROUPS, bits)
        for begin in range(position, self._n_rows, BLOCK):
            yield order[begin : begin + BLOCK]


class ClassBalancedSampler(ClassStreamSampler):
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

    def __init__(
        self,
        labels: ArrayLike | Tensor,
        run: int = 1,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, seed=seed, rank=rank, world_size=world_size)
        self.run = whole_number("run", run, 1)
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
        """Shuffle the classes anew for each round from ``first`` to ``last``."""
        n_classes = len(self._groups)
        places = np.arange(first * n_classes, (last + 1) * n_classes).reshape(-1, n_classes)
        return random_order(_NO_GROUPS, random_bits(self._key(epoch, Purpose.ROUNDS), places))


class SquareRootSampler(ClassStreamSampler):
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

    def __init__(
        self, labels: ArrayLike | Tensor, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(labels, seed=seed, rank=rank, world_size=world_size)
        weight_up_to = np.cumsum(np.sqrt(self._groups.sizes))
        self._share_up_to = weight_up_to / weight_up_to[-1]
        # Where a search for j / 2**k ends: from there a search for a bit more has a step to go.
        steps = 4 << len(self._groups).bit_length()
        self._guide = np.searchsorted(self._share_up_to, np.arange(steps) / steps, side="right")

    def _classes(self, epoch: int, begin: int, end: int) -> Index:
        draws = random_uniform(self._key(epoch, Purpose.CLASSES), np.arange(begin, end))
        classes = self._guide[(draws * self._guide.size).astype(np.int64)]
        behind = np.flatnonzero(self._share_up_to[classes] <= draws)
        while behind.size:
            classes[behind] += 1
            behind = behind[self._share_up_to[classes[behind]] <= draws[behind]]
        return classes


class ProgressiveSampler(ClassStreamSampler):
    """Move from instance to class-balanced sampling, draw by draw, over a number of epochs.

    At the share s of the way a class has the probability ``(1 - s) n_c / N + s / C``. An epoch
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

    def __init__(
        self,
        labels: ArrayLike | Tensor,
        epochs: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, seed=seed, rank=rank, world_size=world_size)
        self.epochs = whole_number("epochs", epochs, 1)
        self._class_of_row = np.repeat(np.arange(len(self._groups)), self._groups.sizes)

    def _classes(self, epoch: int, begin: int, end: int) -> Index:
        positions = np.arange(begin, end)
        way = (epoch + positions / self._n_rows) / self.epochs
        draws = random_uniform(self._key(epoch, Purpose.CLASSES), positions)
        balanced = (draws * len(self._groups)).astype(np.int64)
        by_instance = self._class_of_row[(draws * self._n_rows).astype(np.int64)]
        uses_balanced = random_uniform(self._key(epoch, Purpose.MIXTURE), positions) < way
        return np.where(uses_balanced, balanced, by_instance)


_SAMPLERS: dict[str, type[RowSampler]] = {
    "instance": InstanceSampler,
    "class-balanced": ClassBalancedSampler,
    "square-root": SquareRootSampler,
    "progressive": ProgressiveSampler,
}


def make_sampler(name: str, labels: ArrayLike | Tensor, **options: Any) -> RowSampler:
    """Build a sampler by name.

    Parameters
    ----------
    name : {"instance", "class-balanced", "square-root", "progressive"}
        Which sampler.
    labels : array-like or tensor of int, shape (n_samples,)
        Class codes 0, 1, 2, ...
    **options
        What that sampler takes: ``seed``, ``rank``, ``world_size``, ``run``, ``epochs``.

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
    if name not in _SAMPLERS:
        raise ValueError(unknown_name("sampler", name, _SAMPLERS))
    return _SAMPLERS[name](labels, **options)

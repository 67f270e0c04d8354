"""Samplers that choose a class first, and then the next row of that class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from protail.data._cycles import CycleReader, Index
from protail.data._row_sampler import BLOCK, Purpose, RowSampler


class ClassStreamSampler(RowSampler):
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
        reader = CycleReader(self._groups, self._key(epoch, Purpose.CYCLES), drawn)
        for begin, end in self._ranges(position, self._n_draws):
            yield reader.take(self._classes(epoch, begin, end))

    def _ranges(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        # Not below the class count: work that every block does once a class stays in proportion.
        size = max(BLOCK, len(self._groups))
        for first in range(begin, end, size):
            yield first, min(first + size, end)

"""What every feature file can do, whatever its format."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail.data.features._errors import problem, reading
from protail.data.features._labels_file import LabelsFile
from protail.data.features._spool import gather, rows_a_block


@dataclass(frozen=True)
class Layout:
    """What the head of a file tells about its rows."""

    width: int
    dtype: np.dtype[Any]
    names: list[str] | None = None
    ignored: list[str] = field(default_factory=list)
    has_labels: bool = False
    columns: list[str] | None = None
    kept: dict[str, str] = field(default_factory=dict)


class FeatureFile(ABC):
    r"""Give rows and labels of one file; `open_features` makes it.

    Nothing stays open: every call reads the file anew, so one object may be walked through many
    times, and from several places at once.

    Attributes
    ----------
    path : Path
        The file.
    n_rows, width : int
        How many rows, of how many numbers. A csv file is counted when it is first asked.
    dtype : numpy.dtype
        Of the rows given: float16, float32 or float64.
    names : list of str or None
        The feature columns in order; None where one array or list column holds them all.
    columns : list of str or None
        All columns of a table, whatever they hold; None where the file is none.
    ignored : list of str
        Arrays or columns of the file that are neither features, labels nor kept.
    kept : dict of str to str
        What `kept_rows` gives, by name, with the name of its type in pyarrow.
    has_labels : bool
        Whether `labels` has something to give.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.features import FeatureFile, open_features
    >>> path = Path(tempfile.mkdtemp()) / "iris.csv"
    >>> _ = path.write_text("label,petal,sepal\nrose,1.5,2\nlily,3,4\n")
    >>> file = open_features(path)
    >>> isinstance(file, FeatureFile), file.n_rows, file.names
    (True, 2, ['petal', 'sepal'])
    >>> [block.shape for block in file.blocks(n_rows=1)]
    [(1, 2), (1, 2)]
    """

    kind: str

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.width = layout.width
        self.dtype = layout.dtype
        self.names = layout.names
        self.columns = layout.columns
        self.ignored = layout.ignored
        self.kept = layout.kept
        self.has_labels = layout.has_labels
        self._other_labels: LabelsFile | None = None

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Say how many rows there are.

        Returns
        -------
        int
            At least one.
        """

    def labels(self) -> NDArray[Any]:
        """Read one label for each row.

        Returns
        -------
        ndarray of int64 or str, shape (n_rows,)
            Whole numbers or names, none of them missing.
        """
        if not self.has_labels:
            raise problem(
                self.path, "it has no labels", "labels", "Name them with labels= / --labels."
            )
        if self._other_labels is not None:
            return self._other_labels.read(self.path, self.n_rows)
        with reading(self.path, self.kind):
            return self._read_labels()

    def read_labels_from(self, other: LabelsFile) -> None:
        """Take the labels out of another file, not out of this one."""
        self._other_labels = other
        self.has_labels = True

    def rows(self) -> NDArray[Any]:
        """Give all rows at once, without a copy where the format allows.

        Returns
        -------
        ndarray, shape (n_rows, width)
            A read-only memory map of the file itself for floats in npy, uncompressed npz and
            safetensors. Otherwise what was read: in memory below 256 MiB, above that in a
            temporary file that goes away with the array.
        """
        with reading(self.path, self.kind):
            return gather(self.blocks(), (self.n_rows, self.width), self.dtype)

    def blocks(self, start: int = 0, n_rows: int = 65536) -> Iterator[NDArray[Any]]:
        """Walk through the rows without ever holding more than a few blocks.

        Parameters
        ----------
        start : int, default=0
            The first row to give.
        n_rows : int, default=65536
            At most so many rows a block; fewer where they are wide, to keep to 16 MiB.

        Yields
        ------
        ndarray, shape (n_block, width)
            Consecutive rows, of type `dtype`, free to be changed.
        """
        first, most = operator.index(start), operator.index(n_rows)
        if most < 1:
            raise ValueError(f"n_rows={n_rows}; expected at least 1 row a block.")
        if first < 0 or (first and first > self.n_rows):
            raise ValueError(f"start={start}; expected a row from 0 to {self.n_rows}.")
        return self._guarded(first, min(most, rows_a_block(self.width * self.dtype.itemsize)))

    def kept_rows(self, start: int = 0) -> Iterator[tuple[Any, ...]]:
        """Walk through what is kept beside the features.

        Parameters
        ----------
        start : int, default=0
            The first row to give.

        Yields
        ------
        tuple
            One value for each name in ``kept``: text, a number, or None where there is none. A
            csv file gives text, just as it stands there.
        """
        with reading(self.path, self.kind):
            yield from self._kept_stream(start)

    def _guarded(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        with reading(self.path, self.kind):
            yield from self._stream(start, size)

    @abstractmethod
    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield fresh blocks of at most ``size`` rows, of type ``self.dtype``."""

    @abstractmethod
    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        """Yield what is kept of each row from ``start`` on."""

    @abstractmethod
    def _read_labels(self) -> NDArray[Any]:
        """Read and check the labels; only called where there are some."""

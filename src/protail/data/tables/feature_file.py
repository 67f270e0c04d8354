"""What every feature file can do, whatever its format; how one is opened; what goes wrong."""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from protail._files import OutputError
from protail._messages import not_installed, why
from protail.data.tables.rows import Engine, ShardedRows, gather, rows_a_block

# Of many names, so many are named in an error.
LISTED = 20
ENDINGS = (".npz", ".npy", ".safetensors", ".parquet", ".csv", ".tsv")

Given = TypeVar("Given")


class FeatureFileError(ValueError):
    """Say which feature file cannot be read, why, and what to do about it.

    Examples
    --------
    >>> from protail.data.tables import FeatureFileError, open_features
    >>> try:
    ...     open_features("photos.zip")
    ... except FeatureFileError as error:
    ...     print(error)
    photos.zip: there is no such file; expected a feature file. Check the path.
    """


class FaultError(Exception):
    """What is wrong with a file; `reading` puts the file's path before it."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever is wrong with a file, or its reader makes of it, into a `FeatureFileError`."""
    kind = path.suffix.lower().removeprefix(".") or "feature"
    try:
        yield
    except (FeatureFileError, OutputError):
        raise
    except FaultError as problem:
        raise FeatureFileError(f"{path}: {problem}") from problem.__cause__
    except UnicodeDecodeError as error:
        raise FeatureFileError(
            f"{path}: byte 0x{error.object[error.start]:02x} does not belong to UTF-8 text; "
            f"expected a {kind} file in UTF-8. Save it again with the encoding UTF-8."
        ) from error
    except PermissionError as error:
        raise FeatureFileError(
            f"{path}: there is no permission to read it; expected a readable file. Change that."
        ) from error
    except Exception as error:  # what readers raise on damaged bytes is anything at all
        raise FeatureFileError(
            f"{path}: it cannot be read ({why(error)}); expected a whole {kind} file. It may be "
            "cut short or damaged: write or copy it again."
        ) from error


@dataclass(frozen=True)
class Wanted:
    """What somebody asks of a file; `open_features` explains each."""

    features: str | None
    labels: str | None
    need_labels: bool
    columns: tuple[str, ...] | None
    exclude: tuple[str, ...]
    keep: tuple[str, ...]

    def check_no_columns(self) -> None:
        """Raise where columns are chosen although one array or column holds all features."""
        if self.columns is not None or self.exclude:
            option = "exclude" if self.columns is None else "columns"
            raise FaultError(
                f"its features are one array or column, and {option} was given; expected one of "
                f"them. Leave {option}= / --{option} out."
            )


class FeatureFile(ABC):
    r"""Give rows and labels of one file; `open_features` makes it.

    Nothing stays open: every call reads the file again, so one object may be walked through many
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
    is_mapped : bool
        Whether `rows` maps the file itself.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.data.tables import FeatureFile, open_features
    >>> path = Path(tempfile.mkdtemp()) / "iris.csv"
    >>> _ = path.write_text("label,petal,sepal\nrose,1.5,2\nlily,3,4\n")
    >>> file = open_features(path)
    >>> isinstance(file, FeatureFile), file.n_rows, file.names
    (True, 2, ['petal', 'sepal'])
    >>> [block.shape for block in file.blocks(n_rows=1)]
    [(1, 2), (1, 2)]
    """

    n_rows: int
    width: int
    dtype: np.dtype[Any]
    names: list[str] | None = None
    columns: list[str] | None = None
    ignored: list[str]
    kept: dict[str, str]
    is_mapped = False
    _read_labels: Callable[[], NDArray[Any]] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def has_labels(self) -> bool:
        """Whether `labels` has something to give."""
        return self._read_labels is not None

    def labels(self) -> NDArray[Any]:
        """Read one label for each row.

        Returns
        -------
        ndarray of int64 or str, shape (n_rows,)
            Whole numbers or names, none of them missing.
        """
        with reading(self.path):
            if self._read_labels is None:
                raise FaultError(
                    "it has no labels; expected labels. Name them with labels= / --labels."
                )
            return self._read_labels()

    def rows(self) -> NDArray[Any] | ShardedRows:
        """Give all rows at once, without a copy where the format allows.

        Returns
        -------
        ndarray or ShardedRows, shape (n_rows, width)
            A read-only memory map of the file itself for floats in npy, uncompressed npz and
            safetensors. Otherwise what was read: in memory below 256 MiB, above that in a
            temporary file that goes away with the array. Of several files of more than 256 MiB,
            and of any under an engine, rows that are read as they are needed.
        """
        with reading(self.path):
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
        size = min(most, rows_a_block(self.width * self.dtype.itemsize))
        return self._guarded(self._stream(first, size))

    def cuts(self) -> list[int]:
        """Give the rows that can be read without those before them; the first and the end too."""
        return [0, self.n_rows]

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
            csv file gives text, just as it is written there.
        """
        return self._guarded(self._kept_stream(start))

    def _guarded(self, items: Iterator[Given]) -> Iterator[Given]:
        with reading(self.path):
            yield from items

    @abstractmethod
    def _stream(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield fresh blocks of at most ``size`` rows, of type ``self.dtype``."""

    @abstractmethod
    def _kept_stream(self, start: int) -> Iterator[tuple[Any, ...]]:
        """Yield what is kept of each row from ``start`` on."""


def open_features(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    features: str | None = None,
    labels: str | None = None,
    need_labels: bool = False,
    columns: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    keep: str | Sequence[str] = (),
    labels_file: str | os.PathLike[str] | None = None,
    engine: str | Engine = "local",
) -> FeatureFile:
    r"""Open a feature file, or several as one: read heads and say what is in them.

    Nothing is ever unpickled, and no row is read before it is asked for.

    Parameters
    ----------
    path : path-like or sequence of path-like
        A file that ends in .npz, .npy, .safetensors, .parquet, .csv or .tsv. Or several, whose
        rows stand one below the other: a folder of them, a pattern as in ``"rows/*.parquet"``, or
        a list. May be an address, as in ``"s3://bucket/rows"``.
    features : str, optional
        The array or column that holds the features. By default the 2-d array (or list column)
        called features, embeddings, embedding, X or x, or the only one there is; in a table
        without such a column, every numeric column but the labels. A column without a name, and
        the index pandas wrote, are no features.
    labels : str, optional
        The 1-d array or the column that holds the labels. By default the one called labels,
        label, y, targets, target or class.
    need_labels : bool, default=False
        Whether a file without usable labels is an error now.
    columns : str or sequence of str, optional
        Which columns of a table are features, in this order: names, patterns as in ``"f*"``, and
        the first and the last of neighbours as in ``"f0:f63"``; one text may hold several, with
        commas between them. What a pattern or neighbours bring in that is the label, or holds no
        numbers, is left out.
    exclude : str or sequence of str, optional
        Columns of a table that are no features, named in the same ways.
    keep : str or sequence of str, optional
        Columns, or 1-d arrays, that are no features either and come along as
        `FeatureFile.kept_rows`.
    labels_file : path-like, optional
        Where the labels are, if not in the file: .npy, .csv, .tsv or .txt, one label for each row
        in the same order. A csv file begins with a line of names, and ``labels`` is the name of a
        column of it; a txt file holds nothing but labels, one a line. Labels in the file itself
        are then not read, and are no features.
    engine : {"local", "ray"} or callable, default="local"
        Who reads the rows of a fit: this process; the workers of Ray; or what works as the builtin
        `map` does.

    Returns
    -------
    FeatureFile
        Shape, names, labels and rows, on demand.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from protail.data.tables import open_features
    >>> path = Path(tempfile.mkdtemp()) / "features.npz"
    >>> np.savez(path, X=np.eye(3, dtype="float32"), y=["ant", "bee", "ant"])
    >>> file = open_features(path, need_labels=True)
    >>> file.n_rows, file.width, file.dtype.name
    (3, 3, 'float32')
    >>> file.labels().tolist()
    ['ant', 'bee', 'ant']
    >>> type(file.rows()).__name__
    'memmap'
    >>> table = path.with_name("table.csv")
    >>> _ = table.write_text("id,f0,f1,label\n7,0.5,1,ant\n8,2,1.5,bee\n")
    >>> open_features(table).names
    ['id', 'f0', 'f1']
    >>> open_features(table, exclude="id").names
    ['f0', 'f1']
    >>> file = open_features(table, columns="f*", keep="id")
    >>> file.names, list(file.kept_rows())
    (['f0', 'f1'], [('7',), ('8',)])
    """
    from protail.data.tables import shards

    wanted = Wanted(
        features=features,
        labels=labels if labels_file is None else None,
        need_labels=need_labels and labels_file is None,
        columns=None if columns is None else _as_names(columns),
        exclude=_as_names(exclude),
        keep=_as_names(keep),
    )
    found, place = shards.find_files(path)
    opened = []
    for each in found:
        with reading(each):
            opened.append(_opened(each, wanted))
    file = opened[0]
    if len(found) > 1 or found != [place] or engine != "local":
        file = shards.ShardedFile(place, opened, shards.find_engine(engine))
    if labels_file is not None:
        file._read_labels = _labels_of_file(Path(labels_file), labels, file)
    return file


def _as_names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _checked_ending(path: Path, expected: str, endings: Sequence[str]) -> str:
    """Give the ending; raise unless it is known and there is a file with something in it."""
    if not path.exists():
        raise FaultError(f"there is no such file; expected {expected}. Check the path.")
    if path.is_dir():
        raise FaultError(f"it is a folder; expected {expected}. Name a file inside it.")
    if not path.is_file():
        raise FaultError("it is a pipe or device; expected a file on disk. Write it to one first.")
    if path.stat().st_size == 0:
        raise FaultError(f"it is empty (0 bytes); expected {expected}. Write or copy it again.")
    if path.suffix.lower() not in endings:
        raise FaultError(
            f"its ending {path.suffix!r} is unknown; expected one of {', '.join(endings)}. "
            "Convert or rename it."
        )
    return path.suffix.lower()


def _opened(path: Path, wanted: Wanted) -> FeatureFile:
    """Open a file with the reader of its format; its library is imported only now."""
    ending = _checked_ending(path, "a feature file", ENDINGS)
    if ending == ".parquet":
        try:
            from protail.data.tables._parquet import ParquetFile
        except ImportError as error:
            raise FaultError(not_installed("reading parquet files", "pyarrow", "tables")) from error
        return ParquetFile(path, wanted)
    if ending in (".csv", ".tsv"):
        from protail.data.tables._csv import CsvFile

        return CsvFile(path, wanted)
    from protail.data.tables._arrays import ArrayFile

    return ArrayFile(path, wanted)


def _labels_of_file(
    path: Path, column: str | None, file: FeatureFile
) -> Callable[[], NDArray[Any]]:
    """Check that a file may hold labels, and give what reads one for each row of ``file``."""
    from protail.data.tables import _arrays, _columns, _csv

    with reading(path):
        ending = _checked_ending(path, "a file of labels", (".npy", ".csv", ".tsv", ".txt"))
        if column is not None and ending in (".npy", ".txt"):
            raise FaultError(
                f"labels={column!r} was given, and there are no names in such a file; expected the "
                "labels alone. Leave labels= / --labels out."
            )

    def read() -> NDArray[Any]:
        with reading(path):
            if ending == ".npy":
                (array,) = _arrays.npy_arrays(path)
                return _arrays.read_labels(array, path, file.n_rows)
            if ending == ".txt":
                lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
                labels, hint = _columns.labels_of_lines(enumerate(lines, 1)), ""
            else:
                labels = _csv.read_labels(path, column)
                hint = " Its first line was taken for the name of the column."
            if len(labels) != file.n_rows:
                raise FaultError(
                    f"it has {len(labels)} labels, and {file.path} has {file.n_rows} rows; "
                    f"expected one for each row, in the same order. Write them again.{hint}"
                )
            return labels

    return read

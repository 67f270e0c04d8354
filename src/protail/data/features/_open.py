"""From a path to the reader of its format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from protail.data.features._arrays import ArrayFile
from protail.data.features._csv import CsvFile
from protail.data.features._errors import problem, reading
from protail.data.features._file import FeatureFile
from protail.data.features._parquet import ParquetFile

_READERS: dict[str, Callable[[Path, str | None, str | None, bool], FeatureFile]] = {
    ".npz": ArrayFile,
    ".npy": ArrayFile,
    ".safetensors": ArrayFile,
    ".parquet": ParquetFile,
    ".csv": CsvFile,
    ".tsv": CsvFile,
}


def open_features(
    path: str | os.PathLike[str],
    *,
    features: str | None = None,
    labels: str | None = None,
    need_labels: bool = False,
) -> FeatureFile:
    """Look at the head of a feature file and say what is in it.

    Nothing is ever unpickled, and no row is read before it is asked for.

    Parameters
    ----------
    path : path-like
        A file that ends in .npz, .npy, .safetensors, .parquet, .csv or .tsv.
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

    Returns
    -------
    FeatureFile
        Shape, names, labels and rows, on demand.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from protail.data.features import open_features
    >>> path = Path(tempfile.mkdtemp()) / "features.npz"
    >>> np.savez(path, X=np.eye(3, dtype="float32"), y=["ant", "bee", "ant"])
    >>> file = open_features(path, need_labels=True)
    >>> file.n_rows, file.width, file.dtype.name
    (3, 3, 'float32')
    >>> file.labels().tolist()
    ['ant', 'bee', 'ant']
    >>> type(file.rows()).__name__
    'memmap'
    """
    place = Path(path)
    with reading(place, "feature"):
        _check_file(place)
        reader = _READERS.get(place.suffix.lower())
        if reader is None:
            raise problem(
                place,
                f"its ending {place.suffix!r} is unknown",
                f"one of {', '.join(_READERS)}",
                "Convert or rename it.",
            )
        return reader(place, features, labels, need_labels)


def _check_file(place: Path) -> None:
    if not place.exists():
        raise problem(place, "there is no such file", "a feature file", "Check the path.")
    if place.is_dir():
        raise problem(place, "it is a folder", "a feature file", "Name a file inside it.")
    if not place.is_file():
        raise problem(
            place, "it is a pipe or device", "a file on disk", "Write the features to one first."
        )
    if place.stat().st_size == 0:
        raise problem(place, "it is empty (0 bytes)", "a feature file", "Write or copy it again.")

"""From a path to the reader of its format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from protail.data.features._arrays import ArrayFile
from protail.data.features._columns import Wanted, as_names
from protail.data.features._csv import CsvFile
from protail.data.features._errors import check_file, problem, reading
from protail.data.features._file import FeatureFile
from protail.data.features._labels_file import LabelsFile
from protail.data.features._parquet import ParquetFile

_READERS: dict[str, Callable[[Path, Wanted], FeatureFile]] = {
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
    columns: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    keep: str | Sequence[str] = (),
    labels_file: str | os.PathLike[str] | None = None,
) -> FeatureFile:
    r"""Look at the head of a feature file and say what is in it.

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
    place = Path(path)
    with reading(place, "feature"):
        check_file(place, "a feature file")
        reader = _READERS.get(place.suffix.lower())
        if reader is None:
            raise problem(
                place,
                f"its ending {place.suffix!r} is unknown",
                f"one of {', '.join(_READERS)}",
                "Convert or rename it.",
            )
        wanted = Wanted(
            features=features,
            labels=labels if labels_file is None else None,
            need_labels=need_labels and labels_file is None,
            columns=None if columns is None else as_names(columns),
            exclude=as_names(exclude),
            keep=as_names(keep),
        )
        file = reader(place, wanted)
        if labels_file is not None:
            file.read_labels_from(LabelsFile(Path(labels_file), labels))
        return file

"""``protail embed``: features of photos in a file, for whatever comes next."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from protail._messages import counted, not_installed, unknown_name
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.photos import embed as embed_parts
from protail.cli.photos import (
    features_folder,
    features_told,
    open_backbone,
    tell_photos,
    tell_unreadable,
)
from protail.cli.sources import Array, check_there

# Of a table written together: a row group of parquet.
_ROWS_AT_A_TIME = 16_384

Photos = Annotated[
    Path,
    typer.Argument(
        help="A folder with a folder of photos for each class, or a csv file (path,label).",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", help="A .npz, .parquet or .csv file.", show_default=False),
]


@command
def embed(
    voice: Voice,
    photos: Photos,
    output: Output,
    backbone: opt.Backbone = "auto",
    weights: opt.Weights = None,
    augment: opt.Augment = 0,
    cache: opt.Cache = None,
    device: opt.Device = "auto",
    overwrite: opt.Overwrite = False,
) -> None:
    """Compute the features of photos with a pretrained backbone.

    The file holds features, labels and paths; protail fit and evaluate take it. When stopped, the
    same command goes on where it was.
    """
    check_there(photos, expected="a folder of photos")
    from protail._files import check_free, new_file
    from protail.data.images import find_photos, photo_parts
    from protail.data.tables import take
    from protail.training import forget

    writer = _writer(output)
    check_free(output, overwrite=overwrite)
    if photo_parts(photos)[1] is not None:
        raise ValueError(
            f"{photos} holds the folders train and test; expected one of them, for each has "
            f"a file of its own. Give {photos / 'train'}, and then the other."
        )
    begin = time.perf_counter()
    found = find_photos(photos)
    options = opt.PhotoOptions(backbone, weights, augment, cache)
    folder = features_folder(options, output)
    tell_photos(voice, found)
    embedder = open_backbone(options, device, voice)
    paths = found.images.paths
    with features_told(folder, voice):
        (embedded,) = embed_parts(voice, embedder, [paths], [augment], folder)
        bad = tell_unreadable(voice, paths, embedded)
        kept = np.flatnonzero(embedded.readable)
        names = [found.images.files[i] for i in kept] if found.images.files else []
        with new_file(output, overwrite=overwrite) as temporary:
            writer(temporary, take(embedded.rows, kept), found.names[kept], np.array(names))
    if cache is None:
        forget(folder)  # the file holds all of it now
    rows = counted(len(kept), "row")
    voice.say(f"{output}: {rows} of {counted(embedded.rows.shape[1], 'number')}")
    voice.finish(
        {
            "output": str(output),
            "rows": len(kept),
            "width": embedded.rows.shape[1],
            "classes": len(found.images.classes),
            "unreadable": bad,
            "features": None if cache is None else str(folder),
            "seconds": round(time.perf_counter() - begin, 3),
        }
    )


def _writer(output: Path) -> Callable[[Path, Array, Array, Array], None]:
    """Choose how to write by the ending of a file, and raise where that cannot be done."""
    writers: dict[str, Callable[[Path, Array, Array, Array], None]] = {
        ".npz": _write_arrays,
        ".parquet": partial(_write_table, "parquet"),
        ".csv": partial(_write_table, "csv"),
    }
    ending = output.suffix.lower()
    if ending not in writers:
        raise ValueError(unknown_name("suffix of --output", ending, writers))
    if ending != ".npz":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{not_installed(str(output), 'pyarrow', 'tables')} or choose .npz."
            ) from error
    return writers[ending]


def _write_arrays(place: Path, rows: Array, labels: Array, names: Array) -> None:
    with place.open("wb") as file:
        np.savez(file, features=rows, labels=labels, path=names)


def _write_table(ending: str, place: Path, rows: Array, labels: Array, names: Array) -> None:
    """Write columns path, label, f0, f1 and so on, some rows at a time."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    def table(part: slice) -> Any:
        columns: dict[str, Any] = {"path": names[part], "label": labels[part]}
        return pa.table(columns | {f"f{i}": column for i, column in enumerate(rows[part].T)})

    parts = [slice(n, n + _ROWS_AT_A_TIME) for n in range(0, len(rows), _ROWS_AT_A_TIME)]
    first = table(parts[0])
    kind = csv.CSVWriter if ending == "csv" else parquet.ParquetWriter
    with kind(place, first.schema) as file:
        file.write_table(first)
        for part in parts[1:]:
            file.write_table(table(part))


app = make_app(embed, "protail embed photos -o features.npz")

"""``protail predict``: what a model says about each row of any number of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protail._messages import counted
from protail._stopping import check_stop, in_steps
from protail.cli._feature_options import Columns, Exclude, FeatureOptions, FeaturesKey, Keep
from protail.cli.command import Debug, Device, Json, ModelFolder, Overwrite, Voice
from protail.cli.command import command as _command

if TYPE_CHECKING:
    from protail.cli._prediction_job import PredictionJob
    from protail.cli._sources import Model
    from protail.data.tables import FeatureFile

# Classes named in one piece of the output, all rows together.
_NAMED_AT_A_TIME = 65_536

Files = Annotated[list[Path], typer.Argument(help="Files with features.", show_default=False)]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", help="A .csv, .jsonl or .parquet file.", show_default=False),
]
TopK = Annotated[int, typer.Option("-k", "--top-k", min=1, help="Classes to name for each row.")]


@_command
def predict(
    model: ModelFolder,
    files: Files,
    output: Output,
    top_k: TopK = 1,
    features: FeaturesKey = None,
    columns: Columns = None,
    exclude: Exclude = None,
    keep: Keep = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict the class of each row of any number of files.

    Writes label, probability, distance and novelty. Files of any size are read piece by piece;
    when stopped, the same command goes on where it was.
    """
    from protail.cli._prediction_job import PredictionJob
    from protail.cli._progress import in_words, row_progress
    from protail.cli._sources import Model, open_sources, tell_columns

    voice = Voice(as_json)
    loaded = Model.load(model, device)
    options = FeatureOptions(features, None, columns, exclude, keep)
    sources = open_sources(loaded, files, options)
    tell_columns(voice, sources)
    n_rows = sum(source.n_rows for source in sources)
    begin = time.perf_counter()
    with in_steps(), PredictionJob(output, loaded, sources, options, top_k, overwrite) as job:
        done = job.n_done
        if done:
            rows = counted(n_rows, "row")
            voice.say(f"Going on after {done:,} of {rows} ({job.parts} holds them).")
        with row_progress(voice, n_rows, done) as progress:
            _predict(loaded, sources, job, top_k, progress)
        n_without = job.finish()
    seconds = time.perf_counter() - begin
    if n_without:
        voice.say(f"Rows with NaN or infinity, without a prediction: {n_without:,}")
    voice.say(f"{counted(n_rows - done, 'row')} predicted in {in_words(seconds)}: {output}")
    voice.finish(
        {
            "rows": n_rows,
            "rows_from_earlier_start": done,
            "rows_without_prediction": n_without,
            "seconds": round(seconds, 3),
            "output": str(output),
        }
    )


def _predict(
    model: Model,
    sources: Sequence[FeatureFile],
    job: PredictionJob,
    top_k: int,
    progress: Callable[[int], None],
) -> None:
    from protail.cli._sources import ask

    # What is written for a row grows with the classes it names.
    rows_at_a_time = max(1, _NAMED_AT_A_TIME // min(top_k, len(model.classifier.classes_)))
    first_of_file = 0
    for source in sources:
        start = max(job.n_done - first_of_file, 0)
        if start < source.n_rows:
            kept = source.kept_rows(start) if source.kept else repeat(())
            for block in source.blocks(start, rows_at_a_time):
                check_stop()
                along = list(islice(kept, len(block)))
                job.keep(source.path, start, ask(model, block, top_k), along)
                start += len(block)
                progress(len(block))
        first_of_file += source.n_rows

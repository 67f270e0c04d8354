"""``protail compare``: which of two models is better on the same rows, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from protail._messages import counted
from protail.cli import options as opt
from protail.cli import sources
from protail.cli.command import Voice, command, make_app
from protail.cli.sources import Model, open_sources, tell_columns

Second = Annotated[Path, typer.Argument(help="The other one.", show_default=False)]


@command
def compare(
    voice: Voice,
    first: opt.ModelFolder,
    second: Second,
    files: opt.LabelledFiles,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    labels: opt.LabelsKey = None,
    labels_file: opt.LabelsFiles = None,
    device: opt.Device = "auto",
) -> None:
    """Compare two models on the same labelled rows or photos.

    The 95 % intervals come from resampling rows, both models together. Groups follow the
    training counts of the first model.
    """
    sources.check_there(*files)
    from protail import Comparison

    models = [Model.load(folder, device) for folder in (first, second)]
    classes, counts = _all_classes(*models)
    options = opt.FeatureOptions(features, labels, columns, exclude)
    opened = [
        open_sources(model, files, options, labels_files=labels_file, need_labels=True)
        for model in models
    ]
    tell_columns(voice, [*opened[0], *opened[1]])
    evaluated = [
        sources.evaluate_rows(model, own, voice) for model, own in zip(models, opened, strict=True)
    ]
    # Models that take different columns may have answered different rows.
    _, in_first, in_second = np.intersect1d(
        evaluated[0].rows, evaluated[1].rows, return_indices=True
    )
    left_out = sum(len(one.rows) - len(in_first) for one in evaluated)
    if not len(in_first):
        raise ValueError("no row is finite for both models; expected some. Compare on other rows.")
    if left_out:
        rows = counted(left_out, "row is", "rows are")
        voice.say(f"{rows} finite for one of the models only: left out.")
    comparison = Comparison.from_predictions(
        evaluated[0].truth[in_first],
        evaluated[0].predicted[in_first],
        evaluated[1].predicted[in_second],
        classes=classes,
        counts=counts,
    )
    voice.show(comparison.table(str(first), str(second)))
    voice.finish(
        {
            "first": str(first),
            "second": str(second),
            "rows_left_out": left_out + sum(one.n_non_finite for one in evaluated),
            **comparison.to_dict(),
        }
    )


def _all_classes(leading: Model, other: Model) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Give the classes that either knows; where both do, the counts of the leading one."""
    if (leading.classes.dtype.kind in "UO") != (other.classes.dtype.kind in "UO"):
        raise ValueError(
            f"one model's classes are {leading.classes.dtype}, the other's "
            f"{other.classes.dtype}; expected models fitted with the same kind of labels."
        )
    counts = dict(zip(other.classes.tolist(), other.counts.tolist(), strict=True))
    counts.update(zip(leading.classes.tolist(), leading.counts.tolist(), strict=True))
    classes = sorted(counts)
    return np.array(classes), np.array([counts[label] for label in classes])


app = make_app(compare, "protail compare model-a model-b test.npz")

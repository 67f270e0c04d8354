"""``protail compare``: which of two models is better on the same rows, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from protail._messages import counted
from protail.cli._feature_options import (
    Columns,
    Exclude,
    FeatureOptions,
    FeaturesKey,
    LabelsFiles,
    LabelsKey,
)
from protail.cli.command import Debug, Device, Json, Voice
from protail.cli.command import command as _command
from protail.cli.evaluate import LabelledFiles

if TYPE_CHECKING:
    from protail import PrototypeClassifier

First = Annotated[Path, typer.Argument(help="Model folder.", show_default=False)]
Second = Annotated[Path, typer.Argument(help="The other one.", show_default=False)]


@_command
def compare(
    first: First,
    second: Second,
    files: LabelledFiles,
    features: FeaturesKey = None,
    columns: Columns = None,
    exclude: Exclude = None,
    labels: LabelsKey = None,
    labels_file: LabelsFiles = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two models on the same labelled rows.

    The 95 % intervals come from resampling rows, both models together. Groups follow the
    training counts of the first model.
    """
    from protail import Comparison
    from protail.cli._judging import judge
    from protail.cli._sources import Model, open_sources, tell_columns

    voice = Voice(as_json)
    models = [Model.load(folder, device) for folder in (first, second)]
    classes, counts = _all_classes(models[0].classifier, models[1].classifier)
    options = FeatureOptions(features, labels, columns, exclude)
    opened = [
        open_sources(model, files, options, labels_files=labels_file, need_labels=True)
        for model in models
    ]
    tell_columns(voice, [*opened[0], *opened[1]])
    judged = [judge(model, own, voice) for model, own in zip(models, opened, strict=True)]
    # Models that take different columns may have answered different rows.
    _, in_first, in_second = np.intersect1d(judged[0].rows, judged[1].rows, return_indices=True)
    left_out = sum(len(one.rows) - len(in_first) for one in judged)
    if not len(in_first):
        raise ValueError("no row is finite for both models; expected some. Compare on other rows.")
    if left_out:
        rows = counted(left_out, "row is", "rows are")
        voice.say(f"{rows} finite for one of the models only: left out.")
    comparison = Comparison.from_predictions(
        judged[0].truth[in_first],
        judged[0].predicted[in_first],
        judged[1].predicted[in_second],
        classes=classes,
        counts=counts,
    )
    voice.show(comparison.table(str(first), str(second)))
    voice.finish(
        {
            "first": str(first),
            "second": str(second),
            "rows_left_out": left_out + sum(one.n_non_finite for one in judged),
            **comparison.to_dict(),
        }
    )


def _all_classes(
    leading: PrototypeClassifier, other: PrototypeClassifier
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Give the classes that either knows; where both do, the counts of the leading one."""
    if (leading.classes_.dtype.kind in "UO") != (other.classes_.dtype.kind in "UO"):
        raise ValueError(
            f"one model's classes are {leading.classes_.dtype}, the other's "
            f"{other.classes_.dtype}; expected models fitted with the same kind of labels."
        )
    counts = dict(zip(other.classes_.tolist(), other.class_counts_.tolist(), strict=True))
    counts.update(zip(leading.classes_.tolist(), leading.class_counts_.tolist(), strict=True))
    classes = sorted(counts)
    return np.array(classes), np.array([counts[label] for label in classes])

"""``protail add-class``: one more class from a few rows, and what that does to the others."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
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
    LabelsKey,
)
from protail.cli.command import (
    Debug,
    Device,
    Json,
    ModelFolder,
    Overwrite,
    Voice,
)
from protail.cli.command import command as _command

if TYPE_CHECKING:
    from protail import PrototypeClassifier
    from protail.cli._judging import Judged
    from protail.data.tables import FeatureFile

Name = Annotated[str, typer.Argument(help="What to call the class.", show_default=False)]
Files = Annotated[list[Path], typer.Argument(help="Files with its rows.", show_default=False)]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write here, not back to MODEL.")
]
Check = Annotated[
    Path | None, typer.Option(help="Labelled file: how do the other classes fare on it?")
]
CheckLabels = Annotated[
    Path | None,
    typer.Option("--labels-file", metavar="FILE", help="Labels for --check, if in another file."),
]

_NEIGHBOURS = 5


@_command
def add_class(
    model: ModelFolder,
    name: Name,
    files: Files,
    output: Output = None,
    check: Check = None,
    features: FeaturesKey = None,
    columns: Columns = None,
    exclude: Exclude = None,
    labels: LabelsKey = None,
    labels_file: CheckLabels = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Add a class from a few rows; the other prototypes stay.

    Tells which classes are nearest to the new one and, with --check, which rows it takes
    from them. All rows of FILES belong to the class; labels in them are not read.
    Where the others leave it no place, all go back to their class means, and a warning says so.
    """
    from protail.cli._judging import judge
    from protail.cli._sources import Model, open_sources, tell_columns
    from protail.estimator import check_replaceable

    voice = Voice(as_json)
    if labels_file is not None and check is None:
        raise ValueError(
            f"--labels-file {labels_file} was given without --check; expected the file of features "
            "that the labels belong to. All rows of FILES are of the new class."
        )
    target = output or model
    if output is not None:
        check_replaceable(output, overwrite=overwrite)
    before = Model.load(model, device)
    options = FeatureOptions(features, None, columns, exclude)
    new = open_sources(before, files, options)
    tell_columns(voice, new)
    rows = _read_rows(new, voice)
    label = _label_for(before.classifier.classes_, name)
    after = replace(before, classifier=copy.deepcopy(before.classifier))
    after.classifier.add_classes(rows, np.full(len(rows), label))
    result: dict[str, Any] = {
        "class": label if isinstance(label, str) else label.item(),
        "rows": len(rows),
        "nearest": _nearest(after.classifier, label),
    }
    near = ", ".join(f"{item['label']} ({item['distance']:.3g})" for item in result["nearest"])
    voice.say(f"Nearest classes, with the distance between prototypes: {near}")
    if check is not None:
        checked_on = [labels_file] if labels_file else None
        checked = [
            judge(
                m,
                open_sources(
                    m,
                    [check],
                    replace(options, labels=labels),
                    labels_files=checked_on,
                    need_labels=True,
                ),
                voice,
            )
            for m in (before, after)
        ]
        result["check"] = _effect(checked[0], checked[1], label, voice)
    came_from = counted(len(rows), "row")
    remark = f"Class {name!r} was added from {came_from}."
    # Scores and picture were those of the model without this class: they do not go along.
    about = " ".join(filter(None, [before.about, remark]))
    after.save(target, overwrite=overwrite or output is None, about=about)
    others = after.classifier.classes_ != label
    moved = not np.array_equal(after.classifier.prototypes_[others], before.classifier.prototypes_)
    what = "went back to the class means" if moved else "did not move"
    voice.say(f"{name!r} added from {came_from}; the other prototypes {what}.")
    voice.say(f"Model: {target} (scores and picture were those of the classes before: dropped)")
    voice.finish({**result, "model": str(target)})


def _read_rows(files: list[FeatureFile], voice: Voice) -> NDArray[Any]:
    from protail.cli._sources import leave_out_non_finite

    rows = np.concatenate([block for file in files for block in file.blocks()])
    finite = np.isfinite(rows).all(axis=1)
    leave_out_non_finite(len(rows), int(finite.sum()), voice)
    kept: NDArray[Any] = rows[finite]
    return kept


def _label_for(classes: NDArray[Any], name: str) -> Any:
    if not name.strip():
        raise ValueError(f"{name!r} is no name for a class; expected one that can be read.")
    if classes.dtype.kind in "UO":
        return name
    try:
        if not re.fullmatch(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", name):
            raise ValueError
        return classes.dtype.type(name)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name!r} is no name for a class here: the model's classes are numbers "
            f"({classes.dtype}; first: {classes.tolist()[:3]}). Give a number."
        ) from None


def _nearest(classifier: PrototypeClassifier, label: Any) -> list[dict[str, Any]]:
    """Name the classes whose prototypes are nearest to the new one."""
    import torch

    from protail import ops

    new = int(np.flatnonzero(classifier.classes_ == label)[0])
    places = torch.from_numpy(classifier.prototypes_)
    temperature = classifier.temperature_
    distances = ops.distances(
        places[new : new + 1],
        places,
        classifier.distance,
        None if temperature is None else torch.from_numpy(temperature),
    )[0].numpy()
    distances[new] = np.inf
    distances[classifier.class_counts_ == 0] = np.inf
    order = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
    return [
        {"label": classifier.classes_[c].item(), "distance": float(distances[c])}
        for c in order
        if np.isfinite(distances[c])
    ]


def _effect(before: Judged, after: Judged, label: Any, voice: Voice) -> dict[str, Any]:
    """Count the rows that changed hands and tell whose they were."""
    old = before.truth != label
    taken = old & (after.predicted == label)
    spoilt = taken & (before.predicted == before.truth)
    losers, losses = np.unique(before.truth[spoilt], return_counts=True)
    order = np.argsort(-losses, kind="stable")[:_NEIGHBOURS]
    worst = [{"label": losers[i].item(), "rows": int(losses[i])} for i in order]
    effect: dict[str, Any] = {
        "rows_of_other_classes": int(old.sum()),
        "rows_taken": int(taken.sum()),
        "rows_spoilt": int(spoilt.sum()),
        "most_from": worst,
        "rows_of_the_class": int((~old).sum()),
        "rows_of_the_class_found": int((after.predicted[~old] == label).sum()),
    }
    voice.say(
        f"Of {counted(effect['rows_of_other_classes'], 'row')} of other classes it takes "
        f"{effect['rows_taken']:,}, {effect['rows_spoilt']:,} of which were right before."
    )
    if worst:
        voice.say("Most from: " + ", ".join(f"{w['label']} ({w['rows']})" for w in worst))
    if effect["rows_of_the_class"]:
        voice.say(
            f"Of its own {counted(effect['rows_of_the_class'], 'row')} it finds "
            f"{effect['rows_of_the_class_found']:,}."
        )
    from protail.evaluation import results_table

    voice.show(results_table({"before": before.evaluation, "after": after.evaluation}))
    return effect

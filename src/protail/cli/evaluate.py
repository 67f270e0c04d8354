"""``protail evaluate``: how good a model is on labelled rows, or a run on its test images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from protail._messages import counted
from protail.cli._completion import data_sets
from protail.cli._dataset_options import DataRoot, Lists
from protail.cli._feature_options import (
    Columns,
    Exclude,
    FeatureOptions,
    FeaturesKey,
    LabelsFiles,
    LabelsKey,
)
from protail.cli._folders import check_model_folder
from protail.cli.command import Debug, Device, Json, Voice
from protail.cli.command import command as _command

if TYPE_CHECKING:
    from protail import Evaluation

ModelOrRun = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder, or a run.", show_default=False)
]
LabelledFiles = Annotated[
    list[Path], typer.Argument(help="Files with features and labels.", show_default=False)
]
FilesForModel = Annotated[
    list[Path] | None,
    typer.Argument(help="For a model: files with features and labels.", show_default=False),
]
RunDataset = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="For a run: the draw or folder it trained on.",
        autocompletion=data_sets,
    ),
]
Mirrored = Annotated[
    bool | None,
    typer.Option("--mirrored/--no-mirrored", help="For a run: one way only, not both."),
]


@_command
def evaluate(
    model: ModelOrRun,
    files: FilesForModel = None,
    features: FeaturesKey = None,
    columns: Columns = None,
    exclude: Exclude = None,
    labels: LabelsKey = None,
    labels_file: LabelsFiles = None,
    dataset: RunDataset = None,
    data_root: DataRoot = None,
    lists: Lists = None,
    mirrored: Mirrored = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge a model on labelled rows, or a run on its test images.

    Shows accuracy by the size of the class, calibration, and where errors go. Rows of classes
    that the model does not know judge its novelty score instead. A run is judged on images as
    they are and averaged with their mirror images.
    """
    voice = Voice(as_json)
    for_model = {
        "FILES": files,
        "--features": features,
        "--columns": columns,
        "--exclude": exclude,
        "--labels": labels,
        "--labels-file": labels_file,
    }
    for_run = {
        "--dataset": dataset,
        "--data-root": data_root,
        "--lists": lists,
        "--mirrored": mirrored,
    }
    if (model / "run.json").is_file():
        _refuse(for_model, f"{model} is a run, which is judged on the images of its data set")
        _judge_run(voice, model, dataset, data_root, lists, mirrored, device)
        return
    check_model_folder(model)
    _refuse(for_run, f"{model} is no run (it has no run.json)")
    if not files:
        raise ValueError("FILES are missing; expected files with features and labels to judge on.")
    options = FeatureOptions(features, labels, columns, exclude)
    _judge_model(voice, model, files, options, labels_file, device)


def _refuse(options: dict[str, Any], reason: str) -> None:
    given = [name for name, value in options.items() if value not in (None, [])]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used here: {reason}. Leave it out.")


def _judge_run(
    voice: Voice,
    folder: Path,
    dataset: str | None,
    data_root: Path | None,
    lists: Path | None,
    mirrored: bool | None,
    device: str,
) -> None:
    from protail.cli._evaluate_run import evaluate_run
    from protail.cli._run_scores import chosen, show_scores

    record = chosen(evaluate_run(folder, dataset, data_root, lists, device), mirrored)
    show_scores(voice, {str(folder): record})
    voice.finish({"run": str(folder), "evaluation": record})


def _judge_model(
    voice: Voice,
    folder: Path,
    files: list[Path],
    options: FeatureOptions,
    labels_files: list[Path] | None,
    device: str,
) -> None:
    from protail.cli._judging import judge
    from protail.cli._sources import Model, open_sources, tell_columns

    loaded = Model.load(folder, device)
    sources = open_sources(loaded, files, options, labels_files=labels_files, need_labels=True)
    tell_columns(voice, sources)
    judged = judge(loaded, sources, voice)
    show_evaluation(voice, judged.evaluation, str(folder))
    voice.finish({**judged.evaluation.to_dict(), "non_finite_rows": judged.n_non_finite})


def show_evaluation(voice: Voice, evaluation: Evaluation, name: str) -> None:
    """Show the table of one model and, in a line each, what else is known."""
    voice.show(evaluation.table(name))
    for line in (*_error_lines(evaluation), *_novelty_lines(evaluation)):
        voice.show(line)


def _error_lines(evaluation: Evaluation) -> list[str]:
    """Tell where the errors of each group go, and how honest its probabilities are."""
    groups = tuple(evaluation.groups)
    lines = []
    for group, shares in zip(groups, evaluation.confusion, strict=True):
        if not np.isnan(shares).any():
            goes = ", ".join(f"{100 * s:.1f} % to {g}" for g, s in zip(groups, shares, strict=True))
            line = f"errors of {group}: {goes}"
            calibration = evaluation.group_calibration_error[group]
            if calibration is not None:
                line += f"; calibration error {100 * calibration:.1f} %"
            lines.append(line)
    return lines


def _novelty_lines(evaluation: Evaluation) -> list[str]:
    if evaluation.novelty_auroc is None:
        return []
    unseen = counted(evaluation.n_unseen, "row is", "rows are")
    return [
        f"{unseen} of classes the model does not know: its novelty score tells them from the "
        f"others with AUROC {evaluation.novelty_auroc:.3f}"
    ]

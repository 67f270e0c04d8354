"""``protail evaluate``: how good a model is on labelled rows or photos, or a run on its images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from protail.cli import options as opt
from protail.cli import sources
from protail.cli.command import Voice, command, make_app
from protail.cli.tables import chosen, show_evaluation, show_rejected, show_scores

ModelOrRun = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Folder of a model, network or run.", show_default=False),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Files with features and labels; for photos, folders of class folders. A run can do "
        "without.",
        show_default=False,
    ),
]
Flip = Annotated[
    bool | None, typer.Option("--flip/--no-flip", help="For a run: one way only, not both.")
]


@command
def evaluate(
    voice: Voice,
    model: ModelOrRun,
    files: Files = None,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    labels: opt.LabelsKey = None,
    labels_file: opt.LabelsFiles = None,
    dataset: opt.RunDataset = None,
    data_root: opt.DataRoot = None,
    lists: opt.Lists = None,
    flip: Flip = None,
    device: opt.Device = "auto",
) -> None:
    """Evaluate a model on labelled rows or photos, or a run on its test images.

    Shows accuracy by the size of the class, calibration, and where errors go. Rows of classes
    that the model does not know are used for its novelty score instead. A run without FILES is
    evaluated on images as they are and averaged with their horizontal flips.
    """
    for_run = {"--dataset": dataset, "--data-root": data_root, "--lists": lists, "--flip": flip}
    is_run = (model / "run.json").is_file()
    if is_run and not files:
        for_files = {
            "--features": features,
            "--columns": columns,
            "--exclude": exclude,
            "--labels": labels,
            "--labels-file": labels_file,
        }
        opt.refuse(for_files, f"{model} is a run, which is evaluated on the images of its data set")
        record = chosen(_of_run(model, dataset, data_root, lists, device), flip)
        show_scores(voice, {str(model): record})
        voice.finish({"run": str(model), "evaluation": record})
        return
    sources.check_there(model, expected="a model's folder")
    sources.check_there(*files or ())
    if not files:
        sources.check_model_folder(model)
    opt.refuse(for_run, "FILES are given" if is_run else f"{model} is no run (it has no run.json)")
    if not files:
        raise ValueError(
            "FILES are missing; expected files with features and labels to evaluate on."
        )
    loaded = sources.Model.load(model, device)
    options = opt.FeatureOptions(features, labels, columns, exclude)
    opened = sources.open_sources(
        loaded, files, options, labels_files=labels_file, need_labels=True
    )
    sources.tell_columns(voice, opened)
    evaluated = sources.evaluate_rows(loaded, opened, voice)
    show_evaluation(voice, evaluated.evaluation, str(model))
    rejected = {}
    if evaluated.rejected is not None:
        known = np.isin(evaluated.truth, loaded.classes)
        rejected = {"rejected": show_rejected(voice, evaluated.rejected, known)}
    voice.finish(
        {
            **evaluated.evaluation.to_dict(),
            **rejected,
            "non_finite_rows": evaluated.n_non_finite,
            **({"unreadable": sources.unreadable_photos(opened)} if loaded.network else {}),
        }
    )


def _of_run(
    folder: Path, dataset: str | None, data_root: Path | None, lists: Path | None, device: str
) -> dict[str, Any]:
    """Evaluate what a run has learned on the test images of its data set, stage by stage."""
    from protail.experiments import Run, evaluate_stages, find_device, load_recorded, load_stages

    run = Run.open(folder)
    run.weights()  # whole, before data is read
    data = load_recorded(run, dataset, data_root, lists)
    return evaluate_stages(load_stages(run, data, find_device(device)))


app = make_app(evaluate, "protail evaluate model test.npz")

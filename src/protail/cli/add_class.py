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
from protail.cli import options as opt
from protail.cli import sources
from protail.cli.command import Voice, command, make_app
from protail.cli.photos import REPORT
from protail.cli.sources import Model, open_sources

if TYPE_CHECKING:
    from protail.cli.sources import Evaluated

Name = Annotated[str, typer.Argument(help="What to call the class.", show_default=False)]
Files = Annotated[
    list[Path], typer.Argument(help="Files with its rows, or photos of it.", show_default=False)
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write here, not back to MODEL.")
]
Check = Annotated[
    Path | None, typer.Option(help="Labelled file or photos: how do the other classes fare?")
]
CheckLabels = Annotated[
    Path | None,
    typer.Option("--labels-file", metavar="FILE", help="Labels for --check, if in another file."),
]

_NEIGHBOURS = 5


@command
def add_class(
    voice: Voice,
    model: opt.ModelFolder,
    name: Name,
    files: Files,
    output: Output = None,
    check: Check = None,
    features: opt.FeaturesKey = None,
    columns: opt.Columns = None,
    exclude: opt.Exclude = None,
    labels: opt.LabelsKey = None,
    labels_file: CheckLabels = None,
    device: opt.Device = "auto",
    overwrite: opt.Overwrite = False,
) -> None:
    """Add a class from a few rows or photos; the other prototypes stay.

    Tells which classes are nearest to the new one and, with --check, which rows it takes
    from them. All rows of FILES belong to the class; labels in them are not read.
    Where the others leave it no place, all go back to their class means, and a warning says so.
    """
    if labels_file is not None and check is None:
        raise ValueError(
            f"--labels-file {labels_file} was given without --check; expected the file of features "
            "that the labels belong to. All rows of FILES are of the new class."
        )
    sources.check_there(*files, check)
    from protail.estimator import check_replaceable
    from protail.experiments import is_run

    target = output or model
    if output is None and is_run(model):
        raise ValueError(
            f"{model} is a run, which stays as it was trained; expected a folder for the network "
            "with the new class. Name it with --output."
        )
    if output is not None:
        check_replaceable(output, overwrite=overwrite)
    before = Model.load(model, device)
    label = _label_for(before.classes, name)
    if label in before.classes:
        raise ValueError(
            f"{name!r} is a class of {model} already; expected a new one. Choose another name, or "
            "fit again with these examples among the others."
        )
    options = opt.FeatureOptions(features, None, columns, exclude)
    new = open_sources(before, files, options)
    sources.tell_columns(voice, new)
    rows = _read_rows(new, voice)
    after = _with_class(before, rows, label)
    result: dict[str, Any] = {
        "class": label if isinstance(label, str) else label.item(),
        "rows": len(rows),
        "nearest": _nearest(after, label),
    }
    near = ", ".join(f"{item['label']} ({item['distance']:.3g})" for item in result["nearest"])
    voice.say(f"Nearest classes, with the distance between prototypes: {near}")
    if check is not None:
        reading = replace(options, labels=labels)
        their_labels = [labels_file] if labels_file else None
        how: dict[str, Any] = {"labels_files": their_labels, "need_labels": True}

        def checked(model: Model) -> Evaluated:
            return sources.evaluate_rows(model, open_sources(model, [check], reading, **how), voice)

        then = checked(after)
        if (then.truth == label).all():
            raise ValueError(
                f"--check {check} has rows of {name!r} only; expected some of the classes before, "
                "of which the new one may take rows. Give others too, or leave --check out."
            )
        result["check"] = _effect(checked(before), then, label, voice)
    came_from = counted(len(rows), "row")
    remark = f"Class {name!r} was added from {came_from}."
    # Scores and picture were those of the model without this class: they do not go along.
    about = " ".join(filter(None, [before.about, remark]))
    after.save(target, overwrite=overwrite or output is None, about=about)
    others = after.classes != label
    moved = not np.array_equal(_prototypes(after)[others], _prototypes(before))
    what = "went back to the class means" if moved else "did not move"
    voice.say(f"{name!r} added from {came_from}; the other prototypes {what}.")
    (target / REPORT).unlink(missing_ok=True)
    voice.say(f"Model: {target} (scores and picture were those of the classes before: dropped)")
    voice.finish({**result, "model": str(target)})


def _read_rows(files: list[Any], voice: Voice) -> NDArray[Any]:
    rows = np.concatenate([block for file in files for block in file.blocks()])
    finite = np.isfinite(rows).all(axis=1)
    sources.leave_out_non_finite(len(rows), int(finite.sum()), voice, files)
    kept: NDArray[Any] = rows[finite]
    return kept


def _with_class(model: Model, rows: NDArray[Any], label: Any) -> Model:
    """Give a copy of a model that knows one more class."""
    import torch

    from protail import Network

    head: Any = copy.deepcopy(model.head)
    if not isinstance(head, Network):
        head.add_classes(rows, np.full(len(rows), label))
        return replace(model, head=head)
    trained: Any = head.head
    if not hasattr(trained, "add_classes"):
        raise ValueError(
            f"{model.folder} has a {type(trained).__name__}, which takes no class afterwards; "
            "expected a head of prototypes, as of recipe 'pc-la'. Train it again with the class."
        )
    new = torch.from_numpy(np.asarray(rows, np.float32)).to(head.device)
    trained.add_classes(new, torch.zeros(len(new), dtype=torch.int64, device=new.device))
    head.classes_ = np.append(model.classes, label)
    head.class_counts_ = np.append(model.counts, len(rows))
    return replace(model, head=head)


def _prototypes(model: Model) -> NDArray[Any]:
    head: Any = model.head
    if hasattr(head, "prototypes_"):
        return np.asarray(head.prototypes_)
    return np.asarray(head.head.prototypes.detach().cpu())


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


def _nearest(model: Model, label: Any) -> list[dict[str, Any]]:
    """Name the classes whose prototypes are nearest to the new one."""
    import torch

    from protail import ops

    head: Any = model.head
    new = int(np.flatnonzero(model.classes == label)[0])
    places = torch.from_numpy(_prototypes(model))
    if hasattr(head, "prototypes_"):
        distance, temperature = head.distance, head.temperature_
        temperature = None if temperature is None else torch.from_numpy(temperature)
    else:
        distance, temperature = head.head.distance, head.head.temperature
        temperature = None if temperature is None else temperature.detach().cpu()
    distances = ops.distances(places[new : new + 1], places, distance, temperature)[0].numpy()
    distances[new] = np.inf
    distances[model.counts == 0] = np.inf
    order = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
    return [
        {"label": model.classes[c].item(), "distance": float(distances[c])}
        for c in order
        if np.isfinite(distances[c])
    ]


def _effect(before: Evaluated, after: Evaluated, label: Any, voice: Voice) -> dict[str, Any]:
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

    scores = {"before": before.evaluation, "after": after.evaluation}
    # F1 of a class without rows is 0, whatever is predicted.
    absent = () if effect["rows_of_the_class"] else ("macro_f1",)
    voice.show(results_table(scores, without=absent))
    return effect


app = make_app(add_class, "protail add-class model lynx lynx.npz --check test.npz")

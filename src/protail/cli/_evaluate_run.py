"""Judging a finished run again: its data set, its networks, its scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from protail.backbones import make_backbone
from protail.cli._dataset_options import load_images
from protail.cli._devices import find_device
from protail.data.sets.registry import DATA_SETS
from protail.heads.registry import make_head
from protail.recipes import Recipe
from protail.recipes.scoring import evaluate_heads
from protail.training._run_json import differing_keys
from protail.training.frozen import FrozenFeatures
from protail.training.runs import Run, RunError

if TYPE_CHECKING:
    from protail.data.sets import DataSet


def evaluate_run(
    folder: Path, dataset: str | None, data_root: Path | None, lists: Path | None, device: str
) -> dict[str, Any]:
    """Judge what a run has learned on the test images of its data set.

    Parameters
    ----------
    folder : Path
        The run.
    dataset : str or None
        A draw or a folder that holds its data set; None takes the name it was recorded by.
    data_root, lists : Path or None
        Where the data is.
    device : str
        Where to compute.

    Returns
    -------
    dict
        Scores of each stage, plain and with mirrored averaging, as in ``evaluation.json``.
    """
    run = Run.open(folder)
    weights = run.weights()
    data = _load_recorded(run, dataset, data_root, lists)
    place = find_device(device)
    backbone, heads = _networks(run, weights, len(data.train.classes))
    backbone.to(place)
    frozen = FrozenFeatures(backbone, data, place)
    return evaluate_heads({stage: head.to(place) for stage, head in heads.items()}, frozen, data)


def _load_recorded(
    run: Run, dataset: str | None, data_root: Path | None, lists: Path | None
) -> DataSet:
    recorded = dict(run.resolved["data"])
    name = recorded.pop("name")
    source = dataset or name
    if source == name and name not in DATA_SETS.names():
        raise ValueError(
            f"{run.folder}: its data set {name!r} has no name that is known here; expected the "
            "draw or folder it was trained on. Name it with --dataset."
        )
    options = _recorded_options(source, recorded)
    data = load_images(source, data_root, lists=lists, **options)
    there = {"name": name, **recorded}
    differing = differing_keys(there, {"name": data.name, **data.description})
    if differing:
        raise RunError(
            f"{run.folder}: the data set that was found differs in {', '.join(differing)}; "
            "expected the one of the run. Check --dataset and --data-root."
        )
    _check_counts(run, data)
    return data


def _recorded_options(source: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """Find in a data set's description the options that give it again."""
    said = {**recorded, **(recorded.get("split") or {})}
    if recorded.get("images_skipped"):
        said["on_bad_image"] = "skip"
    if source.endswith(".zip"):
        taken = {"imbalance", "kind", "selection", "seed"}
    else:
        taken = set(DATA_SETS.options(source if source in DATA_SETS.names() else "imagefolder"))
    return {option: value for option, value in said.items() if option in taken}


def _check_counts(run: Run, data: DataSet) -> None:
    """Raise where other images go by the name of those that the run was trained on."""
    from protail.evaluation import Evaluation

    scores = next(iter(run.evaluation().values()))["plain"]
    judged = Evaluation.from_dict(scores)
    tested = np.bincount(data.test.labels, minlength=len(data.test.classes))
    same = np.array_equal(judged.counts, data.train.profile.counts)
    if not same or not np.array_equal(judged.class_rows, tested):
        raise RunError(
            f"{run.folder}: the data set that was found has {len(data.train):,} images to learn "
            f"from and {len(data.test):,} to judge on, in other classes or numbers than when it "
            "was trained. Check --dataset and --data-root."
        )


def _networks(
    run: Run, weights: dict[str, Tensor], n_classes: int
) -> tuple[nn.Module, dict[str, nn.Module]]:
    recipe = Recipe.from_resolved(run.resolved["recipe"])
    assert recipe.representation is not None
    backbone = make_backbone(recipe.representation.backbone)
    _fill(backbone, weights, "backbone", run)
    heads = {}
    for stage in recipe.stages:
        settings = getattr(recipe, stage)
        width = int(backbone.n_features)  # type: ignore[arg-type]
        heads[stage] = make_head(settings.head, n_classes, width, **settings.head_options)
        _fill(heads[stage], weights, stage, run)
    return backbone, heads


def _fill(module: nn.Module, weights: dict[str, Tensor], part: str, run: Run) -> None:
    start = f"{part}."
    own = {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}
    try:
        module.load_state_dict(own)
    except RuntimeError as error:
        raise RunError(
            f"{run.folder}: its weights do not fit the {part} of its recipe ({error}). It is "
            "damaged, or was made by another version of protail."
        ) from error

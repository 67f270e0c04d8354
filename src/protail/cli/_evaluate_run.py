"""Judging a finished run again: its data set, its networks, its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protail._messages import counted
from protail.cli._dataset_options import hold_out, load_aside, load_data
from protail.cli._devices import find_device
from protail.data.images import DATA_SETS, DataSet, DataSetError, FeatureData
from protail.experiments import (
    CLASSIFIER_BACKBONE,
    Run,
    RunError,
    data_record,
    differing_keys,
    evaluate_heads,
)
from protail.models.backbones import make_backbone
from protail.models.heads import make_head
from protail.recipes import Recipe
from protail.training import Features, FrozenFeatures, GivenFeatures


def evaluate_run(
    folder: Path, dataset: str | None, data_root: Path | None, lists: Path | None, device: str
) -> dict[str, Any]:
    """Judge what a run has learned on the test images of its data set.

    Parameters
    ----------
    folder : Path
        The run.
    dataset : str or None
        A draw, a folder or a file of features that holds its data set; None takes the name it was
        recorded by.
    data_root, lists : Path or None
        Where the data is.
    device : str
        Where to compute.

    Returns
    -------
    dict
        Scores of each stage, plain and with mirrored averaging where there are mirror images, as
        in ``evaluation.json``.
    """
    run = Run.open(folder)
    weights = run.weights()
    data = _load_recorded(run, dataset, data_root, lists)
    recipe = Recipe.from_resolved(run.resolved["recipe"])
    found: dict[str, Features] = {}
    record: dict[str, Any] = {}
    for stage in [each for each in recipe.stages if each != "pretraining"]:
        part = _backbone_of(stage, weights)
        if part not in found:
            found[part] = _features(run, recipe, part, weights, data, find_device(device))
        features, settings = found[part], getattr(recipe, stage)
        head = make_head(
            settings.head, len(features.counts), features.n_features, **settings.head_options
        )
        _fill(head, weights, stage, run)
        record |= evaluate_heads({stage: head.to(features.device)}, features)
    return record


def _load_recorded(
    run: Run, dataset: str | None, data_root: Path | None, lists: Path | None
) -> DataSet | FeatureData:
    recorded = dict(run.resolved["data"])
    name = recorded.pop("name")
    source = dataset or name
    if dataset is None and (name not in DATA_SETS.names() or "features" in recorded):
        raise ValueError(
            f"{run.folder}: its data set {name!r} has no name that is known here; expected the "
            "draw, folder or file of features it was trained on. Name it with --dataset."
        )
    options = _recorded_options(source, recorded)
    try:
        data = _load(source, data_root, recorded, lists=lists, **options)
    except DataSetError as error:
        if dataset is not None:
            raise
        raise RunError(
            f"{run.folder}: {error} Where it was trained on an exported draw, --dataset "
            "PATH_OF_THE_DRAW reads the data from there."
        ) from error
    there, found = {"name": name, **recorded}, data_record(data)
    # Of runs from before images were recorded, nothing but their numbers is known.
    images, images_found = there.pop("images", None), found.pop("images", None)
    if "features" in there and "features" in found:
        # They are known by their digest, whatever the file is called by now.
        there, found = ({"features": each["features"]} for each in (there, found))
    differing = differing_keys(there, found)
    if differing:
        raise RunError(
            f"{run.folder}: the data set that was found differs in {', '.join(differing)}; "
            "expected the one of the run. Check --dataset and --data-root."
        )
    _check_counts(run, data)
    if images is not None and images != images_found:
        raise RunError(
            f"{run.folder}: the data set that was found has as many images, but others than those "
            f"of the run (in {', '.join(_differing_parts(images, images_found))}); expected the "
            "same ones. Check --dataset and --data-root."
        )
    return data


def _load(
    source: str, root: Path | None, recorded: dict[str, Any], **options: Any
) -> DataSet | FeatureData:
    """Load data with what was judged on, where it is not the test images, in their place."""
    if ratio := recorded.get("aside_from"):
        return load_aside(source, root, ratio, **options)
    data = load_data(source, root, **options)
    if share := recorded.get("held_out"):
        return hold_out(data, share, recorded["held_out_seed"])
    return data


def _differing_parts(there: dict[str, str], found: dict[str, str]) -> list[str]:
    return [part for part in {**there, **found} if there.get(part) != found.get(part)]


def _recorded_options(source: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """Find in a data set's description the options that give it again."""
    # Nothing is fetched to judge: images of an exported draw are in that file.
    said = {**recorded, **(recorded.get("split") or {}), "download": False}
    if recorded.get("images_skipped"):
        said["on_bad_image"] = "skip"
    if "features" in recorded:
        taken = set()
    elif source.endswith(".zip"):
        taken = {"imbalance", "kind", "selection", "seed"}
    else:
        taken = set(DATA_SETS.options(source if source in DATA_SETS.names() else "imagefolder"))
    return {option: value for option, value in said.items() if option in taken}


def _check_counts(run: Run, data: DataSet | FeatureData) -> None:
    """Raise where other images go by the name of those that the run was trained on."""
    from protail.evaluation import Evaluation

    scores = next(iter(run.evaluation().values()))["plain"]
    judged = Evaluation.from_dict(scores)
    tested = np.bincount(data.test.labels, minlength=data.train.profile.n_classes)
    # Where images are held out, classes are grouped by all they have; once it was by the rest.
    grouped_by = [data.train.profile.counts, getattr(data, "group_counts", None)]
    same = any(np.array_equal(judged.counts, counts) for counts in grouped_by if counts is not None)
    if not same or not np.array_equal(judged.class_rows, tested):
        raise RunError(
            f"{run.folder}: the data set that was found has {counted(len(data.train), 'image')} "
            f"to learn from and {len(data.test):,} to judge on, in other classes or numbers than "
            "when it was trained. Check --dataset and --data-root."
        )


def _features(
    run: Run,
    recipe: Recipe,
    part: str,
    weights: dict[str, Tensor],
    data: DataSet | FeatureData,
    place: torch.device,
) -> Features:
    if isinstance(data, FeatureData):
        return GivenFeatures(data, place)
    assert recipe.representation is not None
    backbone = make_backbone(recipe.representation.backbone)
    _fill(backbone, weights, part, run)
    return FrozenFeatures(backbone.to(place), data, place)


def _backbone_of(stage: str, weights: dict[str, Tensor]) -> str:
    has_own = any(name.startswith(f"{CLASSIFIER_BACKBONE}.") for name in weights)
    return CLASSIFIER_BACKBONE if stage == "classifier" and has_own else "backbone"


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

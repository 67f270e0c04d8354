"""What a run knows for its report: its network, its test images, the command that trains it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protail.data.images import DataSetError, ImageSet
from protail.evaluation import Evaluation
from protail.experiments import Run, RunError, load_recorded
from protail.network import Network
from protail.recipes import RecipeError, load_recipe

if TYPE_CHECKING:
    from protail.report.data import Examples


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """What `ReportData.from_run` needs of a run."""

    title: str
    network: Network
    evaluation: Evaluation
    held_out: Examples | None
    training: Examples | None
    facts: dict[str, str]
    command: str
    notes: list[str]


def read_run(
    folder: str | os.PathLike[str],
    dataset: str | None,
    data_root: str | os.PathLike[str] | None,
    lists: str | os.PathLike[str] | None,
    device: str,
) -> RunParts:
    """Read a finished run and, where it is at hand, its data."""
    run = Run.open(folder)
    network = Network.from_run(folder, device=device)
    recipe = run.resolved["recipe"]
    stage = "classifier" if recipe.get("classifier") else "representation"
    scores = Evaluation.from_dict(run.evaluation()[stage]["plain"])
    held_out, training, notes = None, None, []
    try:
        root, where = (None if each is None else Path(each) for each in (data_root, lists))
        data = load_recorded(run, dataset, root, where)
    except (RunError, DataSetError, ValueError) as error:
        if dataset is not None:
            raise
        notes.append(f"Only the scores that the run has kept are shown. {error}")
    else:
        held_out, training = (_examples(part, network) for part in (data.test, data.train))
    return RunParts(
        title=f"{recipe['name']} on {run.resolved['data']['name']}",
        network=network,
        evaluation=scores,
        held_out=held_out,
        training=training,
        facts=_facts(run),
        command=_command(run),
        notes=notes,
    )


class _Images(Sequence[Any]):
    """The photos of a set of images, each opened when it is asked for."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images
        self._paths = None if images.is_resident else images.paths

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: Any) -> Any:
        return self._images.image(int(i)) if self._paths is None else self._paths[int(i)]


def _examples(part: Any, network: Network) -> Examples:
    from protail.report.data import Examples

    labels = network.classes_[part.labels]
    if isinstance(part, ImageSet):
        return Examples(labels=labels, photos=_Images(part))
    return Examples(labels=labels, features=np.asarray(part.rows))


def _facts(run: Run) -> dict[str, str]:
    """Say when, with and on what it was trained."""
    facts = {"Seed": str(run.resolved["seed"])}
    session = run.sessions[-1] if run.sessions else {}
    for name, key in (("Trained", "started"), ("with protail", "protail"), ("torch", "torch")):
        if session.get(key):
            facts[name] = str(session[key])
    if session.get("gpus"):
        facts["GPU"] = ", ".join(session["gpus"])
    elif session.get("cpu"):
        facts["CPU"] = session["cpu"]
    return facts


def _command(run: Run) -> str:
    """Write the command that trains it again."""
    recipe, data = run.resolved["recipe"], run.resolved["data"]
    words = ["protail", "train", recipe["name"], "--dataset", data["name"]]
    if data.get("imbalance"):
        words += ["--imbalance", f"{data['imbalance']:g}"]
    words += ["--seed", str(run.resolved["seed"])]
    try:
        known = load_recipe(recipe["name"]).resolved()
    except (RecipeError, ValueError, OSError):
        known = recipe
    for stage, settings in recipe.items():
        if isinstance(settings, dict) and isinstance(known.get(stage), dict):
            for key, value in settings.items():
                if value != known[stage].get(key):
                    shown = value if isinstance(value, str) else json.dumps(value)
                    words += ["--set", f"{stage}.{key}={shown}"]
    return shlex.join([*words, "-o", str(run.folder)])

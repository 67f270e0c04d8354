"""``protail evaluate``: how good a model is on labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from protail.cli._command import Debug, Device, FeaturesKey, Json, LabelsKey, ModelFolder, Voice
from protail.cli._command import command as _command

if TYPE_CHECKING:
    from protail import Evaluation

LabelledFiles = Annotated[
    list[Path], typer.Argument(help="Files with features and labels.", show_default=False)
]


@_command
def evaluate(
    model: ModelFolder,
    files: LabelledFiles,
    features: FeaturesKey = None,
    labels: LabelsKey = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge a model on labelled rows.

    Shows accuracy by the size of the class, calibration, and where errors go. Rows of classes
    that the model does not know judge its novelty score instead.
    """
    from protail.cli._judging import judge
    from protail.cli._sources import Model, open_sources

    voice = Voice(as_json)
    loaded = Model.load(model, device)
    sources = open_sources(loaded, files, features, labels, need_labels=True)
    judged = judge(loaded, sources, voice)
    show_evaluation(voice, judged.evaluation, str(model))
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
    return [
        f"{evaluation.n_unseen:,} rows are of classes the model does not know: its novelty score "
        f"tells them from the others with AUROC {evaluation.novelty_auroc:.3f}"
    ]

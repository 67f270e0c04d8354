"""``protail bench figures``: the paper's figures, and the numbers they rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protail._messages import counted

if TYPE_CHECKING:
    from protail.bench.cells import Cells
    from protail.cli._command import Voice
    from protail.data.sets import FeatureData


def write_figures(voice: Voice, cells: Cells, folder: Path, features: Path | None) -> None:
    """Draw the figures into a folder, with ``figures.json`` beside them."""
    from protail._files import new_file
    from protail.report.bench_figures import draw_figures
    from protail.report.figures import write_picture

    numbers: dict[str, Any] = {}
    places = []
    for drawn in draw_figures(cells, _load(features), voice.say):
        place = folder / f"{drawn.name}.png"
        write_picture(place, drawn.picture, overwrite=True)
        places.append(str(place))
        if drawn.numbers:
            numbers[drawn.name] = drawn.numbers
    with new_file(folder / "figures.json", overwrite=True) as temporary:
        temporary.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    voice.say(f"{folder}: {counted(len(places), 'figure')} from {counted(len(cells), 'cell')}.")
    voice.finish({"figures": places, "numbers": str(folder / "figures.json")})


def _load(features: Path | None) -> FeatureData:
    from protail.data.sets import FeatureData, load_dataset
    from protail.data.sets.bundled import BUNDLED_FEATURES

    found = load_dataset(BUNDLED_FEATURES if features is None else features)
    if not isinstance(found, FeatureData):
        raise ValueError(f"--features {features} holds images; expected features (.npz).")
    return found

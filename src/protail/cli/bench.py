"""``protail bench``: the tables of the paper, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail._messages import counted
from protail.cli._command import Debug, Device, Json, Voice
from protail.cli._command import command as _command
from protail.cli.data import DataRoot
from protail.cli.recipes import Set, read_changes

if TYPE_CHECKING:
    from rich.table import Table

    from protail.bench.cells import Cells
    from protail.bench.wanted import Cell, Draw
    from protail.data.sets import DataSet

What = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...",
        help="Tables to run, most wanted first (table1 table2 table8 questions table3 table4 "
        "table9, or all of these; tuning-stage-1 tuning-stage-2, on held-out images); or status, "
        "write (the page of results), figures (the paper's), take FOLDER (of cells).",
        show_default=False,
    ),
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Where cells and their page are kept.")]
Backbones = Annotated[
    list[str] | None,
    typer.Option("--backbone", metavar="NAME", help="ResNet-34 or ResNet-32; by default both."),
]
Draws = Annotated[
    list[Path] | None,
    typer.Option(
        "--draw", metavar="FILE", help="An exported draw to take images from; can be repeated."
    ),
]
Budget = Annotated[str | None, typer.Option(metavar="TIME", help="As in 90s, 9m or 1.5h.")]
AtOnce = Annotated[int, typer.Option(min=1, help="Trainings at once.")]
Weights = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep the trained backbones here.")
]
Features = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="What the prototypes of Figure 3 learn from. [those of the package]"
    ),
]
Compile = Annotated[bool, typer.Option("--compile/--no-compile", help="Compile networks on a GPU.")]


@_command
def bench(
    what: What,
    results: Results = Path("results"),
    backbone: Backbones = None,
    draw: Draws = None,
    data_root: DataRoot = None,
    budget: Budget = None,
    at_once: AtOnce = 4,
    weights: Weights = None,
    features: Features = None,
    changes: Set = None,
    device: Device = "auto",
    compiled: Compile = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the missing cells of tables, or say what is there.

    Killed at any moment it keeps every finished cell; the same command goes on. With --set, to
    try something out, cells are others than those of the table.
    """
    from protail.bench.cells import Cells
    from protail.cli._bench_figures import write_figures

    voice = Voice(as_json)
    cells = Cells(results / "cells")
    first, *others = what
    if first == "take":
        _take(voice, cells, others)
    elif first == "write":
        _write(voice, cells, results / "README.md")
    elif first == "figures":
        write_figures(voice, cells, results / "figures", features)
    elif first == "status":
        _status(voice, cells, others or _every_table(), backbone)
    else:
        wanted = _wanted(what, backbone, changes)
        options = _options(device, compiled)
        images = _Images(draw or [], data_root)
        seconds = None if budget is None else _seconds(budget)
        known = _known(backbone, changes)
        how = {"budget": seconds, "at_once": at_once, "weights": weights, "known": known}
        _run(voice, cells, wanted, images, options, how)


def _wanted(
    names: list[str], backbones: list[str] | None, changes: list[str] | None = None
) -> list[Cell]:
    from dataclasses import replace

    from protail.bench.tables import BACKBONES, wanted_cells

    cells = wanted_cells(_tables(names), backbones or list(BACKBONES))
    overrides = read_changes(changes or [])
    if not overrides:
        return cells
    changed = []
    for cell in cells:
        lacking = {"pretraining", "classifier"} - set(cell.recipe.stages)
        taken = {k: v for k, v in overrides.items() if k.partition(".")[0] not in lacking}
        changed.append(replace(cell, overrides={**cell.overrides, **taken}))
    return changed


def _known(backbones: list[str] | None, changes: list[str] | None) -> list[Cell]:
    """List the cells of every table, but for those that cannot be changed like that."""
    from protail.recipes import RecipeError

    known = []
    for cell in _wanted(_every_table(), backbones, changes):
        try:
            _ = cell.recipe
        except RecipeError:
            continue
        known.append(cell)
    return known


def _tables(names: list[str]) -> list[str]:
    from protail.bench.comparisons import COMPARISONS
    from protail.bench.tables import TABLES

    return [*TABLES, *COMPARISONS] if names == ["all"] else names


def _every_table() -> list[str]:
    from protail.bench.tables import CHOICES

    return [*_tables(["all"]), *CHOICES]


def _options(device: str, compiled: bool) -> Any:
    from protail.cli._devices import find_device
    from protail.recipes.running import Options

    place = find_device(device)
    return Options.automatic(str(place), compiled=compiled and place.type == "cuda")


def _seconds(budget: str) -> float:
    from protail.cli.search import read_seconds

    return read_seconds(budget)


class _Images:
    """Find the images of a draw: in an exported file that holds them, else by name."""

    def __init__(self, files: list[Path], root: Path | None) -> None:
        for file in files:
            if not file.is_file():
                raise ValueError(
                    f"--draw {file}: there is no such file; expected an exported draw."
                )
        self._files, self._root = files, root

    def __call__(self, draw: Draw) -> DataSet:
        from protail.cli._dataset_options import hold_out

        data = self._find(draw)
        return hold_out(data, draw.held_out, draw.held_out_seed) if draw.held_out else data

    def _find(self, draw: Draw) -> DataSet:
        from protail.data.sets import OtherDrawError, load_dataset, require_images

        wanted: dict[str, Any] = {"imbalance": draw.imbalance, "selection": draw.selection}
        for file in self._files:
            try:
                found = require_images(load_dataset(file, **wanted), "train on")
            except OtherDrawError:
                continue
            if found.name == draw.dataset:
                return found
        named = load_dataset(draw.dataset, root=self._root, **wanted)
        return require_images(named, "train on")


def _run(
    voice: Voice,
    cells: Cells,
    wanted: list[Cell],
    images: _Images,
    options: Any,
    how: dict[str, Any],
) -> None:
    from protail.bench.running import run_missing

    missing = sum(cell not in cells for cell in wanted)
    voice.say(
        f"{counted(len(wanted), 'cell')}: {counted(len(wanted) - missing, 'is', 'are')} there, "
        f"{counted(missing, 'is', 'are')} missing."
    )
    try:
        n = run_missing(wanted, cells, images, options, say=voice.say, **how)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Finished cells are kept; the same command goes on.") from None
    missing = sum(cell not in cells for cell in wanted)
    voice.say(
        f"{counted(n, 'cell was', 'cells were')} run; {counted(missing, 'is', 'are')} missing."
    )
    voice.finish({"run": n, "missing": missing, "results": str(cells.folder)})


def _status(voice: Voice, cells: Cells, names: list[str], backbones: list[str] | None) -> None:
    from protail.bench.forecasts import expected_seconds
    from protail.bench.groups import missing_groups
    from protail.cli._progress import in_words

    wanted = _wanted(names, backbones)
    groups = missing_groups(wanted, cells)
    voice.show(_status_table(cells, _tables(names), backbones))
    known = [expected_seconds(group, cells) for group in groups]
    seconds = sum(each for each in known if each is not None)
    unknown = known.count(None)
    missing = [cell.command for cell in wanted if cell not in cells]
    voice.say(f"Of {counted(len(wanted), 'cell')} {counted(len(missing), 'is', 'are')} missing.")
    if missing:
        took = counted(len(known) - unknown, "takes", "take")
        lengths = [f"{took} {in_words(seconds)}"] if unknown < len(known) else []
        lengths += [f"of {unknown} no cell tells the time"] if unknown else []
        voice.say(f"Left to train: {counted(len(groups), 'representation')}; {', '.join(lengths)}.")
    voice.finish(
        {
            "cells": len(wanted),
            "missing": missing,
            "trainings": [group.name for group in groups],
            "seconds": seconds,
        }
    )


def _status_table(cells: Cells, names: list[str], backbones: list[str] | None) -> Table:
    from rich.table import Table

    from protail.bench.tables import BACKBONES, bench_table, wanted_cells

    shown = Table("table", "backbone", "cells", "missing")
    for name in names:
        for backbone in backbones or BACKBONES:
            if backbone not in bench_table(name).backbones:
                continue
            wanted = wanted_cells([name], [backbone])
            missing = sum(cell not in cells for cell in wanted)
            shown.add_row(name, backbone, str(len(wanted)), str(missing))
    return shown


def _write(voice: Voice, cells: Cells, place: Path) -> None:
    from protail._files import new_file
    from protail.bench.page import results_page

    with new_file(place, overwrite=True) as temporary:
        temporary.write_text(results_page(cells), encoding="utf-8")
    voice.say(f"{place}: made from {counted(len(cells), 'cell')}.")
    voice.finish({"page": str(place), "cells": len(cells)})


def _take(voice: Voice, cells: Cells, folders: list[str]) -> None:
    from protail.bench.cells import Cells

    if not folders:
        raise ValueError(
            "take needs a folder; expected one that holds cells, as in: take new-cells."
        )
    taken = sum(cells.take(Cells(folder)) for folder in folders)
    voice.say(
        f"{counted(taken, 'cell was', 'cells were')} taken into {cells.folder}, "
        f"{counted(len(cells), 'is', 'are')} there."
    )
    voice.finish({"taken": taken, "cells": len(cells)})

"""``protail bench``: the tables of the paper, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail._messages import counted
from protail.cli import _completion as completion
from protail.cli._command import Debug, Device, Json, Voice
from protail.cli._command import command as _command
from protail.cli.data import DataRoot, Lists
from protail.cli.recipes import Set, read_changes

if TYPE_CHECKING:
    from rich.table import Table

    from protail.bench.cells import Cells
    from protail.bench.wanted import Cell
    from protail.cli._bench_data import Images

What = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...",
        help="Tables to run, most wanted first (table1 table2 table8 questions table3 table4 "
        "table9, or all of these; table5 table6, on images that you bring; those that status "
        "names tuning-... and strong-..., on training images held back); or status, write (the "
        "page of results), figures, take FOLDER (of cells).",
        show_default=False,
        autocompletion=completion.bench_words,
    ),
]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Where cells and their page are kept.")]
Backbones = Annotated[
    list[str] | None,
    typer.Option(
        "--backbone",
        metavar="NAME",
        help="As in ResNet-34; by default all of a table.",
        autocompletion=completion.backbones,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Only trainings whose names, as status --json lists them, are like '*, seed 0'.",
    ),
]
Draws = Annotated[
    list[Path] | None,
    typer.Option(
        "--draw", metavar="FILE", help="An exported draw to take images from; can be repeated."
    ),
]
Budget = Annotated[str | None, typer.Option(metavar="TIME", help="As in 90s, 9m or 1.5h.")]
AtOnce = Annotated[
    int | None, typer.Option(min=1, help="Trainings at once. [4; on images in files 1]")
]
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
    only: Only = None,
    draw: Draws = None,
    data_root: DataRoot = None,
    lists: Lists = None,
    budget: Budget = None,
    at_once: AtOnce = None,
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
    from protail.bench.large import LARGE_SETS, mark_miniatures
    from protail.cli._bench_data import Images
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
        _status(voice, cells, others, backbone, only)
    else:
        wanted = _wanted(what, backbone, only, changes)
        options = _options(device, compiled)
        images = Images(draw or [], data_root, lists)
        seconds = None if budget is None else _seconds(budget)
        wanted = mark_miniatures(wanted, images, voice.say)
        # Workers that read files fill the cores for one training already.
        missing = [cell for cell in wanted if cell not in cells]
        images.find_all(cell.draw for cell in missing)
        in_files = any(cell.draw.dataset in LARGE_SETS for cell in missing)
        how = {
            "budget": seconds,
            "at_once": at_once or (1 if in_files else 4),
            "weights": weights,
            "known": _known(changes),
        }
        _run(voice, cells, wanted, images, options, how)


def _wanted(
    names: list[str],
    backbones: list[str] | None,
    only: list[str] | None = None,
    changes: list[str] | None = None,
) -> list[Cell]:
    from dataclasses import replace

    from protail.bench.groups import only_named
    from protail.bench.tables import BACKBONE_NAMES, wanted_cells

    cells = wanted_cells(_tables(names), backbones or BACKBONE_NAMES)
    if only:
        # By the names that status lists, before anything is changed: the others may not take it.
        cells = only_named(cells, only)
    overrides = read_changes(changes or [])
    if not overrides:
        return cells
    changed = []
    for cell in cells:
        lacking = {"pretraining", "classifier"} - set(cell.recipe.stages)
        taken = {k: v for k, v in overrides.items() if k.partition(".")[0] not in lacking}
        changed.append(replace(cell, overrides={**cell.overrides, **taken}))
    return changed


def _known(changes: list[str] | None) -> list[Cell]:
    """List the cells of every table, but for those that cannot be changed like that."""
    from protail.recipes import RecipeError

    known = []
    for cell in _wanted(_every_table(), None, changes=changes):
        try:
            _ = cell.recipe
        except RecipeError:
            continue
        known.append(cell)
    return known


def _tables(names: list[str]) -> list[str]:
    """Write all out: the tables of test images that can be downloaded."""
    from protail.bench.comparisons import COMPARISONS
    from protail.bench.tables import TABLES

    written = ([*TABLES, *COMPARISONS] if name == "all" else [name] for name in names)
    return list(dict.fromkeys(name for each in written for name in each))


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


def _run(
    voice: Voice,
    cells: Cells,
    wanted: list[Cell],
    images: Images,
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


def _status(
    voice: Voice,
    cells: Cells,
    names: list[str],
    backbones: list[str] | None,
    only: list[str] | None,
) -> None:
    from protail.bench.forecasts import expected_seconds
    from protail.bench.groups import missing_groups
    from protail.bench.large import LARGE
    from protail.cli._progress import in_words

    apart = [] if names or only else list(LARGE)
    names = names or _every_table()
    wanted = _wanted(names, backbones, only)
    groups = missing_groups(wanted, cells)
    if not only:
        voice.show(_status_table(cells, [*_tables(names), *apart], backbones))
    known = [expected_seconds(group, cells) for group in groups]
    seconds = sum(each for each in known if each is not None)
    unknown = known.count(None)
    missing = [cell.command for cell in wanted if cell not in cells]
    besides = f", {' and '.join(apart)} aside, which need images that you bring" if apart else ""
    voice.say(
        f"Of {counted(len(wanted), 'cell')} {counted(len(missing), 'is', 'are')} missing{besides}."
    )
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

    from protail.bench.tables import BACKBONE_NAMES, bench_table, wanted_cells

    shown = Table("table", "backbone", "cells", "missing")
    for name in names:
        for backbone in backbones or BACKBONE_NAMES:
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

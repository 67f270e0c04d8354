"""``protail bench``: the tables of the paper, experiment by experiment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.progress import in_words
from protail.utils import counted, unknown_name

if TYPE_CHECKING:
    from rich.table import Table

    from protail.data.images import DataSet, FeatureData
    from protail.profile import ClassProfile
    from protail_paper.paper import Entry, Row
    from protail_paper.results import Results
    from protail_paper.wanted import Experiment, Subset

# What a shell offers: written down here, for pressing a key must not take long.
TABLE_NAMES = ["table1", "table2", "table8", "questions", "table3", "table4", "table9"]
TABLE_NAMES += ["table5", "table6"]
_OTHERS = ("status", "write", "figures", "errata", "take", "frozen")
BACKBONES = ("ResNet-34", "ResNet-32", "ResNeXt-50", "ResNet-50")
What = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...",
        help="Tables to run, most wanted first (table1 table2 table8 questions table3 table4 "
        "table9, or all of these; table5 table6, on images that you bring; tuning-... and "
        "strong-..., as status names them, on images held back); or status, write (pages), "
        "figures, errata [DATASET], take FOLDER (of results), frozen FOLDER (of features).",
        show_default=False,
        autocompletion=opt.one_of(*TABLE_NAMES, *_OTHERS),
    ),
]
Folder = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where results and their page are kept.")
]
Backbones = Annotated[
    list[str] | None,
    typer.Option(
        "--backbone",
        metavar="NAME",
        help="As in ResNet-34; by default all of a table.",
        autocompletion=opt.one_of(*BACKBONES),
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Only trainings whose names, as status --json lists them, are like '*, seed 0'.",
    ),
]
SubsetFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--subset", metavar="FILE", help="Exported subset to take images from; can be repeated."
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


@command
def bench(
    voice: Voice,
    what: What,
    folder: Folder = Path("results"),
    backbone: Backbones = None,
    only: Only = None,
    subset: SubsetFiles = None,
    data_root: opt.DataRoot = None,
    lists: opt.Lists = None,
    budget: Budget = None,
    at_once: AtOnce = None,
    weights: Weights = None,
    features: Features = None,
    changes: opt.Set = None,
    device: opt.Device = "auto",
    compiled: Compile = True,
) -> None:
    """Run the missing experiments of tables, or say what is there.

    Killed at any moment it keeps every finished result; the same command goes on. With --set, to
    try something out, experiments are others than those of the table.
    """
    from protail_paper.results import Results

    results = Results(folder / "cells")
    first, *others = what
    if first == "take":
        _take(voice, results, others)
    elif first == "write":
        _write(voice, results, folder / "README.md")
    elif first == "figures":
        _figures(voice, results, folder / "figures", features)
    elif first == "errata":
        _errata(voice, others, data_root, lists)
    elif first == "frozen":
        _frozen(voice, others, folder, only, opt.read_seconds(budget))
    elif first == "status":
        _status(voice, results, others, backbone, only)
    else:
        images = Images(subset or [], data_root, lists)
        wanted = _wanted(what, backbone, only, changes)
        options = {
            "budget": opt.read_seconds(budget),
            "at_once": at_once,
            "weights": weights,
            "known": _known(changes),
        }
        _run(voice, results, wanted, images, _options(device, compiled), options)


class Images:
    """Find the images of a subset: in an exported file that holds them, else by name.

    Parameters
    ----------
    files : list of Path
        Exported subsets.
    root, lists : Path or None
        Where other data is, as for ``protail train``. A folder of several data sets has a folder
        for each, called by its name.
    """

    def __init__(self, files: list[Path], root: Path | None, lists: Path | None = None) -> None:
        for file in files:
            if not file.is_file():
                raise ValueError(
                    f"--subset {file}: there is no such file; expected an exported subset."
                )
        self._files, self._root, self._lists = files, root, lists
        self._found: dict[Subset, DataSet] = {}

    def __call__(self, subset: Subset) -> DataSet:
        """Give the images of a subset."""
        from protail.data.images import require_images
        from protail.experiments import held_out_data, validation_data

        # What is in a folder is the same whatever it is taken for.
        subset = replace(subset, miniature=0)
        if subset not in self._found:
            if subset.aside_from:
                narrow = replace(subset, aside_from=0.0)
                wide = replace(narrow, imbalance=subset.aside_from)
                data = validation_data(self(wide), self(narrow))
            else:
                data = self._cut(subset) if subset.imbalance else self._listed(subset)
            if subset.held_out:
                images = require_images(data, "hold some of out")
                data = held_out_data(images, fraction=subset.held_out, seed=subset.held_out_seed)
            self._found[subset] = data
        return self._found[subset]

    def find_all(self, subsets: Iterable[Subset]) -> None:
        """Find the images of several subsets; the first that is not there ends it."""
        from protail.data.images import DataSetError

        wanted = dict.fromkeys(subsets)
        for subset in wanted:
            try:
                self(subset)
            except DataSetError as error:
                others = {each.dataset for each in wanted} - {subset.dataset}
                advice = "" if not others else " --only leaves its experiments out."
                raise DataSetError(f"{error} Nothing was begun.{advice}") from error

    def _cut(self, subset: Subset) -> DataSet:
        from protail.data.images import OtherSubsetError, load_dataset, require_images

        wanted: dict[str, Any] = {"imbalance": subset.imbalance, "selection": subset.selection}
        for file in self._files:
            try:
                found = require_images(load_dataset(file, **wanted), "train on")
            except OtherSubsetError:
                continue
            if found.name == subset.dataset:
                return found
        named = load_dataset(subset.dataset, root=self._root, **wanted)
        return require_images(named, "train on")

    def _listed(self, subset: Subset) -> DataSet:
        from protail.data.images import load_dataset, require_images
        from protail.experiments import check_test_images

        root = self._root
        if root is not None and (root / subset.dataset).is_dir():
            root = root / subset.dataset
        data = require_images(
            load_dataset(subset.dataset, root=root, lists=self._lists), "train on"
        )
        check_test_images(data, "Replace them")
        return data


def _wanted(
    names: list[str],
    backbones: list[str] | None,
    only: list[str] | None = None,
    changes: list[str] | None = None,
) -> list[Experiment]:
    from protail_paper.groups import BACKBONE_NAMES, only_named, wanted_experiments

    experiments = wanted_experiments(_tables(names), backbones or BACKBONE_NAMES)
    if only:
        # By the names that status lists, before anything is changed: the others may not take it.
        experiments = only_named(experiments, only)
    overrides = opt.read_changes(changes)
    if not overrides:
        return experiments
    changed = []
    for experiment in experiments:
        lacking = {"pretraining", "classifier"} - set(experiment.recipe.stages)
        taken = {k: v for k, v in overrides.items() if k.partition(".")[0] not in lacking}
        changed.append(replace(experiment, overrides={**experiment.overrides, **taken}))
    return changed


def _known(changes: list[str] | None) -> list[Experiment]:
    """List the experiments of every table, but for those that cannot be changed like that."""
    from protail.recipes import RecipeError

    known = []
    for experiment in _wanted(_every_table(), None, changes=changes):
        try:
            _ = experiment.recipe
        except RecipeError:
            continue
        known.append(experiment)
    return known


def _tables(names: list[str]) -> list[str]:
    """Write all out: the tables of test images that can be downloaded."""
    from protail_paper.comparisons import COMPARISONS
    from protail_paper.tables import TABLES

    written = ([*TABLES, *COMPARISONS] if name == "all" else [name] for name in names)
    return list(dict.fromkeys(name for each in written for name in each))


def _every_table() -> list[str]:
    from protail_paper.tuning import CHOICES

    return [*_tables(["all"]), *CHOICES]


def _frozen(
    voice: Voice, names: list[str], folder: Path, only: list[str] | None, budget: float | None
) -> None:
    """Run the heads of the leaderboard that are missing, on the files of folders of features."""
    from protail_paper.frozen import FOLDER, Board, run_board

    if not names or not all(Path(name).is_dir() for name in names):
        raise ValueError(
            f"frozen was given {', '.join(names) or 'nothing'}; expected folders of features "
            "(.npz with x and y), as in: frozen FEATURES."
        )
    files = sorted(file for name in names for file in Path(name).glob("*.npz"))
    n = run_board(files, folder / FOLDER, only=only or (), budget=budget, say=voice.say)
    missing = Board(folder / FOLDER).missing
    voice.say(f"{counted(n, 'result was', 'results were')} run; {len(missing)} are missing.")
    voice.finish({"run": n, "missing": missing})


def _options(device: str, compiled: bool) -> Any:
    from protail.experiments import Options, find_device

    place = find_device(device)
    return Options.automatic(str(place), compiled=compiled and place.type == "cuda")


def _run(
    voice: Voice,
    results: Results,
    wanted: list[Experiment],
    images: Images,
    options: Any,
    how: dict[str, Any],
) -> None:
    from protail_paper.large import LARGE_SETS, mark_miniatures
    from protail_paper.running import run_missing

    wanted = mark_miniatures(wanted, images, voice.say)
    missing = [experiment for experiment in wanted if experiment not in results]
    images.find_all(experiment.subset for experiment in missing)
    # Workers that read files fill the cores for one training already.
    in_files = any(experiment.subset.dataset in LARGE_SETS for experiment in missing)
    how["at_once"] = how["at_once"] or (1 if in_files else 4)
    there = len(wanted) - len(missing)
    voice.say(
        f"{counted(len(wanted), 'experiment')}: {counted(there, 'is', 'are')} there, "
        f"{counted(len(missing), 'is', 'are')} missing."
    )
    try:
        n = run_missing(wanted, results, images, options, say=voice.say, **how)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Finished results are kept; the same command goes on.") from None
    n_missing = sum(experiment not in results for experiment in wanted)
    voice.say(
        f"{counted(n, 'experiment was', 'experiments were')} run; "
        f"{counted(n_missing, 'is', 'are')} missing."
    )
    voice.finish({"run": n, "missing": n_missing, "results": str(results.folder)})


def _status(
    voice: Voice,
    results: Results,
    names: list[str],
    backbones: list[str] | None,
    only: list[str] | None,
) -> None:
    from protail_paper.forecasts import expected_seconds
    from protail_paper.frozen import FOLDER, Board
    from protail_paper.groups import missing_groups
    from protail_paper.large import LARGE

    apart = [] if names or only else list(LARGE)
    board = [] if names or only else Board(results.folder.parent / FOLDER).missing
    names = names or _every_table()
    wanted = _wanted(names, backbones, only)
    groups = missing_groups(wanted, results)
    if not only:
        voice.show(_status_table(results, [*_tables(names), *apart], backbones))
    known = [expected_seconds(group, results) for group in groups]
    seconds = sum(each for each in known if each is not None)
    unknown = known.count(None)
    missing = [experiment.command for experiment in wanted if experiment not in results]
    besides = f", {' and '.join(apart)} aside, which need images that you bring" if apart else ""
    voice.say(
        f"Of {counted(len(wanted), 'experiment')} {counted(len(missing), 'is', 'are')} "
        f"missing{besides}."
    )
    if missing:
        took = counted(len(known) - unknown, "takes", "take")
        lengths = [f"{took} {in_words(seconds)}"] if unknown < len(known) else []
        lengths += [f"of {unknown} no result tells the time"] if unknown else []
        voice.say(f"Left to train: {counted(len(groups), 'representation')}; {', '.join(lengths)}.")
    if board:
        voice.say(f"Of the leaderboard {counted(len(board), 'is', 'are')} missing: {board[0]} ...")
    voice.finish(
        {
            "cells": len(wanted),
            "missing": missing,
            "frozen": board,
            "trainings": [group.name for group in groups],
            "seconds": seconds,
        }
    )


def _status_table(results: Results, names: list[str], backbones: list[str] | None) -> Table:
    from rich.table import Table

    from protail_paper.groups import BACKBONE_NAMES, bench_table, wanted_experiments

    shown = Table("table", "backbone", "experiments", "missing")
    for name in names:
        for backbone in backbones or BACKBONE_NAMES:
            if backbone not in bench_table(name).backbones:
                continue
            wanted = wanted_experiments([name], [backbone])
            missing = sum(experiment not in results for experiment in wanted)
            shown.add_row(name, backbone, str(len(wanted)), str(missing))
    return shown


def _write(voice: Voice, results: Results, place: Path) -> None:
    """Write the page of results, and beside the folder of results those that have templates."""
    from protail.utils import new_file
    from protail_paper.figures import write_picture
    from protail_paper.frozen import FOLDER, Board
    from protail_paper.page import results_page
    from protail_paper.paper_page import fill

    pages, docs = {place: results_page(results)}, place.parent.parent / "docs"
    if (docs / "leaderboard.md.template").is_file():
        picture = Board(results.folder.parent / FOLDER).picture()
        write_picture(docs / "images" / "leaderboard.png", picture, overwrite=True)
    for template in docs.glob("*.md.template"):
        pages[template.with_suffix("")] = fill(template.read_text(encoding="utf-8"), results)
    for page, text in pages.items():
        with new_file(page, overwrite=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
        voice.say(f"{page}: made from {counted(len(results), 'result')}.")
    voice.finish(
        {"page": str(place), "pages": [str(page) for page in pages], "cells": len(results)}
    )


def _figures(voice: Voice, results: Results, folder: Path, features: Path | None) -> None:
    """Draw the figures into a folder, with ``figures.json`` beside them."""
    from protail.utils import new_file
    from protail_paper.drawing import draw_figures
    from protail_paper.figures import write_picture

    numbers: dict[str, Any] = {}
    places = []
    for drawn in draw_figures(results, _load_features(features), voice.say):
        place = folder / f"{drawn.name}.png"
        write_picture(place, drawn.picture, overwrite=True)
        places.append(str(place))
        if drawn.numbers:
            numbers[drawn.name] = drawn.numbers
    with new_file(folder / "figures.json", overwrite=True) as temporary:
        temporary.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    voice.say(f"{folder}: {counted(len(places), 'figure')} from {counted(len(results), 'result')}.")
    voice.finish({"figures": places, "numbers": str(folder / "figures.json")})


def _load_features(features: Path | None) -> FeatureData:
    from protail.data.images import BUNDLED_FEATURES, FeatureData, load_dataset

    found = load_dataset(BUNDLED_FEATURES if features is None else features)
    if not isinstance(found, FeatureData):
        raise ValueError(f"--features {features} holds images; expected features (.npz).")
    return found


def _errata(voice: Voice, names: list[str], root: Path | None, lists: Path | None) -> None:
    """Show what Table 7 says about data sets, beside their counts where these are known."""
    from protail_paper.paper import TABLE_7, table7_entries, table7_errata

    known = list(dict.fromkeys(row.dataset for row in TABLE_7))
    for name in names:
        if name not in known:
            raise ValueError(unknown_name("data set", name, known))
    found = []
    for row in TABLE_7:
        if row.dataset in (names or known):
            profile = _profile(row, root, lists)
            entries = [] if profile is None else table7_entries(row, profile)
            title = f"{row.dataset} {row.imbalance or ''}".strip()
            if entries:
                voice.show(_errata_table(title, entries))
            errata = table7_errata(row, profile)
            for erratum in errata:
                voice.show(f"Table 7 of the paper, {title}: {erratum}")
            about = {"dataset": row.dataset, "imbalance": row.imbalance}
            found.append({**about, "entries": [vars(each) for each in entries], "errata": errata})
    voice.finish({"table7": found})


def _profile(row: Row, root: Path | None, lists: Path | None) -> ClassProfile | None:
    """Count the training images: by the text of the paper, else by lists where they are named."""
    from protail.data.images import load_dataset, long_tailed_counts
    from protail.profile import ClassProfile
    from protail_paper.wanted import SIZES

    if row.imbalance is not None:
        return ClassProfile(long_tailed_counts(*SIZES[row.dataset], row.imbalance))
    if root is None and lists is None:
        return None
    options: dict[str, Any] = {"download": False, "lists": lists, "check_files": False}
    return load_dataset(row.dataset, root=root, **options).train.profile


def _errata_table(title: str, entries: list[Entry]) -> Table:
    from rich.table import Table

    shown = Table("group", "classes", "samples", "paper: classes", "samples", title=title)
    half = len(entries) // 2
    for both in zip(entries[:half], entries[half:], strict=True):
        printed = (f"{each.printed:,}{'' if each.is_right else ' (!)'}" for each in both)
        shown.add_row(both[0].group, *(f"{each.computed:,}" for each in both), *printed)
    return shown


def _take(voice: Voice, results: Results, folders: list[str]) -> None:
    from protail_paper.results import Results

    if not folders:
        raise ValueError(
            "take needs a folder; expected one that holds results, as in: take new-results."
        )
    taken = sum(results.take(Results(folder)) for folder in folders)
    voice.say(
        f"{counted(taken, 'result was', 'results were')} taken into {results.folder}, "
        f"{counted(len(results), 'is', 'are')} there."
    )
    voice.finish({"taken": taken, "cells": len(results)})


app = make_app(bench, "protail bench table1 table2 --budget 9m")

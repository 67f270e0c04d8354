"""``protail search``: settings of a recipe, chosen on training images held out of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail._messages import counted
from protail.cli._completion import one_of
from protail.cli._dataset_options import (
    DataRoot,
    DataSeed,
    ImageDataset,
    Imbalance,
    Kind,
    Lists,
    OnBadImage,
    Selection,
    TestShare,
    load_images,
)
from protail.cli._search_places import SearchPlaces
from protail.cli.command import Debug, Device, Json, Overwrite, Voice
from protail.cli.command import command as _command
from protail.cli.recipes import Recipe, Set, read_changes

if TYPE_CHECKING:
    from protail.experiments import Search, SearchResult, SearchTrial

Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY[=RANGE]",
        help="What to vary: LOW:HIGH, LOW:HIGH:log or choice:A,B,C; can be repeated.",
    ),
]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Recipe to write, .toml.")
]
JournalFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Trials so far; workers may share it."),
]
Trials = Annotated[int, typer.Option(metavar="N", help="Trials in all.")]
Budget = Annotated[
    str | None, typer.Option(metavar="TIME", help="Begin no trial that would end later, as in 9m.")
]
AtOnce = Annotated[
    int | None, typer.Option(metavar="K", help="Trainings at once, a stream each. [1; heads 16]")
]
Score = Annotated[
    str,
    typer.Option(
        help="Maximise balanced, few or all.", autocompletion=one_of("balanced", "few", "all")
    ),
]
HeldOut = Annotated[float, typer.Option(metavar="SHARE", help="Of each class's training images.")]
Pruner = Annotated[
    str,
    typer.Option(
        help="Give up: none, median or hyperband.",
        autocompletion=one_of("none", "median", "hyperband"),
    ),
]
Seed = Annotated[int, typer.Option(help="Of parts, trainings and trials.")]

Compile = Annotated[bool, typer.Option("--compile", help="Compile networks first.")]

_SHOWN_TRIALS = 10
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@_command
def search(
    recipe: Recipe,
    dataset: ImageDataset,
    over: Over = None,
    changes: Set = None,
    trials: Trials = 20,
    budget: Budget = None,
    at_once: AtOnce = None,
    journal: JournalFile = None,
    output: Output = Path("best.toml"),
    score: Score = "balanced",
    held_out: HeldOut = 0.2,
    pruner: Pruner = "none",
    seed: Seed = 0,
    imbalance: Imbalance = None,
    kind: Kind = None,
    selection: Selection = None,
    data_seed: DataSeed = None,
    test_share: TestShare = None,
    data_root: DataRoot = None,
    lists: Lists = None,
    on_bad_image: OnBadImage = None,
    device: Device = "auto",
    compiled: Compile = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search for settings of a recipe, judged on held-out training images.

    Test images are never looked at. The same command goes on where it was stopped.
    """
    from protail.cli._train_plan import choose_options
    from protail.experiments import Search, read_searched_keys, run_search
    from protail.recipes import load_recipe

    voice = Voice(as_json)
    places = SearchPlaces(output, journal)
    start = load_recipe(recipe).with_overrides(read_changes(changes or []))
    keys = read_searched_keys(over or [], start)
    seconds = None if budget is None else read_seconds(budget)
    images = load_images(
        dataset,
        data_root,
        imbalance=imbalance,
        kind=kind,
        selection=selection,
        seed=data_seed,
        test_share=test_share,
        lists=lists,
        on_bad_image=on_bad_image,
    )
    wanted = Search(start, images, keys, score, held_out, seed)
    options = choose_options(
        images,
        start.n_epochs,
        device=device,
        driver="auto",
        compiled=compiled,
    )
    places.check(wanted, overwrite=overwrite)
    if overwrite:
        places.clear_journal(wanted)
    _announce(voice, wanted, pruner)
    try:
        result = run_search(
            wanted,
            places.journal,
            n_trials=trials,
            budget=seconds,
            at_once=at_once,
            pruner=pruner,
            options=options,
            watch=_Watch(voice),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command goes on with the trials so far.") from None
    picture = _picture(result, voice)
    places.write(result, picture)
    voice.show(_table(result))
    if picture is not None:
        voice.say(f"Picture: {places.picture}")
    voice.say(f"Recipe: {output}. Train it on all training images: protail train {output} ...")
    voice.finish({**result.to_dict(), "output": str(output)})


def read_seconds(text: str) -> float:
    """Read a duration.

    Parameters
    ----------
    text : str
        A number, with s, m or h behind it; seconds without.

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    >>> from protail.cli.search import read_seconds
    >>> read_seconds("9m"), read_seconds("1.5h"), read_seconds("90")
    (540.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*([smh]?)\s*", text)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"--budget {text!r} is no duration; expected one as in 90s, 9m or 1.5h.")
    return float(found[1]) * _UNITS[found[2]]


def _picture(result: SearchResult, voice: Voice) -> bytes | None:
    """Draw the picture; a search without matplotlib has found as much."""
    from protail.report import search_picture

    if result.best is None:
        return None
    try:
        return search_picture(result)
    except ImportError as error:
        voice.say(f"Note: {error}")
        return None


class _Watch:
    """Tell of trials: of those that take long, and of each that is the best so far."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._best = -1.0

    def __call__(self, trial: SearchTrial) -> None:
        is_best = trial.score is not None and trial.score > self._best
        if is_best:
            self._best = trial.score or 0.0
        if is_best or (trial.seconds or 0.0) >= 5:
            result = trial.state if trial.score is None else f"{_percent(trial)} %"
            values = ", ".join(f"{key} {_shown(value)}" for key, value in trial.params.items())
            mark = ", the best so far" if is_best else ""
            self._voice.say(f"Trial {trial.number}: {result} with {values}{mark}.")


def _announce(voice: Voice, search: Search, pruner: str) -> None:
    parts = search.held_out
    voice.say(
        f"Learning from {counted(len(parts.train), 'training image')}, judging on "
        f"{counted(len(parts.test), 'other')}; no test image is looked at."
    )
    if search.is_of_heads:
        voice.say("Only stage 2 is searched: the representation is trained once.")
        if pruner != "none":
            voice.say("Note: heads learn too fast to be pruned; --pruner has no effect here.")


def _table(result: SearchResult) -> Any:
    from rich import box
    from rich.table import Table

    keys = [key.key for key in result.search.keys]
    table = Table("trial", *keys, f"{result.search.score}, %", "time", "state", box=box.SIMPLE)
    ranked = sorted(result.trials, key=lambda trial: (-(trial.score or -1.0), trial.number))
    for trial in ranked[:_SHOWN_TRIALS]:
        values = [_shown(trial.params.get(key, "")) for key in keys]
        seconds = "" if trial.seconds is None else f"{trial.seconds:.1f} s"
        table.add_row(str(trial.number), *values, _percent(trial), seconds, trial.state)
    hidden = len(ranked) - _SHOWN_TRIALS
    if hidden > 0:
        table.add_row("...", *[""] * len(keys), "", "", f"{hidden} more")
    return table


def _percent(trial: SearchTrial | None) -> str:
    return "" if trial is None or trial.score is None else f"{100 * trial.score:.1f}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

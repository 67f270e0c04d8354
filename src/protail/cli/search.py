"""``protail search``: settings of a recipe, chosen on training images held out of it."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail._files import OutputError, check_free, new_file
from protail._messages import counted
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.tables import make_table

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
    str | None,
    typer.Option(metavar="FILE", help="Trials so far, of all workers; or postgresql://..."),
]
Trials = Annotated[int, typer.Option(metavar="N", help="Trials in all.")]
Budget = Annotated[
    str | None, typer.Option(metavar="TIME", help="Begin no trial that would end later, as in 9m.")
]
AtOnce = Annotated[
    int | None, typer.Option(metavar="K", help="Trainings at once, a stream each. [1; heads 16]")
]
Score = Annotated[str, opt.chosen_from("Maximise ", "balanced", "few", "all")]
HeldOut = Annotated[float, typer.Option(metavar="X", help="Fraction of the training images.")]
Pruner = Annotated[str, opt.chosen_from("Give up: ", "none", "median", "hyperband")]
Seed = Annotated[int, typer.Option(help="Of parts, trainings and trials.")]

Compile = Annotated[bool, typer.Option("--compile", help="Compile networks first.")]

_SHOWN_TRIALS = 10


@command
def search(
    voice: Voice,
    recipe: opt.Recipe,
    dataset: opt.ImageDataset,
    over: Over = None,
    changes: opt.Set = None,
    trials: Trials = 20,
    budget: Budget = None,
    at_once: AtOnce = None,
    journal: JournalFile = None,
    output: Output = Path("best.toml"),
    score: Score = "balanced",
    held_out: HeldOut = 0.2,
    pruner: Pruner = "none",
    seed: Seed = 0,
    imbalance: opt.Imbalance = None,
    kind: opt.Kind = None,
    selection: opt.Selection = None,
    data_seed: opt.DataSeed = None,
    test_fraction: opt.TestFraction = None,
    data_root: opt.DataRoot = None,
    lists: opt.Lists = None,
    on_bad_image: opt.OnBadImage = None,
    device: opt.Device = "auto",
    compiled: Compile = False,
    overwrite: opt.Overwrite = False,
) -> None:
    """Search for settings of a recipe, evaluated on held-out training images.

    Test images are never looked at. The same command goes on where it was stopped.
    """
    from protail.data.images import require_images
    from protail.experiments import (
        Search,
        choose_options,
        load_data,
        read_searched_keys,
        run_search,
        suited_data,
    )
    from protail.recipes import load_recipe

    places = SearchPlaces(output, journal)
    start = load_recipe(recipe).with_overrides(opt.read_changes(changes))
    keys = read_searched_keys(over or [], start)
    seconds = opt.read_seconds(budget)
    loaded = load_data(
        dataset,
        data_root,
        imbalance=imbalance,
        kind=kind,
        selection=selection,
        seed=data_seed,
        test_share=test_fraction,
        lists=lists,
        on_bad_image=on_bad_image,
    )
    images = require_images(suited_data(loaded, start), "search with")
    wanted = Search(start, images, keys, score, held_out, seed)
    options = choose_options(start, images, device, compiled=compiled)
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
            files=places.files,
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
        f"Learning from {counted(len(parts.train), 'training image')}, evaluating on "
        f"{counted(len(parts.test), 'other')}; no test image is looked at."
    )
    if search.is_of_heads:
        voice.say("Only stage 2 is searched: the representation is trained once.")
        if pruner != "none":
            voice.say("Note: heads learn too fast to be pruned; --pruner has no effect here.")


def _table(result: SearchResult) -> Any:
    keys = [key.key for key in result.search.keys]
    ranked = sorted(result.trials, key=lambda trial: (-(trial.score or -1.0), trial.number))
    rows = []
    for trial in ranked[:_SHOWN_TRIALS]:
        values = [_shown(trial.params.get(key, "")) for key in keys]
        seconds = "" if trial.seconds is None else f"{trial.seconds:.1f} s"
        rows.append([str(trial.number), *values, _percent(trial), seconds, trial.state])
    hidden = len(ranked) - _SHOWN_TRIALS
    if hidden > 0:
        rows.append(["...", *[""] * len(keys), "", "", f"{hidden} more"])
    return make_table(["trial", *keys, f"{result.search.score}, %", "time", "state"], rows)


def _percent(trial: SearchTrial | None) -> str:
    return "" if trial is None or trial.score is None else f"{100 * trial.score:.1f}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class SearchPlaces:
    """What a search leaves: the recipe, and beside it all trials and a picture."""

    def __init__(self, recipe: Path, journal: str | None = None) -> None:
        if recipe.suffix != ".toml":
            raise OutputError(22, f"{recipe} cannot be written: its name should end in .toml.")
        self.recipe = recipe
        self.trials = recipe.with_suffix(".search.json")
        self.picture = recipe.with_suffix(".search.png")
        self.files = recipe.with_suffix(".search.files")  # beside a database
        self.journal: Path | str = recipe.with_suffix(".search.journal")
        if journal is not None:
            self.journal = journal if "://" in journal else Path(journal)

    def check(self, search: Search, *, overwrite: bool) -> None:
        """Raise unless the places are free, or hold what this very search found so far."""
        replace = overwrite or self._is_of(search)
        for place in (self.recipe, self.trials, self.picture):
            check_free(place, overwrite=replace)

    def _is_of(self, search: Search) -> bool:
        try:
            there = json.loads(self.trials.read_bytes())
        except (OSError, ValueError):
            return False
        about = json.loads(json.dumps(search.about))
        return isinstance(there, dict) and all(there.get(key) == about[key] for key in about)

    def clear_journal(self, search: Search) -> None:
        """Remove the journal of another search, unless one is working on it."""
        from protail.experiments import is_alive

        if isinstance(self.journal, str):
            return  # each search has a study of its own in a database
        if not _is_of_another(self.journal, search):
            return
        files = self.journal.with_name(f"{self.journal.name}.files")
        if any(is_alive(worker) for worker in files.glob("workers/*")):
            raise OutputError(
                errno.EBUSY, f"{self.journal} cannot be replaced: another search is working on it."
            )
        self.journal.unlink()
        shutil.rmtree(files, ignore_errors=True)

    def write(self, result: SearchResult, picture: bytes | None) -> None:
        """Write all of them, but no picture where there is none."""
        found = result.recipe
        best = None if result.best is None else result.best.score
        score = "" if best is None else f"{100 * best:.1f}"
        n_trials = sum(trial.state != "lost" for trial in result.trials)
        note = (
            f"# Found by protail search, best of {counted(n_trials, 'trial')}: scored "
            f"{score} % ({result.search.score}) on held out training images.\n"
        )
        record = json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        # First what says whose the others are: the same search may replace them.
        self._write(self.trials, record.encode())
        self._write(self.recipe, (note + found.to_toml()).encode())
        if picture is not None:
            self._write(self.picture, picture)

    def _write(self, place: Path, content: bytes) -> None:
        # Another worker of the same search may have written it since we looked.
        with new_file(place, overwrite=True) as temporary:
            temporary.write_bytes(content)


def _is_of_another(journal: Path, search: Search) -> bool:
    """Say whether a file is the journal of a search, and of another one than this."""
    about = json.loads(json.dumps(search.about))
    try:
        with journal.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if line.endswith("\n")]
        noted = [each["user_attr"] for each in records if {"study_id", "user_attr"} <= set(each)]
    except (OSError, ValueError, TypeError):
        return False
    return any(attributes.get("search", about) != about for attributes in noted)


app = make_app(search, "protail search pc-la --dataset cifar100-lt --over classifier.tau")

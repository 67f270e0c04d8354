"""``protail train``: run a recipe on a data set, from images or features to scores."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from protail.cli._completion import one_of
from protail.cli._dataset_options import (
    DataRoot,
    DataSeed,
    Dataset,
    Imbalance,
    Kind,
    Lists,
    OnBadImage,
    Selection,
    TestShare,
)
from protail.cli.command import Debug, Device, Json, Overwrite, Voice
from protail.cli.command import command as _command
from protail.cli.recipes import Recipe, Set

Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", min=0, metavar="NUMBER", help="By default 0; several train at once."),
]
HeldOut = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of training images to judge on instead.",
        show_default=False,
    ),
]
HeldOutSeed = Annotated[int, typer.Option(metavar="NUMBER", help="Of what is held out.")]
AsideFrom = Annotated[
    float,
    typer.Option(
        metavar="RATIO", help="Judge on images that this wider draw adds.", show_default=False
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="DIR", help="Run to write; for several seeds, their folder."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")]
Driver = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="auto, plain, captured or fabric.",
        show_default=False,
        autocompletion=one_of("auto", "plain", "captured", "fabric"),
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="By default long trainings on a GPU."),
]
Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep features here for the next time.")
]
FromScratch = Annotated[
    bool, typer.Option("--from-scratch", help="Train from scratch on however few photos.")
]
CheckpointEvery = Annotated[
    float, typer.Option(metavar="SECONDS", help="Least time between checkpoints.")
]


@_command
def train(
    recipe: Recipe,
    dataset: Dataset,
    imbalance: Imbalance = None,
    kind: Kind = None,
    selection: Selection = None,
    data_root: DataRoot = None,
    lists: Lists = None,
    on_bad_image: OnBadImage = None,
    data_seed: DataSeed = None,
    test_share: TestShare = None,
    held_out: HeldOut = 0.0,
    held_out_seed: HeldOutSeed = 0,
    aside_from: AsideFrom = 0.0,
    seed: Seeds = None,
    changes: Set = None,
    from_scratch: FromScratch = False,
    output: Output = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = 60,
    device: Device = "auto",
    driver: Driver = "auto",
    compiled: Compile = None,
    cache: Cache = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a recipe on a data set and judge what came out.

    All of it is kept in a folder, the run: by default runs/RECIPE-DATASET-IMBALANCE-seedN. On a
    file of features only the classifier is learned.
    """
    from protail.cli._dataset_options import check_test_images, hold_out, load_aside, load_data
    from protail.cli._train_plan import make_plan, say_plan
    from protail.cli.recipes import read_changes
    from protail.recipes import load_recipe

    voice = Voice(as_json)
    begin = time.perf_counter()
    named = load_recipe(recipe)
    chosen = named.with_overrides(read_changes(changes or []))
    _check_data_root(dataset, data_root)
    if held_out and aside_from:
        raise ValueError(
            f"--held-out {held_out:g} and --aside-from {aside_from:g} are given; expected one of "
            "them. Each says what to judge on."
        )
    load = partial(load_aside, ratio=aside_from) if aside_from else load_data
    data = load(
        dataset,
        data_root,
        imbalance=imbalance,
        kind=kind,
        selection=selection,
        lists=lists,
        on_bad_image=on_bad_image,
        seed=data_seed,
        test_share=test_share,
    )
    if held_out:
        data = hold_out(data, held_out, held_out_seed)
    how = {
        "device": device,
        "driver": driver,
        "compiled": compiled,
        "resume": resume,
        "overwrite": overwrite,
        "checkpoint_seconds": checkpoint_every,
        "cache": cache,
    }
    plan = make_plan(
        chosen,
        data,
        seed or [0],
        output,
        how,
        changed=chosen != named,
        from_scratch=from_scratch,
    )
    say_plan(voice, plan)
    if plan.waiting and on_bad_image != "skip":
        check_test_images(data, "Replace them, or begin a new run with --on-bad-image skip")
    records = _run(plan, voice)
    _show(plan, records, voice, time.perf_counter() - begin)


def _check_data_root(dataset: str, data_root: Path | None) -> None:
    from protail.data.images import dataset_names

    is_file = dataset not in dataset_names() and os.path.isfile(dataset)
    if data_root is not None and is_file:
        raise ValueError(
            f"--data-root {data_root} is given, but {dataset} holds the data itself; expected one "
            "of them. Leave --data-root out."
        )


def _run(plan: Any, voice: Voice) -> list[dict[str, Any]]:
    from protail.cli._train_progress import training_progress
    from protail.experiments import run_jobs

    try:
        with training_progress(voice, plan.waiting if plan.has_images else []) as watch:
            return run_jobs(plan.jobs, plan.options, watch)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "The same command with --resume goes on from the last checkpoint."
        ) from None


def _show(plan: Any, records: list[dict[str, Any]], voice: Voice, seconds: float) -> None:
    from protail.cli._progress import in_words
    from protail.cli._run_scores import show_scores, summary
    from protail.recipes import recipe_hash

    by_seed = {f"seed {job.seed}": each for job, each in zip(plan.jobs, records, strict=True)}
    show_scores(voice, by_seed)
    for job in plan.jobs:
        voice.say(f"Run: {job.folder}")
    voice.say(f"It took {in_words(seconds)}.")
    first = plan.jobs[0]
    voice.finish(
        {
            "recipe": first.recipe.name,
            "hash": recipe_hash(first.resolved["recipe"]),
            "data": first.resolved["data"],
            "runs": [
                {"seed": job.seed, "run": str(job.folder), "evaluation": record}
                for job, record in zip(plan.jobs, records, strict=True)
            ],
            "summary": summary(records) if len(records) > 1 else None,
            "seconds": round(seconds, 3),
        }
    )

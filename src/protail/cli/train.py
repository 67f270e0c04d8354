"""``protail train``: run a recipe on a data set, from images or features to scores."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protail._messages import counted
from protail.cli import options as opt
from protail.cli.command import Voice, command, make_app
from protail.cli.loggers import SERVICES, check_service, logged
from protail.cli.progress import in_words, training_progress
from protail.cli.tables import show_scores, summary

if TYPE_CHECKING:
    from protail.data.images import DataSet, FeatureData
    from protail.experiments import Job, Options, StepPlan
    from protail.training import ClassifierSettings, RepresentationSettings

Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", min=0, metavar="NUMBER", help="By default 0; several train at once."),
]
HeldOut = Annotated[
    float,
    typer.Option(
        metavar="X", help="Fraction of images to evaluate on instead.", show_default=False
    ),
]
HeldOutSeed = Annotated[int, typer.Option(metavar="NUMBER", help="Of what is held out.")]
ValidationFrom = Annotated[
    float,
    typer.Option(
        metavar="RATIO", help="Evaluate on images that this wider subset adds.", show_default=False
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="DIR", help="Run to write, else in runs/; of seeds, the folder."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")]
Driver = Annotated[
    str,
    opt.chosen_from("", "auto", "plain", "captured", "fabric", metavar="NAME", show_default=False),
]
Compile = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="By default long trainings on a GPU.")
]
Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep features here for the next time.")
]
FromScratch = Annotated[
    bool, typer.Option("--from-scratch", help="Train from scratch on however few photos.")
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained", help="Photos: fine-tune a pretrained backbone.")
]
CheckpointEvery = Annotated[
    float, typer.Option(metavar="SECONDS", help="Least time between checkpoints.")
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait under torchrun.")]
Log = Annotated[
    str | None,
    opt.chosen_from("Log there too: ", *SERVICES, metavar="WHERE"),
]

_USUAL_SUBSET = {"kind": "exp", "selection": "shuffled"}
_HASH_LENGTH = 6
# Where a network knows photos already: fewer epochs, and less decay of what it knows.
_FINE_TUNING = {"epochs": 30, "lr": 0.01, "weight_decay": 5e-4}
_FOR_FILES = {"crop": "resized-crop", "autoaugment": "autoaugment-imagenet"}


@command
def train(
    voice: Voice,
    recipe: opt.Recipe,
    dataset: opt.Dataset,
    imbalance: opt.Imbalance = None,
    kind: opt.Kind = None,
    selection: opt.Selection = None,
    data_root: opt.DataRoot = None,
    lists: opt.Lists = None,
    on_bad_image: opt.OnBadImage = None,
    data_seed: opt.DataSeed = None,
    test_fraction: opt.TestFraction = None,
    held_out: HeldOut = 0.0,
    held_out_seed: HeldOutSeed = 0,
    validation_from: ValidationFrom = 0.0,
    seed: Seeds = None,
    changes: opt.Set = None,
    from_scratch: FromScratch = False,
    pretrained: Pretrained = False,
    output: Output = None,
    resume: Resume = False,
    overwrite: opt.Overwrite = False,
    checkpoint_every: CheckpointEvery = 60,
    timeout: Timeout = 1800,
    device: opt.Device = "auto",
    driver: Driver = "auto",
    compiled: Compile = None,
    cache: Cache = None,
    log: Log = None,
) -> None:
    """Train a recipe on a data set and evaluate what came out."""
    from protail.experiments import (
        check_test_images,
        choose_options,
        is_done,
        load_data,
        plan_steps,
        suited_data,
    )
    from protail.recipes import load_recipe

    begin = time.perf_counter()
    check_service(log)
    named = load_recipe(recipe)
    usual = fine_tuning(named) if pretrained else {}
    chosen = named.with_overrides(usual | opt.read_changes(changes))
    data = load_data(
        dataset,
        data_root,
        held_out=held_out,
        held_out_seed=held_out_seed,
        aside_from=validation_from,
        imbalance=imbalance,
        kind=kind,
        selection=selection,
        lists=lists,
        on_bad_image=on_bad_image,
        seed=data_seed,
        test_share=test_fraction,
    )
    data = suited_data(data, chosen)
    jobs = _jobs(chosen, data, seed or [0], output, changed=chosen != named)
    options = choose_options(
        jobs[0].recipe,
        data,
        device,
        driver=driver,
        compiled=compiled,
        n_processes=int(os.environ.get("WORLD_SIZE", "1")),
        resume=resume,
        overwrite=overwrite,
        checkpoint_seconds=checkpoint_every,
        timeout=timeout,
        cache=cache,
    )
    _check_photos(jobs, from_scratch=from_scratch, resume=resume)
    steps = plan_steps(jobs[0].recipe, data)
    plan = Plan(jobs, [job for job in jobs if not is_done(job, options)], options, steps)
    say_plan(voice, plan)
    if plan.waiting and on_bad_image != "skip":
        instead = "Replace them, or begin a new run with --on-bad-image skip"
        check_test_images(data, instead)
    _show(plan, _run(plan, voice, log), voice, time.perf_counter() - begin)


def fine_tuning(recipe: Any) -> dict[str, Any]:
    """Give the changes that make a recipe fine-tune a pretrained backbone on photos.

    Parameters
    ----------
    recipe : Recipe
        A backbone of timm stays; one that nobody publishes weights of gives way to the
        recommended one. Steps of ``augment`` that are for images in memory give way to those for
        files.

    Returns
    -------
    dict of str to object
        For `Recipe.with_overrides`.

    Examples
    --------
    >>> from protail.cli.train import fine_tuning
    >>> from protail.recipes import load_recipe
    >>> fine_tuning(load_recipe("pc-la"))["classifier.augment"]
    ['resized-crop', 'flip', 'autoaugment-imagenet']
    """
    from protail.data.augment import LOADER_AUGMENTS
    from protail.models.backbones import BACKBONES, recommended_backbone

    changes: dict[str, Any] = {}
    for number, (stage, settings) in enumerate(recipe.phases.items()):
        if settings.backbone in BACKBONES.names():
            changes[f"{stage}.backbone"] = recommended_backbone()
        changes |= {f"{stage}.{key}": value for key, value in _FINE_TUNING.items()}
        changes[f"{stage}.pretrained"] = number == 0
    for stage in recipe.stages:
        for key in ("augment", "second_view"):
            given = getattr(getattr(recipe, stage), key, ())
            steps = dict.fromkeys(_FOR_FILES.get(step, step) for step in given)
            if given:
                changes[f"{stage}.{key}"] = [step for step in steps if step in LOADER_AUGMENTS]
    return changes


@dataclass(frozen=True)
class Plan:
    """What is about to be done: jobs, those not finished before, how, and how long they are."""

    jobs: list[Job]
    waiting: list[Job]
    options: Options
    steps: StepPlan

    @property
    def has_images(self) -> bool:
        """Whether there are images to learn a representation from."""
        return self.steps.image_size is not None


def _jobs(
    recipe: Any,
    data: DataSet | FeatureData,
    seeds: Sequence[int],
    output: Path | None,
    *,
    changed: bool,
) -> list[Job]:
    """Make a job of each seed, in a folder that is named after what is run."""
    from protail.experiments import Job, is_run

    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"--seed {seed} is given twice; expected each seed once.")
    if output is None:
        name = _run_name(recipe, data, changed=changed)
        folders = [Path("runs", f"{name}-seed{seed}") for seed in seeds]
    elif len(seeds) == 1:
        folders = [output]
    elif is_run(output):
        raise ValueError(
            f"{output}: this is a run, and {len(seeds)} seeds need a folder in which each has its "
            "own; expected another one. Choose it with -o."
        )
    else:
        folders = [output / f"seed{seed}" for seed in seeds]
    return [Job(recipe, data, *each) for each in zip(seeds, folders, strict=True)]


def _run_name(recipe: Any, data: DataSet | FeatureData, *, changed: bool) -> str:
    """Name a run after what it is of, so that other settings are kept elsewhere."""
    from protail.recipes import recipe_hash

    words = [recipe.name.replace("/", "-")]
    words += [recipe_hash(recipe.resolved())[:_HASH_LENGTH]] if changed else []
    words += [data.name]
    about = data.description
    words += [f"{about['imbalance']:g}"] if about.get("imbalance") is not None else []
    words += [about[key] for key, usual in _USUAL_SUBSET.items() if about.get(key, usual) != usual]
    words += ["held-out"] if "held_out" in about else []
    words += ["aside"] if "aside_from" in about else []
    return "-".join(words)


def _check_photos(jobs: Sequence[Job], *, from_scratch: bool, resume: bool) -> None:
    """Raise for too few photos, unless that was asked for or the run goes on."""
    from protail.data.images import DataSet
    from protail.experiments import check_photos_suffice, is_run

    if isinstance(data := jobs[0].data, DataSet):
        phases = jobs[0].phases
        if not (from_scratch or (resume and any(is_run(job.folder) for job in jobs))):
            check_photos_suffice(phases, data)


def _run(plan: Plan, voice: Voice, log: str | None) -> list[dict[str, Any]]:
    from protail.experiments import run_jobs

    try:
        with (
            training_progress(voice, plan.waiting if plan.has_images else []) as shown,
            logged(log, plan.waiting, shown) as watch,
        ):
            records = run_jobs(plan.jobs, plan.options, watch)
            for job, record in zip(plan.jobs, records, strict=True):
                watch.finish(job, record)
            return records
    except KeyboardInterrupt:
        words = "The same command with --resume goes on from the last checkpoint."
        if plan.options.driver == "fabric" and os.environ.get("WORLD_SIZE", "1") != "1":
            words += " If nobody stopped it, the summary of torchrun tells which process ended."
        raise KeyboardInterrupt(words) from None


def _show(plan: Plan, records: list[dict[str, Any]], voice: Voice, seconds: float) -> None:
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


def say_plan(voice: Voice, plan: Plan) -> None:
    """Say what will be done: recipe, data, device, steps."""
    from protail.data.images import DataSet, FeatureData
    from protail.experiments import data_words, expectation, feature_words, start_words

    recipe, data = plan.jobs[0].recipe, plan.jobs[0].data
    voice.say(f"{recipe.name}: {recipe.title}")
    starts = start_words(recipe.phases)
    for (stage, settings), start in zip(recipe.phases.items(), starts, strict=True):
        voice.say(f"  {stage}: {_representation_words(settings, start)}")
    if isinstance(data, FeatureData):
        voice.say(f"  representation: {feature_words(data)}")
    if recipe.classifier is not None:
        voice.say(f"  classifier: {_classifier_words(recipe.classifier)}")
    voice.say(data_words(data))
    steps = plan.steps
    if steps.image_size is not None and steps.gflops is not None:
        height, width = steps.image_size
        voice.say(f"Photos become {width} x {height} pixels, {steps.gflops:.3g} GFLOPs each.")
    if isinstance(data, DataSet) and (words := expectation(recipe.phases, data)):
        voice.say(words)
    voice.say(_device_words(plan))


def _representation_words(settings: RepresentationSettings, start: str) -> str:
    method = "" if settings.method == "standard" else f"{_part('method', settings)}: "
    return (
        f"{method}{settings.backbone}{start}, {_part('head', settings)} head, "
        f"{_part('loss', settings)}; "
        f"{counted(settings.epochs, 'epoch')}, batch {settings.batch_size}, "
        f"learning rate {settings.lr:g}, "
        f"weight decay {settings.weight_decay:g}"
    )


def _classifier_words(settings: ClassifierSettings) -> str:
    words = f"{_part('head', settings)} head"
    if settings.centroids is not None:
        words += f" from {settings.centroids} centroids"
    if settings.epochs == 0:
        return f"{words}; nothing more is learned"
    return (
        f"{words}, {_part('loss', settings)}; {settings.sampler}, epochs {settings.epochs}, "
        f"batch {settings.batch_size}, learning rate {settings.lr:g}"
    )


def _part(part: str, settings: RepresentationSettings | ClassifierSettings) -> str:
    """Name a part with its options; switches and what is as it always is are left out."""
    from protail.recipes import options_taken

    options: Mapping[str, Any] = getattr(settings, f"{part}_options")
    name: str = getattr(settings, part)
    usual = {key: option.default for key, option in options_taken(part, name).items()}
    telling = ("distance", "tau")
    shown = ", ".join(
        f"{key} {value}"
        for key, value in options.items()
        if value and not isinstance(value, bool) and (key in telling or value != usual.get(key))
    )
    return f"{name} ({shown})" if shown else name


def _device_words(plan: Plan) -> str:
    import torch

    if not plan.waiting:
        return "Nothing is left to do: it was finished before."
    options = plan.options
    device = str(options.device)
    if options.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(options.device)})"
    how = f"driver {options.driver}" + (", compiled" if options.compiled else "")
    steps = counted(plan.steps.steps if plan.has_images else plan.steps.classifier_steps, "step")
    if not plan.has_images:
        steps += " of the classifier"
    elif plan.steps.classifier_steps:
        steps += f", then {plan.steps.classifier_steps:,} of the classifier"
    seeds = ", ".join(str(job.seed) for job in plan.waiting)
    together = f"seeds {seeds} at once, each" if len(plan.waiting) > 1 else f"seed {seeds},"
    return f"On {device}, {how}: {together} {steps}"


app = make_app(train, "protail train pc-la --dataset cifar100-lt --imbalance 100")

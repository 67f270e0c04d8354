"""What ``protail train`` is about to do: checked, counted and said before it begins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from protail._messages import counted, unknown_name
from protail.cli._devices import find_device
from protail.cli._train_start import check_photos_suffice, expectation, start_words
from protail.data.augment import LOADER_NAMES, NAMES
from protail.data.images import DataSet, FeatureData
from protail.experiments import Job, Options, is_done, is_run
from protail.models.backbones import gflops
from protail.profile import ClassProfile
from protail.recipes import options_taken, recipe_hash
from protail.training import GivenFeatures, RepresentationTraining, Stream, stage_steps

if TYPE_CHECKING:
    from protail.cli.command import Voice
    from protail.recipes import Recipe
    from protail.training import ClassifierSettings, RepresentationSettings

DRIVERS = ("auto", "plain", "captured", "fabric")

# Compiling takes half a minute and then saves a fifth of each step.
_EPOCHS_WORTH_COMPILING = 50

_USUAL_DRAW = {"kind": "exp", "selection": "shuffled"}
_HASH_LENGTH = 6


@dataclass(frozen=True)
class Plan:
    """Jobs that can be run, how, and how long they are.

    Attributes
    ----------
    jobs : list of Job
        One a seed.
    waiting : list of Job
        Those of them that were not finished before.
    options : Options
        How they run.
    steps, classifier_steps : int
        Of each job, in its two stages.
    image_size : tuple of int or None
        Height and width of an image as the network gets it; None on features.
    gflops : float or None
        What such an image costs, where images are in files: they may be large.
    """

    jobs: list[Job]
    waiting: list[Job]
    options: Options
    steps: int
    classifier_steps: int
    image_size: tuple[int, int] | None = None
    gflops: float | None = None

    @property
    def has_images(self) -> bool:
        """Whether there are images to learn a representation from."""
        return isinstance(self.jobs[0].data, DataSet)


def choose_options(
    data: DataSet | FeatureData,
    epochs: int,
    *,
    device: str,
    driver: str,
    compiled: bool | None,
    **others: Any,
) -> Options:
    """Choose device, driver and whether to compile where the user has not.

    Parameters
    ----------
    data : DataSet or FeatureData
        What to train on; only what is in memory can be part of a recorded step.
    epochs : int
        Length of stage 1; 0 on features.
    device, driver : str
        "auto", or what the user wants.
    compiled : bool or None
        None compiles on a GPU where the training is long.
    **others
        Other fields of the options.

    Returns
    -------
    Options
        What a training can run with here.
    """
    if driver not in DRIVERS:
        raise ValueError(unknown_name("driver", driver, DRIVERS))
    chosen = find_device(device)
    in_memory = isinstance(data, FeatureData) or data.train.is_resident
    can_record = chosen.type == "cuda" and in_memory
    if driver == "captured" and not can_record:
        raise ValueError(
            "driver='captured' was asked for; expected a GPU and images in memory for it. Leave "
            "it to --driver auto."
        )
    if driver == "auto" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        driver = "fabric"
    if driver == "auto":
        driver = "captured" if can_record else "plain"
    if compiled is None:
        compiled = chosen.type == "cuda" and epochs >= _EPOCHS_WORTH_COMPILING
    return Options(chosen, driver, compiled, **others)


def make_plan(
    recipe: Recipe,
    data: DataSet | FeatureData,
    seeds: Sequence[int],
    output: Path | None,
    options: Mapping[str, Any],
    *,
    changed: bool = False,
    from_scratch: bool = False,
) -> Plan:
    """Put jobs together and find out, before anything is written, whether they can run.

    Parameters
    ----------
    recipe : Recipe
        What to do.
    data : DataSet or FeatureData
        With what.
    seeds : sequence of int
        A job each.
    output : Path or None
        Folder of the run; of several runs, the folder above them. None names it after what is run.
    options : mapping
        Arguments of `choose_options`.
    changed : bool
        Whether the recipe is not what its name says; its hash is then part of a run's name.
    from_scratch : bool
        Whether to train from scratch on however few photos.

    Returns
    -------
    Plan
        What to run.
    """
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"--seed {seed} is given twice; expected each seed once.")
    if output is None:
        name = _run_name(recipe, data, changed=changed)
        folders = [Path("runs", f"{name}-seed{seed}") for seed in seeds]
    elif len(seeds) == 1:
        folders = [output]
    else:
        _check_no_run(output, seeds)
        folders = [output / f"seed{seed}" for seed in seeds]
    jobs = [Job(recipe, data, *each) for each in zip(seeds, folders, strict=True)]
    n_steps, cost = 0, {}
    if isinstance(data, FeatureData):
        chosen = choose_options(data, 0, **options)
    else:
        chosen = choose_options(data, recipe.n_epochs, **options)
        if not (from_scratch or (chosen.resume and any(is_run(job.folder) for job in jobs))):
            check_photos_suffice(jobs[0].phases, data)
        trainings = [_dry_training(stage, each, data) for stage, each in jobs[0].phases.items()]
        n_steps = sum(training.n_steps for training in trainings)
        cost = _cost(trainings[-1], data)
    steps = 0 if recipe.classifier is None else _classifier_steps(recipe.classifier, data)
    waiting = [job for job in jobs if not is_done(job, chosen)]
    return Plan(jobs, waiting, chosen, n_steps, steps, **cost)


def _run_name(recipe: Recipe, data: DataSet | FeatureData, *, changed: bool) -> str:
    """Name a run after what it is of, so that other settings are kept elsewhere."""
    words = [recipe.name.replace("/", "-")]
    words += [recipe_hash(recipe.resolved())[:_HASH_LENGTH]] if changed else []
    words += [data.name]
    drawn = data.description
    words += [f"{drawn['imbalance']:g}"] if drawn.get("imbalance") is not None else []
    words += [drawn[key] for key, usual in _USUAL_DRAW.items() if drawn.get(key, usual) != usual]
    words += ["held-out"] if "held_out" in drawn else []
    words += ["aside"] if "aside_from" in drawn else []
    return "-".join(words)


def _check_no_run(output: Path, seeds: Sequence[int]) -> None:
    if is_run(output):
        raise ValueError(
            f"{output}: this is a run, and {len(seeds)} seeds need a folder in which each has its "
            "own; expected another one. Choose it with -o."
        )


def _dry_training(
    stage: str, settings: RepresentationSettings, data: DataSet
) -> RepresentationTraining:
    """Build a training on the CPU: a name that nobody knows is found before a run exists."""
    _check_augment(f"{stage}.augment", settings.augment, data)
    _check_augment(f"{stage}.second_view", settings.second_view, data)
    return RepresentationTraining(settings, data, seed=0, device=torch.device("cpu"))


def _cost(training: RepresentationTraining, data: DataSet) -> dict[str, Any]:
    size = training.image_size
    if data.train.is_resident:
        return {"image_size": size}
    return {"image_size": size, "gflops": gflops(training.method.backbone, size)}


def _classifier_steps(settings: ClassifierSettings, data: DataSet | FeatureData) -> int:
    from protail.data import make_sampler
    from protail.losses import make_loss

    make_loss(settings.loss, data.train.profile.counts, **settings.loss_options)
    if isinstance(data, FeatureData):
        given = GivenFeatures(data, torch.device("cpu")).for_stage(settings, 0)
        return stage_steps(settings, given.n_draws(Stream.of(settings), 0))[1]
    if settings.epochs or settings.centroids == "augmented":
        _check_augment("classifier.augment", settings.augment, data)
    sampler = make_sampler(settings.sampler, data.train.labels, seed=0, **settings.sampler_options)
    return stage_steps(settings, len(sampler))[1]


def _check_augment(key: str, names: Sequence[str], data: DataSet) -> None:
    """Raise where a recipe for small images in memory meets images in files, or the reverse."""
    suited = NAMES if data.train.is_resident else LOADER_NAMES
    unsuited = [name for name in names if name not in suited]
    if unsuited:
        kind = "small images in memory" if data.train.is_resident else "images in files"
        raise ValueError(
            f"{key} has {', '.join(unsuited)}, but the {kind} of {data.name} take "
            f"{', '.join(suited)}. Choose among them, as in --set "
            f'\'{key}=["{suited[0]}", "flip"]\'.'
        )


def say_plan(voice: Voice, plan: Plan) -> None:
    """Say what will be done: recipe, data, device, steps."""
    recipe, data = plan.jobs[0].recipe, plan.jobs[0].data
    voice.say(f"{recipe.name}: {recipe.title}")
    starts = start_words(recipe.phases)
    for (stage, settings), start in zip(recipe.phases.items(), starts, strict=True):
        voice.say(f"  {stage}: {_representation_words(settings, start)}")
    if isinstance(data, FeatureData):
        voice.say(f"  representation: {_given_words(data)}")
    if recipe.classifier is not None:
        voice.say(f"  classifier: {_classifier_words(recipe.classifier)}")
    voice.say(_data_words(data))
    if plan.image_size is not None and plan.gflops is not None:
        height, width = plan.image_size
        voice.say(f"Photos become {width} x {height} pixels, {plan.gflops:.3g} GFLOPs each.")
    if isinstance(data, DataSet) and (words := expectation(recipe.phases, data)):
        voice.say(words)
    voice.say(_device_words(plan))


def _representation_words(settings: RepresentationSettings, start: str) -> str:
    method = "" if settings.method == "standard" else f"{_part('method', settings)}: "
    return (
        f"{method}{settings.backbone}{start}, {_part('head', settings)} head, "
        f"{_part('loss', settings)}; "
        f"{counted(settings.epochs, 'epoch')}, batch {settings.batch_size}, rate {settings.lr:g}, "
        f"weight decay {settings.weight_decay:g}"
    )


def _given_words(data: FeatureData) -> str:
    words = f"that of {data.name}, {counted(data.n_features, 'feature')}"
    if data.stream is None:
        return f"{words}; nothing is augmented"
    return f"{words}; its stream of {len(data.stream):,} stands for sampler and augment"


def _classifier_words(settings: ClassifierSettings) -> str:
    words = f"{_part('head', settings)} head"
    if settings.centroids is not None:
        words += f" from {settings.centroids} centroids"
    if settings.epochs == 0:
        return f"{words}; nothing more is learned"
    return (
        f"{words}, {_part('loss', settings)}; {settings.sampler}, epochs {settings.epochs}, "
        f"batch {settings.batch_size}, rate {settings.lr:g}"
    )


def _part(part: str, settings: RepresentationSettings | ClassifierSettings) -> str:
    """Name a part with its options; switches and what is as it always is are left out."""
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


def _data_words(data: DataSet | FeatureData) -> str:
    profile = data.train.profile
    by = getattr(data, "group_counts", None)
    grouped = profile if by is None else ClassProfile(by)
    groups = ", ".join(f"{name} {len(group)}" for name, group in grouped.groups().items())
    skipped = data.description.get("images_skipped")
    left_out = ""
    if skipped:
        lost = counted(skipped, "image cannot be read and is", "images cannot be read and are")
        left_out = f"; {lost} left out"
    return (
        f"{data.name}: {counted(len(data.train), 'image')} to learn from, {len(data.test):,} to "
        f"judge on, {counted(profile.n_classes, 'class', 'classes')} ({groups}), "
        f"imbalance {profile.imbalance:.4g}{left_out}"
    )


def _device_words(plan: Plan) -> str:
    if not plan.waiting:
        return "Nothing is left to do: it was finished before."
    options = plan.options
    device = str(options.device)
    if options.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(options.device)})"
    how = f"driver {options.driver}" + (", compiled" if options.compiled else "")
    steps = counted(plan.steps if plan.has_images else plan.classifier_steps, "step")
    if not plan.has_images:
        steps += " of the classifier"
    elif plan.classifier_steps:
        steps += f", then {plan.classifier_steps:,} of the classifier"
    seeds = ", ".join(str(job.seed) for job in plan.waiting)
    together = f"seeds {seeds} at once, each" if len(plan.waiting) > 1 else f"seed {seeds},"
    return f"On {device}, {how}: {together} {steps}"

"""The two-stage pipeline: data, stage 1, stage 2, evaluation.

Whatever trains (runs, searches, tables) goes through `Pipeline`: `Pipeline.train` gives what
stage 1 has learned, `Pipeline.learn` any number of classifiers on it, `evaluate_heads` their
scores. What is kept on disk, shown or given up meanwhile is up to whoever calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protail._messages import counted, unknown_name
from protail.data.augment import AUGMENTS, LOADER_AUGMENTS
from protail.data.images import DataSet, FeatureData
from protail.evaluation import Evaluation
from protail.experiments.checkpoint import Checkpoint, restore_training_state, training_state
from protail.experiments.run import Run, RunError
from protail.models.backbones import gflops, gflops_with, make_backbone
from protail.models.heads import RoutedExpertsHead, make_head
from protail.recipes import Recipe
from protail.training import (
    TIMEOUT,
    ClassifierSettings,
    Epoch,
    FeatureCache,
    Features,
    FrozenFeatures,
    GivenFeatures,
    LastStream,
    RepresentationSettings,
    RepresentationTraining,
    Steps,
    count_steps,
    inferring,
    learn_heads,
    learn_stable_heads,
    logits_of,
    stage1_steps,
)

AfterEpoch = Callable[[RepresentationTraining, Epoch], None]
Save = Callable[[Mapping[str, Tensor], dict[str, Any]], None]

# Weights of the backbone that stage 2 is evaluated with, where it is not the one of stage 1.
CLASSIFIER_BACKBONE = "classifier_backbone"
DRIVERS = ("auto", "plain", "captured", "fabric")
# Compiling takes half a minute and then saves a fifth of each step.
_EPOCHS_WORTH_COMPILING = 50


@dataclass(frozen=True)
class Options:
    """How to train, which changes no result but for rounding.

    Attributes
    ----------
    device : torch.device
        Where to train.
    driver : {"plain", "captured", "fabric"}
        How a step is taken.
    compiled : bool
        Whether networks are compiled first.
    resume, overwrite : bool
        What to do with a run that is there already.
    checkpoint_seconds : float
        Time between two checkpoints, at least; they are made at the end of an epoch.
    cache : Path or None
        Where features stay for the next time.
    timeout : float
        Seconds after which a process that waits for another one of the training gives up.
    """

    device: torch.device
    driver: str
    compiled: bool = False
    resume: bool = False
    overwrite: bool = False
    checkpoint_seconds: float = 60.0
    cache: Path | None = None
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout:g}; expected more than 0 seconds.")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(
                f"{self.checkpoint_seconds:g} seconds between checkpoints (--checkpoint-every); "
                "expected 0 or more."
            )

    @property
    def head_driver(self) -> str:
        """How the steps of stage 2 are taken."""
        captured = self.device.type == "cuda" and self.driver != "plain"
        return "captured" if captured else "plain"

    @classmethod
    def automatic(cls, device: str = "auto", **others: Any) -> Options:
        """Choose device and driver: a GPU where there is one, with captured steps."""
        chosen = find_device(device)
        return cls(chosen, "captured" if chosen.type == "cuda" else "plain", **others)


def find_device(device: str | torch.device) -> torch.device:
    """Find where to compute.

    Parameters
    ----------
    device : str or torch.device
        "auto" is a GPU where there is one; or "cpu", "cuda", "cuda:1", ...

    Returns
    -------
    torch.device
        One that is there.

    Examples
    --------
    >>> from protail.experiments import find_device
    >>> find_device("cpu")
    device(type='cpu')
    >>> find_device("abacus")
    Traceback (most recent call last):
    ValueError: device='abacus' is no device; expected 'auto', 'cpu', 'cuda', 'cuda:0', ...
    """
    if isinstance(device, torch.device):
        return device
    n_gpus = torch.cuda.device_count()
    if device == "auto":
        return torch.device("cuda" if n_gpus else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device={device!r} is no device; expected 'auto', 'cpu', 'cuda', 'cuda:0', ..."
        )
    if found.type == "cuda" and (found.index or 0) >= n_gpus:
        raise ValueError(
            f"device={device!r} was asked for, but torch can use {counted(n_gpus, 'GPU')}; "
            "expected one that is there. Use --device auto or cpu."
        )
    return found


def choose_options(
    recipe: Recipe,
    data: DataSet | FeatureData,
    device: str | torch.device,
    *,
    driver: str = "auto",
    compiled: bool | None = None,
    n_processes: int = 1,
    **others: Any,
) -> Options:
    """Choose driver and whether to compile where the user has not.

    Parameters
    ----------
    recipe : Recipe
        What to train.
    data : DataSet or FeatureData
        On what.
    device : str or torch.device
        Where, as for `find_device`.
    driver : {"auto", "plain", "captured", "fabric"}
        What the user wants.
    compiled : bool or None
        None compiles on a GPU where the training is long.
    n_processes : int
        How many train together.
    **others
        Other fields of the options.

    Returns
    -------
    Options
        What a training can run with here.
    """
    if driver not in DRIVERS:
        raise ValueError(unknown_name("driver", driver, DRIVERS))
    device = find_device(device)
    can_capture = device.type == "cuda"
    if driver == "captured" and not can_capture:
        raise ValueError(
            "driver='captured' was asked for; expected a GPU for it. Leave it to --driver auto."
        )
    if driver == "auto":
        driver = "fabric" if n_processes > 1 else "captured" if can_capture else "plain"
    if compiled is None:
        n_epochs = 0 if isinstance(data, FeatureData) else recipe.n_epochs
        compiled = device.type == "cuda" and n_epochs >= _EPOCHS_WORTH_COMPILING
    return Options(device, driver, compiled, **others)


class Stage(NamedTuple):
    """What a stage has learned: a head, and the features that it is evaluated on."""

    head: nn.Module
    features: Features


class Pipeline:
    """Train stage 1 on data, then learn classifiers on what came of it.

    Parameters
    ----------
    data : DataSet or FeatureData
        What to learn from. Features are what stage 1 has come to already.
    seed : int
        Same seed, same result.
    options : Options
        How to train.
    fabric : lightning.fabric.Fabric, optional
        Where several processes train together.
    cache : FeatureCache, optional
        Where features are kept meanwhile; by default in memory, of images in files only those of
        the last epoch.

    Attributes
    ----------
    features : FrozenFeatures or GivenFeatures
        Those of the backbone that stage 1 has learned, or the given ones.
    head : nn.Module or None
        What stage 1 has learned beside it.
    """

    features: Features
    head: nn.Module | None = None

    def __init__(
        self,
        data: DataSet | FeatureData,
        seed: int,
        options: Options,
        *,
        fabric: Any = None,
        cache: FeatureCache | None = None,
    ) -> None:
        self._data, self._seed, self._options = data, seed, options
        self._fabric, self._cache = fabric, cache
        if isinstance(data, FeatureData):
            self.features = GivenFeatures(data, options.device)

    def train(
        self,
        phases: Mapping[str, RepresentationSettings],
        *,
        last: Checkpoint | None = None,
        save: Save | None = None,
        after_epoch: AfterEpoch | None = None,
    ) -> Steps[None]:
        """Train stage 1, handing over after every step, so that several trainings take turns.

        Parameters
        ----------
        phases : mapping of str to RepresentationSettings
            Stage 1, by the names of its phases.
        last : Checkpoint, optional
            What ``save`` was given last, by a training that was interrupted.
        save : callable, optional
            Given the state of the training and a record now and then, at the end of an epoch, and
            after the last one.
        after_epoch : callable, optional
            Given the training and its `Epoch`; epochs and steps count over all phases.

        Yields
        ------
        None
            After every step.
        """
        assert isinstance(self._data, DataSet)
        n_epochs = sum(settings.epochs for settings in phases.values())
        n_done = 0 if last is None else int(last.record["epoch"]) + 1
        saved_at = time.monotonic()

        def restore(training: RepresentationTraining) -> None:
            nonlocal last
            assert last is not None
            restore_training_state(last.tensors, training.state, training.optimizer)
            last = None  # it is as large as the training

        def end_epoch(training: RepresentationTraining, epoch: Epoch) -> None:
            nonlocal saved_at
            if after_epoch is not None:
                after_epoch(training, epoch)
            due = time.monotonic() - saved_at >= self._options.checkpoint_seconds
            if save is not None and (due or epoch.number + 1 == n_epochs):
                tensors = training_state(training.state, training.optimizer)
                save(tensors, {"step": epoch.step, "epoch": epoch.number})
                saved_at = time.monotonic()

        method = yield from stage1_steps(
            phases,
            self._data,
            seed=self._seed,
            device=self._options.device,
            captured=self._options.driver == "captured",
            compiled=self._options.compiled,
            fabric=self._fabric,
            done=n_done,
            restore=restore,
            after_epoch=end_epoch,
        )
        self.head, self.features = method.head, self._frozen(method.backbone)

    @property
    def representation(self) -> Stage:
        """What stage 1 has learned."""
        assert self.head is not None
        return Stage(self.head, self.features)

    def load(self, run: Run) -> None:
        """Take what a finished run has learned in stage 1."""
        assert isinstance(self._data, DataSet)
        found = load_stages(run, self._data, self._options.device)["representation"]
        assert isinstance(found.features, FrozenFeatures)
        self.head, self.features = found.head, self._frozen(found.features.backbone)

    def _frozen(self, backbone: nn.Module) -> FrozenFeatures:
        assert isinstance(self._data, DataSet)
        if self._cache is None:
            # An epoch of features of images in files takes gigabytes.
            keeps_all = self._data.train.is_resident or self._options.cache is not None
            self._cache = FeatureCache(self._options.cache) if keeps_all else LastStream()
        return FrozenFeatures(backbone, self._data, self._options.device, self._cache)

    def learn(
        self, settings: Mapping[str, ClassifierSettings], *, skip_diverged: bool = False
    ) -> dict[str, Stage]:
        """Learn classifiers on the representation, as many as can at once.

        Parameters
        ----------
        settings : mapping of str to ClassifierSettings
            Those of each classifier, by name.
        skip_diverged : bool
            Whether classifiers that diverge are left out; by default they are an error.

        Returns
        -------
        dict of str to Stage
            The classifiers by name.
        """
        learn = learn_stable_heads if skip_diverged else learn_heads
        how: dict[str, Any] = {"driver": self._options.head_driver, "first_head": self.head}
        heads = learn(settings, self.features, seed=self._seed, **how)
        return {
            name: Stage(head, self.features.for_stage(settings[name], self._seed))
            for name, head in heads.items()
        }

    def evaluate_training(self, training: RepresentationTraining) -> Evaluation:
        """Evaluate a training as it is now, for progress only."""
        assert isinstance(self._data, DataSet)
        method = training.evaluated
        frozen = FrozenFeatures(method.backbone, self._data, self._options.device)
        # In the precision of the training: a GPU has chosen its kernels for it already.
        test = frozen.of(self._data.test, training.settings.precision)
        return evaluate_logits(logits_of(method.head, test), frozen)


def load_stages(run: Run, data: DataSet | FeatureData, device: torch.device) -> dict[str, Stage]:
    """Load what a finished run has learned, by stage, ready to be evaluated on data."""
    recipe, weights = Recipe.from_resolved(run.resolved["recipe"]), run.weights()
    backbones: dict[str, Features] = {}
    stages: dict[str, Stage] = {}
    for name in (each for each in recipe.stages if each != "pretraining"):
        own = name == "classifier" and any(key.startswith(CLASSIFIER_BACKBONE) for key in weights)
        part = CLASSIFIER_BACKBONE if own else "backbone"
        if isinstance(data, FeatureData):
            features: Features = GivenFeatures(data, device)
        elif part in backbones:
            features = backbones[part]
        else:
            assert recipe.representation is not None
            backbone = make_backbone(recipe.representation.backbone)
            _fill(backbone, weights, part, run)
            features = backbones[part] = FrozenFeatures(backbone.to(device), data, device)
        settings = getattr(recipe, name)
        n_classes, options = len(features.counts), settings.head_options
        head = make_head(settings.head, n_classes, features.n_features, **options)
        _fill(head, weights, name, run)
        stages[name] = Stage(head.to(device), features)
    return stages


def _fill(module: nn.Module, weights: Mapping[str, Tensor], part: str, run: Run) -> None:
    start = f"{part}."
    own = {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}
    try:
        module.load_state_dict(own)
    except RuntimeError as error:
        raise RunError(
            f"{run.folder}: its weights do not fit the {part} of its recipe ({error}). It is "
            "damaged, or was made by another version of protail."
        ) from error


def stage_weights(stages: Mapping[str, Stage]) -> dict[str, Tensor]:
    """Name everything that stages have learned, as `load_stages` takes it."""
    modules: dict[str, nn.Module] = {}
    for name, (head, features) in stages.items():
        if isinstance(features, FrozenFeatures):
            modules.setdefault("backbone", features.backbone)
        modules[name] = head
    if isinstance(features, FrozenFeatures) and features.backbone is not modules["backbone"]:
        modules[CLASSIFIER_BACKBONE] = features.backbone
    return {
        f"{part}.{name}": tensor
        for part, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def evaluate_heads(heads: Mapping[str, nn.Module], features: Features) -> dict[str, Any]:
    """Evaluate heads on the test images, as they are and with horizontal-flip averaging.

    Parameters
    ----------
    heads : mapping of str to nn.Module
        Features to logits, by stage.
    features : FrozenFeatures or GivenFeatures
        What they are evaluated on.

    Returns
    -------
    dict
        By stage, "plain" and, where there are mirror images, "mirrored"; where there is a backbone
        also "cost", as `cost_of` gives it.
    """
    record: dict[str, Any] = {}
    for stage, head in heads.items():
        record[stage] = {
            view: evaluate_logits(logits, features).to_dict()
            for view, logits in logits_of_test(head, features).items()
        }
        if isinstance(features, FrozenFeatures):
            record[stage]["cost"] = cost_of(head, features)
    return record


def evaluate_stages(stages: Mapping[str, Stage]) -> dict[str, Any]:
    """Evaluate what stages have learned, each on its own features, as `evaluate_heads` does."""
    record: dict[str, Any] = {}
    for name, (head, features) in stages.items():
        record |= evaluate_heads({name: head}, features)
    return record


def cost_of(head: nn.Module, features: FrozenFeatures) -> dict[str, float]:
    """Say what an image takes.

    Parameters
    ----------
    head : nn.Module
        Features to logits.
    features : FrozenFeatures
        Knows the backbone and the test images.

    Returns
    -------
    dict of str to float
        "gflops" and, where a gate chooses among experts, "experts_used", the mean over the test
        images.
    """
    backbone, size = features.backbone, features.image_size
    if not isinstance(head, RoutedExpertsHead):
        return {"gflops": gflops(backbone, size)}
    with inferring(head):
        used = float(head.experts_used(features.test()).double().mean())
    return {"gflops": gflops_with(backbone, used, size), "experts_used": used}


def evaluate(stage: Stage) -> Evaluation:
    """Evaluate a head on the test images as they are, without horizontal-flip averaging."""
    test = stage.features.test()
    assert test is not None
    return evaluate_logits(logits_of(stage.head, test), stage.features)


def logits_of_test(head: nn.Module, features: Features) -> dict[str, Tensor]:
    """Compute a head's logits of the test images, by "plain" and, if there are any, "mirrored"."""
    plain, flipped = features.test(), features.test(flipped=True)
    assert plain is not None
    logits = {"plain": logits_of(head, plain)}
    if flipped is not None:
        logits["mirrored"] = (logits["plain"] + logits_of(head, flipped)) / 2
    return logits


def evaluate_logits(logits: Tensor, features: Features) -> Evaluation:
    """Evaluate logits of the test images, whose labels and classes' counts ``features`` knows."""
    confidence, predicted = torch.softmax(logits, 1).max(1)
    return Evaluation.from_predictions(
        features.test_labels,
        predicted.cpu(),
        classes=range(len(features.counts)),
        counts=features.group_counts,
        confidence=confidence.cpu(),
    )


@dataclass(frozen=True)
class StepPlan:
    """How long a training is, and what its images are.

    Attributes
    ----------
    steps, classifier_steps : int
        Of its two stages.
    image_size : tuple of int or None
        Height and width of an image as the network gets it; None on features.
    gflops : float or None
        What such an image costs, where images are in files: they may be large.
    """

    steps: int = 0
    classifier_steps: int = 0
    image_size: tuple[int, int] | None = None
    gflops: float | None = None


def plan_steps(recipe: Recipe, data: DataSet | FeatureData) -> StepPlan:
    """Find out, before anything is written, whether a recipe suits data, and how long it takes.

    Parameters
    ----------
    recipe : Recipe
        What to do; of features, only its classifier.
    data : DataSet or FeatureData
        With what.

    Returns
    -------
    StepPlan
        Steps of both stages. What does not suit the data is a ValueError that says so.
    """
    settings, cpu = recipe.classifier, torch.device("cpu")
    plan = StepPlan()
    if isinstance(data, FeatureData):
        features: Features = GivenFeatures(data, cpu)
        if settings is not None:
            features.for_stage(settings, 0)
    else:
        if settings is not None and (settings.epochs or settings.centroids == "augmented"):
            _check_augment("classifier.augment", settings.augment, data)
        n_steps, cost = 0, None
        for stage, phase in recipe.phases.items():
            _check_augment(f"{stage}.augment", phase.augment, data)
            _check_augment(f"{stage}.second_view", phase.second_view, data)
            # Built on the CPU: a name that nobody knows is found before a run exists.
            training = RepresentationTraining(phase, data, seed=0, device=cpu)
            n_steps += training.n_steps
        features = FrozenFeatures(training.method.backbone, data, cpu)
        if not data.train.is_resident:
            cost = gflops(training.method.backbone, training.image_size)
        plan = StepPlan(n_steps, 0, training.image_size, cost)
    return (
        plan
        if settings is None
        else replace(plan, classifier_steps=count_steps(settings, features))
    )


def _check_augment(key: str, names: Sequence[str], data: DataSet) -> None:
    """Raise where a recipe for small images in memory meets images in files, or the reverse."""
    suited = AUGMENTS if data.train.is_resident else LOADER_AUGMENTS
    unsuited = [name for name in names if name not in suited]
    if unsuited:
        kind = "small images in memory" if data.train.is_resident else "images in files"
        raise ValueError(
            f"{key} has {', '.join(unsuited)}, but the {kind} of {data.name} take "
            f"{', '.join(suited)}. Choose among them, as in --set "
            f'\'{key}=["{suited[0]}", "flip"]\'.'
        )

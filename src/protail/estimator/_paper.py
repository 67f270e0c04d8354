"""The paper's classifier: prototypes learned by SGD from class means, with logit adjustment.

What the user did not set is read off the training rows: whether lengths matter, the sharpness, tau
and how long to train. A class that its mean gets right is not lost to the training.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail._messages import counted
from protail.data import make_sampler
from protail.estimator._checks import Settings, warn_of_harm
from protail.estimator._features import Features, Placement, class_means
from protail.estimator._learning import calibrate
from protail.estimator._whitened import lost_classes
from protail.models.heads import PrototypeHead
from protail.training import (
    History,
    PlainDriver,
    Watcher,
    cosine,
    diverged,
    progress_bar,
    threads_for,
    train,
)

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

Codes = NDArray[np.int64]

# The rows that are looked at, and their distances from all classes.
_FEWEST_ROWS, _MOST_ROWS, _MOST_ENTRIES = 256, 4096, 2**22
# Rows that nearest class means get right but for this part are taken for memorised.
_MEMORISED_ERROR = 0.02
# Lengths are kept only where that gets this much more rows right than dropping them.
_LENGTHS_MATTER = 0.02
# The mean target-class probability that sets the sharpness, as a part of the accuracy. Memorised
# rows lie too near their class means, so theirs is lower.
_SMALLEST_PART, _MEMORISED_PART, _LARGEST_PART = 0.75, 0.8, 0.98
_PART_LOST_PER_ERROR, _CLEARLY_NOT_MEMORISED = 30.0, 0.03
# The sharpness is sought from here to its inverse, around one over the mean distance.
_SHARPEST = 1e5
# Cosines that differ by less than one over this are taken for equal.
_SHARPEST_ANGLE = 1e18
# How far logits span without a row to spare in any class, and before they are calibrated.
_USUAL_SPAN = 8.0
# Logit adjustment of a training set whose nearest means are all right; less for mild imbalance,
# where counts differ by chance. While a class is lost, fractions of it are tried in turn.
_TAU, _FULL_IMBALANCE, _SOFTER = 0.7, 10.0, (0.5, 0.25)
# Where class means get more than this wrong and classes have so many rows, prototypes move far, in
# many steps; elsewhere rows have little to say beyond their class means. A squared distance pulls
# harder the farther the row, and is learned in few steps.
_LONG_WORTH, _FEW_ROWS = 0.04, 16
_MOVEMENT, _VISITS, _FEWEST_STEPS, _MOST_STEPS = 6.0, 32, 100, 2000
_LONG_MOVEMENT, _LONG_STEPS = 768.0, 300
# So many distances take a CPU a minute or two: 8,000 classes have all of their steps.
_MOST_PAIRS = 2**32
_FEW_CLASSES, _SMALL_BATCH, _LARGE_BATCH = 256, 64, 256
_USUAL_MOMENTUM, _STABLE = 0.9, 4.0
# One row in so many is held out to calibrate the logits.
_PARTS = 5


@dataclass(frozen=True)
class Evidence:
    """Leave-one-out distances of some rows, each class weighing the same."""

    index: Codes
    distances: Tensor
    labels: Tensor
    weights: Tensor
    classes: Tensor

    @property
    def accuracy(self) -> float:
        """How often the nearest class mean is the right one."""
        right = self.distances.argmin(1) == self.labels
        return min(1.0, float((self.weights * right).sum()))

    @property
    def own_distance(self) -> float:
        """Mean distance from the target class."""
        own = self.distances.gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return float((self.weights * own).sum())

    def harmed(self, logits: Tensor) -> Codes:
        """Find the classes that a classifier loses although their class means get them right."""
        lost = lost_classes(self.distances.neg(), logits[:, self.classes], self.labels)
        return np.asarray(self.classes.cpu())[lost]

    def sharpness_at(self, probability: float) -> float:
        """Find the sharpness of logits at which the target class gets this mean probability."""
        middle = float(self.distances.mean())
        if not math.isfinite(middle):
            raise _out_of_range("large", "overflow", "smaller")
        if not middle > 0:
            return 1.0
        if middle < sys.float_info.min * _SHARPEST:
            raise _out_of_range("small", "underflow", "larger")
        distances, low, high = self.distances.double() / middle, 1 / _SHARPEST, _SHARPEST
        while high > low * 1.01:
            sharpness = math.sqrt(low * high)
            each = torch.softmax(distances * (-0.5 * sharpness), 1)
            own = float(self.weights.double() @ each.gather(1, self.labels.unsqueeze(1)))
            low, high = (sharpness, high) if own < probability else (low, sharpness)
        return math.sqrt(low * high) / middle


def _out_of_range(how: str, happens: str, wanted: str) -> ValueError:
    return ValueError(
        f"X has values so {how} that their squares {happens} in its dtype; expected {wanted} ones. "
        "Divide X by its standard deviation, give it as float64, or leave normalize='auto'."
    )


def gather_evidence(
    features: Features, labels: Codes, means: Tensor, counts: Codes, distance: str, rng: Generator
) -> Evidence | None:
    """Compare a class-balanced sample of rows with the class means."""
    n_rows = min(max(_MOST_ENTRIES // len(counts), _FEWEST_ROWS), _MOST_ROWS)
    by_class, place = _shuffled_by_class(labels, len(counts), rng)
    spare = counts >= 2
    each = max(1, n_rows // max(1, int(spare.sum())))
    chosen = by_class[(place < each) & spare[labels[by_class]]]
    index = np.sort(chosen if len(chosen) <= n_rows else rng.choice(chosen, n_rows, False))
    if len(np.unique(labels[index])) < 2:
        return None
    filled = np.flatnonzero(counts)  # a class without rows has no mean to compare with
    own = torch.from_numpy(np.searchsorted(filled, labels[index])).to(features.device)
    classes = torch.from_numpy(filled).to(features.device)
    means = means[classes]
    rows = features.take(index)
    distances = ops.distances(rows, means, distance)
    size = torch.from_numpy(counts[labels[index]]).to(rows).unsqueeze(1)
    others_mean = (means[own] * size - rows) / (size - 1)
    left_out = ops.as_distance(distance).between(rows, others_mean)
    distances.scatter_(1, own.unsqueeze(1), left_out.unsqueeze(1))
    weights = 1 / np.bincount(labels[index], minlength=len(counts))[labels[index]]
    weights = weights / weights.sum()
    return Evidence(index, distances, own, torch.from_numpy(weights).to(rows), classes)


def _shuffled_by_class(labels: Codes, n_classes: int, rng: Generator) -> tuple[Codes, Codes]:
    """Give the rows class by class in random order, and the place of each in its class."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels, minlength=n_classes)
    return by_class, np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[by_class]]


def held_out(index: Codes, labels: Codes, n_classes: int, rng: Generator) -> Codes:
    """Choose one in five of some rows, class by class, and no class's last."""
    by_class, place = _shuffled_by_class(labels[index], n_classes, rng)
    # Each class starts elsewhere, so that small classes do not all have one, or all have none.
    start = rng.integers(_PARTS, size=n_classes)[labels[index[by_class]]]
    return np.sort(index[by_class[(place + start) % _PARTS == 0]])


@dataclass(frozen=True)
class Space:
    """Where prototypes are learned."""

    features: Features
    placement: Placement
    means: Tensor
    logit_scale: float
    tau: float
    evidence: Evidence | None
    accuracy: float | None  # leave-one-out, of the nearest class mean
    memorised: bool  # or so easy that nothing can be learned from holding some out
    own_distance: float


def choose_space(
    features: Features, labels: Codes, counts: Codes, settings: Settings, rng: Generator
) -> Space:
    """Take what the user fixed and choose the rest from the training rows."""
    distance, power = settings.distance, ops.as_distance(settings.distance).power
    codes = torch.from_numpy(labels).to(features.device)

    def placed_at(placement: Placement) -> tuple[Placement, Features, Tensor, Evidence | None]:
        placed = features.placed_as(placement)
        means = class_means(placed, codes, len(counts))
        found = gather_evidence(placed, labels, means, counts, distance, rng)
        return placement, placed, means, found

    auto = settings.normalize == "auto"
    radius = 1.0 if settings.normalize == "auto" else settings.normalize
    placement, placed, means, evidence = placed_at(Placement(radius))
    if auto and power > 0 and evidence is not None:
        other = placed_at(Placement())
        if other[3] is not None and other[3].accuracy > evidence.accuracy + _LENGTHS_MATTER:
            placement, placed, means, evidence = other
    if power > 0 and radius is None and evidence is not None and not evidence.distances.any():
        rows = placed.take(evidence.index)
        if bool((rows != rows[0]).any()):
            raise _out_of_range("small", "underflow", "larger")
    accuracy = None if evidence is None else evidence.accuracy
    memorised = settings.memorised
    if memorised == "auto":
        memorised = accuracy is not None and 1 - accuracy < _MEMORISED_ERROR
    own_distance = 1.0 if evidence is None else evidence.own_distance
    sharpness = _sharpness(evidence, means, counts, distance)
    tau = settings.logit_adjustment
    if tau == "auto":
        filled = counts[counts > 0]
        imbalance = math.log(filled.max() / filled.min()) / math.log(_FULL_IMBALANCE)
        tau = _TAU * (0.5 if accuracy is None else accuracy) * min(1.0, imbalance)
        if power > 0 and not auto:
            # Tau moves boundaries by tau over the sharpness: at another sharpness, another tau.
            tau *= min(1.0, 1 / sharpness)
    scale = logit_scale = 1.0
    if power == 0:  # longer rows are no farther: logits grow instead
        logit_scale = min(sharpness, _SHARPEST_ANGLE)
    elif auto:
        scale = sharpness ** (1 / power)
        placement = placement.scaled(scale)
        placed, means = placed.placed_as(placement), means * scale
    own_distance *= sharpness if power == 0 or auto else 1
    tau = float(tau)
    return Space(
        placed, placement, means, logit_scale, tau, evidence, accuracy, memorised, own_distance
    )


def _sharpness(evidence: Evidence | None, means: Tensor, counts: Codes, distance: str) -> float:
    if evidence is None:
        means = means[torch.from_numpy(counts > 0).to(means.device)]
        spread = float(ops.distances(means, means.mean(0, keepdim=True), distance).mean())
        return _USUAL_SPAN / spread if spread > 0 else 1.0
    error = 1 - evidence.accuracy
    part = 1 - _PART_LOST_PER_ERROR * error * len(counts) / counts.sum()
    part = min(max(part, _SMALLEST_PART), _LARGEST_PART)
    part = _MEMORISED_PART + min(1, error / _CLEARLY_NOT_MEMORISED) * (part - _MEMORISED_PART)
    return evidence.sharpness_at(part * evidence.accuracy)


@dataclass(frozen=True)
class Plan:
    """One training: its steps and rates."""

    n_steps: int
    batch_size: int
    lr: float
    temperature_lr: float
    momentum: float


def make_plan(
    space: Space, n_classes: int, epoch_length: int, settings: Settings, *, long: bool
) -> Plan:
    """Take what the user fixed and choose the rest from the number of classes."""
    size = settings.batch_size
    if size == "auto":
        size = _SMALL_BATCH if n_classes <= _FEW_CLASSES else _LARGE_BATCH
    if settings.epochs == "auto":
        steps = min(max(math.ceil(_VISITS * n_classes / size), _FEWEST_STEPS), _MOST_STEPS)
        steps = max(steps, _LONG_STEPS) if long else steps
        steps = min(steps, max(_FEWEST_STEPS, _MOST_PAIRS // (size * n_classes)))
    else:
        steps = settings.epochs * math.ceil(epoch_length / size)
    steps = steps if settings.max_steps is None else min(steps, settings.max_steps)
    if settings.lr != "auto":
        lr = settings.lr
    else:
        # A movement is spread over the steps: a class gets one part in C of the mean's gradient.
        measure = ops.as_distance(settings.distance)
        lr = 2 * (_LONG_MOVEMENT if long else _MOVEMENT) * n_classes / max(steps, 1)
        lr *= (1 - settings.momentum) / (1 - _USUAL_MOMENTUM)
        lr /= max(1.0, space.logit_scale) ** 2 * max(1.0, measure.steepness(space.own_distance))
        if measure.power > 1:
            lr = min(lr, _STABLE * n_classes / max(space.own_distance, 1.0))
    return Plan(steps, size, lr if steps else 0.0, settings.temperature_lr, settings.momentum)


class Task(NamedTuple):
    """What is learned, whichever rows it is learned from."""

    features: Features
    labels: Codes
    distance: str
    temperature: str | None
    logit_scale: float
    adjustment: Tensor
    sampling: str


def adjustment(counts: Codes, tau: float, like: Tensor) -> Tensor:
    """Give what training adds to the logits: tau * log N; a class without rows takes no part."""
    added = tau * np.log(np.maximum(counts, 1))
    return torch.from_numpy(np.where(counts > 0, added, -np.inf)).to(like)


def learn(
    task: Task,
    head: PrototypeHead,
    plan: Plan,
    seed: int,
    *,
    index: Codes | None = None,
    watch: Watcher | None = None,
) -> History:
    """Train a head in place, on all rows or those of an index."""
    if plan.n_steps == 0:
        return History()
    codes = torch.from_numpy(task.labels).to(task.features.device)
    labels = task.labels if index is None else task.labels[index]
    sampler = make_sampler(task.sampling, labels, seed=seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in count():
            for drawn in sampler.batches(plan.batch_size, epoch):
                rows = drawn if index is None else index[drawn]
                yield task.features.take(rows), codes[torch.from_numpy(rows).to(codes.device)]

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, target = batch
        if task.logit_scale == 1:
            return head.loss(rows, target, adjustment=task.adjustment)
        return F.cross_entropy(task.logit_scale * head(rows) + task.adjustment, target)

    groups = head.parameter_groups(
        lr=plan.lr, temperature_lr=plan.temperature_lr, momentum=plan.momentum
    )
    driver = PlainDriver(loss, torch.optim.SGD(groups, fused=True))
    with threads_for(plan.batch_size * head.prototypes.numel()):
        history = train(
            driver, batches(), plan.n_steps, schedule=cosine, stop=diverged, watch=watch
        )
    if history.stopped_early:
        raise ValueError(
            f"the loss was {history.losses[-1]} after {counted(history.steps[-1], 'step')} with "
            f"lr={plan.lr:g} and temperature_lr={plan.temperature_lr:g}; expected a finite one. "
            "Lower the rates, leave lr='auto', or scale the columns of X alike "
            "(sklearn.preprocessing.StandardScaler)."
        )
    return history


@dataclass(frozen=True)
class Fit:
    """What came of it; ``harmed`` are the codes of classes that class means would get right."""

    head: PrototypeHead
    space: Space
    plan: Plan
    scale: float
    history: History
    harmed: Codes


def fit_prototypes(
    features: Features,
    labels: Codes,
    counts: Codes,
    settings: Settings,
    seed: int,
    *,
    say: Callable[[str], None],
) -> Fit:
    """Fit a head to features given once."""
    rng = np.random.default_rng(seed)
    space = choose_space(features, labels, counts, settings, rng)
    n_classes, n_draws = int((counts > 0).sum()), len(make_sampler(settings.sampling, labels))
    error = 0.0 if space.accuracy is None else 1 - space.accuracy
    long = not space.memorised and error >= _LONG_WORTH and len(labels) >= _FEW_ROWS * n_classes
    long = long and ops.as_distance(settings.distance).power <= 1
    long = long and settings.epochs == "auto" and settings.max_steps is None
    plan, short = (make_plan(space, n_classes, n_draws, settings, long=x) for x in (long, False))
    options = [(space.tau, plan)]
    if settings.logit_adjustment == "auto":  # else what the user fixed stays
        options += [(part * space.tau, plan) for part in _SOFTER] + [(0.0, short)]
        if settings.epochs == "auto":
            options.append((0.0, replace(short, n_steps=0, lr=0.0)))
    harmed = np.empty(0, np.int64)
    for tau, plan in options:
        if len(harmed):
            lost = counted(len(harmed), "class", "classes")
            say(f"{lost} lost that class means get right; trying a milder training")
        space = replace(space, tau=tau)
        say(_description(space, plan, settings))
        task = Task(
            features=space.features,
            labels=labels,
            distance=settings.distance,
            temperature=settings.temperature,
            logit_scale=space.logit_scale,
            adjustment=adjustment(counts, space.tau, space.means),
            sampling=settings.sampling,
        )
        head = _head(task, space.means)
        shown = settings.verbose and plan.n_steps
        with progress_bar("prototypes", plan.n_steps) if shown else nullcontext() as watch:
            history = learn(task, head, plan, seed, watch=watch)
        if space.evidence is not None:
            with torch.no_grad():
                harmed = space.evidence.harmed(head(space.features.take(space.evidence.index)))
        if not len(harmed):
            break
    scale = 1.0
    if space.evidence is not None and not space.memorised:
        scale = _calibrated_scale(task, space.evidence.index, len(counts), plan, rng, seed)
    return Fit(head, space, plan, scale * space.logit_scale, history, harmed)


def learn_as_published(
    fitted: PrototypeClassifier, features: Features, codes: Codes, settings: Settings
) -> None:
    """Fit a head to features, and keep all that came of it in the classifier."""
    counts, say = fitted.class_counts_, fitted._say
    fit = fit_prototypes(features, codes, counts, settings, fitted._seed(), say=say)
    space, plan = fit.space, fit.plan
    keep_head(fitted, fit.head)
    fitted.class_means_ = space.means.cpu().numpy()
    fitted.scale_ = fit.scale
    fitted.normalize_ = space.placement.radius
    fitted.feature_scale_ = space.placement.factor
    fitted.history_ = {"step": fit.history.steps, "loss": fit.history.losses}
    fitted.choices_ = {
        "method": "paper",
        "distance": settings.distance,
        "temperature": settings.temperature,
        "leave_one_out_accuracy": space.accuracy,
        "memorised": space.memorised,
        "normalize": fitted.normalize_,
        "feature_scale": fitted.feature_scale_,
        "logit_adjustment": space.tau,
        "logit_scale": space.logit_scale,
        "lr": plan.lr,
        "steps": plan.n_steps,
        "batch_size": plan.batch_size,
    }
    warn_of_harm(fitted.classes_[fit.harmed])


def keep_head(fitted: PrototypeClassifier, head: PrototypeHead) -> None:
    """Keep what a head has learned in the classifier."""
    temperature = head.temperature
    fitted.prototypes_ = head.prototypes.detach().cpu().numpy()
    fitted.temperature_ = None if temperature is None else temperature.detach().cpu().numpy()


def _head(task: Task, prototypes: Tensor) -> PrototypeHead:
    head = PrototypeHead(*prototypes.shape, distance=task.distance, temperature=task.temperature)
    head = head.to(prototypes.device, prototypes.dtype)
    return head.set_prototypes(prototypes)


def _calibrated_scale(
    task: Task, index: Codes, n_classes: int, plan: Plan, rng: Generator, seed: int
) -> float:
    """Train once more without some rows, and find the factor on the logits that suits these."""
    out = held_out(index, task.labels, n_classes, rng)
    if len(np.unique(task.labels[out])) < 2:
        return 1.0
    others = task.labels.copy()
    others[out] = n_classes  # a class of its own, of which the mean is not needed
    codes = torch.from_numpy(others).to(task.features.device)
    head = _head(task, class_means(task.features, codes, n_classes + 1)[:-1])
    learn(task, head, plan, seed, index=np.flatnonzero(others < n_classes))
    truth = torch.from_numpy(task.labels[out]).to(codes.device)
    filled = task.adjustment > -torch.inf
    with torch.no_grad():
        logits = task.logit_scale * head(task.features.take(out))
    span = float((logits[:, filled].amax(1) - logits[:, filled].mean(1)).mean())
    unit = _USUAL_SPAN / span if span > 0 else 1.0
    # Classes that all count one row leave nothing to adjust: tau stays 0.
    return unit * calibrate(logits * unit, truth, filled.to(logits)).sharpness


def _description(space: Space, plan: Plan, settings: Settings) -> str:
    seen = "unknown" if space.accuracy is None else f"{100 * space.accuracy:.1f} %"
    radius = space.placement.radius
    lengths = f"rows scaled to length {radius:.3g}" if radius is not None else "lengths kept"
    return (
        f"leave-one-out accuracy of the class means {seen}"
        f"{' (taken for memorised)' if space.memorised else ''}; {settings.distance}, {lengths}, "
        f"logit adjustment {space.tau:.2f}, {counted(plan.n_steps, 'step')} of "
        f"{counted(plan.batch_size, 'row')}, learning rate {plan.lr:.3g}"
    )

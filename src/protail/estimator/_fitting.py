"""One fit: choose space and plan on held-out rows, learn, calibrate, check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail._messages import counted
from protail.data import make_sampler
from protail.estimator._choosing import Space, choose_space
from protail.estimator._features import Features, Placement, class_means
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

Auto = Literal["auto"]


class _Effort(NamedTuple):
    """How far prototypes may move, how often each class is seen, and the limits on the steps."""

    movement: float
    visits: int
    fewest_steps: int
    most_steps: int


# Few steps near the class means for memorised or scarce rows; more where rows have more to say.
_EFFORTS = (
    _Effort(6.0, 32, 100, 2000),
    _Effort(64.0, 256, 120, 250),
    _Effort(768.0, 640, 300, 400),
)
# The longest training is offered only where nearest means leave this much to learn, and none but
# the shortest where classes have so few rows that class means are hard to beat.
_LONG_WORTH = 0.04
_FEW_ROWS = 16
_FEW_CLASSES = 256
_SMALL_BATCH, _LARGE_BATCH = 64, 256
_USUAL_MOMENTUM = 0.9
_STABLE = 4.0


@dataclass(frozen=True)
class Plan:
    """One training: its steps and rates."""

    n_steps: int
    batch_size: int
    lr: float
    temperature_lr: float
    momentum: float


def plans(
    space: Space,
    n_classes: int,
    n_rows: int,
    epoch_length: int,
    *,
    distance: str,
    epochs: int | Auto,
    max_steps: int | None,
    batch_size: int | Auto,
    lr: float | Auto,
    temperature_lr: float,
    momentum: float,
) -> list[Plan]:
    """List the trainings worth trying, shortest first; what the user fixed is the same in all."""
    efforts: tuple[_Effort, ...] = _EFFORTS
    if space.accuracy is None or space.memorised or n_rows < _FEW_ROWS * n_classes:
        efforts = _EFFORTS[:1]
    elif 1 - space.accuracy < _LONG_WORTH:
        efforts = _EFFORTS[:2]
    size = batch_size
    if size == "auto":
        size = _SMALL_BATCH if n_classes <= _FEW_CLASSES else _LARGE_BATCH
    found: list[Plan] = []
    shortest = 0  # no longer training has fewer steps than a shorter one
    for effort in efforts:
        steps = max(effort.fewest_steps, math.ceil(effort.visits * n_classes / size))
        steps = min(steps, max(effort.most_steps, shortest))
        shortest = max(shortest, steps)
        if epochs != "auto":
            steps = epochs * math.ceil(epoch_length / size)
        steps = steps if max_steps is None else min(steps, max_steps)
        rate = _rate(effort.movement, steps, n_classes, space, distance, momentum)
        rate = rate if lr == "auto" else lr
        rate = rate if steps else 0.0
        plan = Plan(steps, size, rate, temperature_lr, momentum)
        if plan not in found:
            found.append(plan)
    return found


def _rate(
    movement: float, steps: int, n_classes: int, space: Space, distance: str, momentum: float
) -> float:
    """Spread a movement over the steps: a class gets one part in C of the mean's gradient."""
    measure = ops.as_distance(distance)
    rate = 2 * movement * n_classes / max(steps, 1) * (1 - momentum) / (1 - _USUAL_MOMENTUM)
    rate /= max(1.0, space.logit_scale) ** 2 * max(1.0, measure.steepness(space.own_distance))
    if measure.power <= 1:
        return rate
    return min(rate, _STABLE * n_classes / max(space.own_distance, 1.0))


Batch = tuple[Tensor, Tensor]


class DivergenceError(ValueError):
    """The loss of a training stopped being a number."""


class Task(NamedTuple):
    """What is learned, whichever rows it is learned from."""

    features: Features
    labels: NDArray[np.int64]
    distance: str
    temperature: str | None
    logit_scale: float
    adjustment: Tensor
    sampling: str


def make_head(task: Task, prototypes: Tensor) -> PrototypeHead:
    """Make a head with these prototypes, untrained."""
    head = PrototypeHead(*prototypes.shape, distance=task.distance, temperature=task.temperature)
    head = head.to(prototypes.device, prototypes.dtype)
    return head.set_prototypes(prototypes)


def learn(
    task: Task,
    head: PrototypeHead,
    plan: Plan,
    seed: int,
    *,
    index: NDArray[np.int64] | None = None,
    watch: Watcher | None = None,
) -> History:
    """Train a head in place."""
    if plan.n_steps == 0:
        return History()

    def loss(batch: Batch) -> Tensor:
        rows, target = batch
        if task.logit_scale == 1:
            return head.loss(rows, target, adjustment=task.adjustment)
        return F.cross_entropy(task.logit_scale * head(rows) + task.adjustment, target)

    groups = head.parameter_groups(
        lr=plan.lr, temperature_lr=plan.temperature_lr, momentum=plan.momentum
    )
    driver = PlainDriver(loss, torch.optim.SGD(groups, fused=True))
    stream = _stream(task, plan.batch_size, seed, index)
    with threads_for(plan.batch_size * head.prototypes.numel()):
        history = train(driver, stream, plan.n_steps, schedule=cosine, stop=diverged, watch=watch)
    if history.stopped_early:
        raise DivergenceError(
            f"the loss was {history.losses[-1]} after {counted(history.steps[-1], 'step')} with "
            f"lr={plan.lr:g} and temperature_lr={plan.temperature_lr:g}; expected a finite one. "
            "Lower the rates, or leave lr='auto'."
        )
    return history


def epoch_length(task: Task) -> int:
    """Count the draws of one epoch."""
    return len(make_sampler(task.sampling, task.labels))


def _stream(
    task: Task, batch_size: int, seed: int, index: NDArray[np.int64] | None
) -> Iterator[Batch]:
    labels = task.labels if index is None else task.labels[index]
    sampler = make_sampler(task.sampling, labels, seed=seed)
    codes = torch.from_numpy(task.labels).to(task.features.device)
    for epoch in count():
        for drawn in sampler.batches(batch_size, epoch):
            rows = drawn if index is None else index[drawn]
            target = codes.index_select(0, torch.from_numpy(rows).to(codes.device))
            yield task.features.take(rows), target


Fold = tuple[NDArray[np.int64], NDArray[np.int64]]

# Up to this many rows every row is held out once, in three folds; above, one part of them is.
_FOLDED_ROWS = 20_000
_FOLDS = 3
_PARTS = 5
_MOST_HELD_OUT = 8192
# The scale is sought within this factor of the one at which logits span the usual units.
_USUAL_SPAN = 8.0
_LARGEST_FACTOR = 32.0
# A row that a classifier gets wrong for sure shall not outweigh all others.
_SMALLEST_PROBABILITY = 0.01


def held_out_folds(
    labels: NDArray[np.int64], rng: np.random.Generator, *, one_part: bool = False
) -> Iterator[Fold]:
    """Divide rows into those to train on and those to hold out, class by class."""
    one_part = one_part or len(labels) > _FOLDED_ROWS
    n_folds = _PARTS if one_part else _FOLDS
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[by_class]]
    # Each class starts at another fold, so that small classes do not all fall into the first.
    fold = (place + rng.integers(n_folds, size=len(counts))[labels[by_class]]) % n_folds
    fold[counts[labels[by_class]] < 2] = -1
    for number in range(1 if one_part else n_folds):
        out = by_class[fold == number]
        if len(out) > _MOST_HELD_OUT:
            out = rng.choice(out, _MOST_HELD_OUT, replace=False)
        if len(out):
            yield np.setdiff1d(np.arange(len(labels)), out), np.sort(out)


def likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean log-probability of the target class, a class weighing as the root of its rows."""
    probability = torch.softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
    weights = torch.bincount(labels)[labels].to(logits).rsqrt()
    return float((weights * (probability + _SMALLEST_PROBABILITY).log()).sum() / weights.sum())


def calibrated_scale(logits: Tensor, labels: Tensor) -> float:
    """Find the factor on the logits that makes held-out labels most likely, classes alike."""
    finite = logits.isfinite()
    middle = logits.masked_fill(~finite, 0).sum(1) / finite.sum(1)
    span = float((logits.amax(1) - middle).mean())
    if not span > 0 or bool((labels == labels[0]).all()):
        return 1.0
    weights = torch.bincount(labels)[labels].to(logits).reciprocal()
    weights /= weights.sum()
    own = logits.gather(1, labels.unsqueeze(1)).squeeze(1)

    def surprise(log_scale: float) -> float:
        scale = float(np.exp(log_scale))
        return float((weights * (torch.logsumexp(logits * scale, 1) - own * scale)).sum())

    usual = np.log(_USUAL_SPAN / span)
    low, high = usual - np.log(_LARGEST_FACTOR), usual + np.log(_LARGEST_FACTOR)
    while high - low > 1e-3:  # convex in the scale, so unimodal in its logarithm
        third = (high - low) / 3
        if surprise(low + third) <= surprise(high - third):
            high -= third
        else:
            low += third
    return float(np.exp((low + high) / 2))


_AS_THEY_ARE = Placement()
# Fractions of the chosen logit adjustment that are tried in turn while a class is lost.
_SOFTER = (0.5, 0.25)


@dataclass(frozen=True)
class Settings:
    """What the user asked of the fit, checked."""

    distance: str
    temperature: str | None
    logit_adjustment: float | Auto
    normalize: float | Auto | None
    epochs: int | Auto
    max_steps: int | None
    lr: float | Auto
    temperature_lr: float
    momentum: float
    batch_size: int | Auto
    sampling: str
    verbose: bool


@dataclass(frozen=True)
class Fit:
    """What came of it; ``harmed`` are the codes of classes that class means would get right."""

    head: PrototypeHead
    space: Space
    plan: Plan
    scale: float
    history: History
    harmed: NDArray[np.int64]


def fit_prototypes(
    features: Features,
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    settings: Settings,
    seed: int,
    *,
    say: Callable[[str], None],
) -> Fit:
    """Fit a head to features given once."""
    rng = np.random.default_rng(seed)
    space = choose_space(
        features,
        labels,
        counts,
        distance=settings.distance,
        normalize=settings.normalize,
        tau=settings.logit_adjustment,
        rng=rng,
    )
    n_draws = epoch_length(_task(space, labels, counts, settings))
    options = plans(
        space,
        int((counts > 0).sum()),
        len(labels),
        n_draws,
        distance=settings.distance,
        epochs=settings.epochs,
        max_steps=settings.max_steps,
        batch_size=settings.batch_size,
        lr=settings.lr,
        temperature_lr=settings.temperature_lr,
        momentum=settings.momentum,
    )
    fit = _fit_in(space, options, labels, counts, settings, rng, seed, say)
    for milder_space, milder_plan in _milder(fit, options[0], settings):
        if not len(fit.harmed):
            break
        lost = counted(len(fit.harmed), "class", "classes")
        say(f"{lost} lost that class means get right; trying a milder training")
        fit = _fit_in(milder_space, [milder_plan], labels, counts, settings, rng, seed, say)
    return fit


def _milder(fit: Fit, shortest: Plan, settings: Settings) -> Iterator[tuple[Space, Plan]]:
    """Soften what was chosen, step by step, down to the class means; what the user fixed stays."""
    if settings.logit_adjustment != "auto":
        return
    for fraction in _SOFTER:
        yield replace(fit.space, tau=fraction * fit.space.tau), fit.plan
    bare = replace(fit.space, tau=0.0)
    yield bare, shortest
    if settings.epochs == "auto":
        yield bare, replace(shortest, n_steps=0, lr=0.0)


def _fit_in(
    space: Space,
    options: list[Plan],
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    settings: Settings,
    rng: np.random.Generator,
    seed: int,
    say: Callable[[str], None],
) -> Fit:
    """Fit a head in a space that is chosen, by the likeliest of some plans."""
    task = _task(space, labels, counts, settings)
    plan, scale = _choose_plan(task, space, counts, options, rng, seed)
    say(_description(space, plan, settings))
    head = make_head(task, space.means)
    with _bar(settings.verbose, plan) as watch:
        history = learn(task, head, plan, seed, watch=watch)
    harmed = np.empty(0, np.int64)
    if space.evidence is not None:
        with torch.no_grad():
            harmed = space.evidence.harmed(head(space.features.take(space.evidence.index)))
    return Fit(head, space, plan, scale * space.logit_scale, history, harmed)


def _task(
    space: Space, labels: NDArray[np.int64], counts: NDArray[np.int64], settings: Settings
) -> Task:
    return Task(
        features=space.features,
        labels=labels,
        distance=settings.distance,
        temperature=settings.temperature,
        logit_scale=space.logit_scale,
        adjustment=adjustment(counts, space.tau, space.means),
        sampling=settings.sampling,
    )


def adjustment(counts: NDArray[np.int64], tau: float, like: Tensor) -> Tensor:
    """Give what training adds to the logits: tau * log N; a class without rows takes no part."""
    added = tau * np.log(np.maximum(counts, 1))
    return torch.from_numpy(np.where(counts > 0, added, -np.inf)).to(like)


def _choose_plan(
    task: Task,
    space: Space,
    counts: NDArray[np.int64],
    options: list[Plan],
    rng: np.random.Generator,
    seed: int,
) -> tuple[Plan, float]:
    """Choose the plan, and calibrate its logits, on rows held out of the training."""
    if space.memorised:
        return options[0], 1.0
    folds = list(held_out_folds(task.labels, rng, one_part=len(options) == 1))
    if not folds:
        return options[0], 1.0
    truth = torch.from_numpy(task.labels[np.concatenate([out for _, out in folds])])
    truth = truth.to(space.means.device)
    tried: list[tuple[float, Plan, Tensor]] = []
    for plan in options:
        try:
            parts = [_fold_logits(task, space, counts, plan, fold, seed) for fold in folds]
        except DivergenceError:
            if not tried:  # not even the shortest goes well
                raise
            break
        logits = torch.cat(parts)
        tried.append((likelihood(logits, truth), plan, logits))
    _, plan, logits = max(tried, key=lambda trial: trial[0])
    return plan, calibrated_scale(logits, truth)


def _fold_logits(
    task: Task,
    space: Space,
    counts: NDArray[np.int64],
    plan: Plan,
    fold: Fold,
    seed: int,
) -> Tensor:
    kept, out = fold
    rows = task.features.take(out)
    head = make_head(task, _means_without(space.means, counts, rows, task.labels[out]))
    learn(task, head, plan, seed, index=kept)
    with torch.no_grad():
        logits: Tensor = space.logit_scale * head(rows)
    return logits.masked_fill(torch.from_numpy(counts == 0).to(logits.device), -torch.inf)


def _means_without(
    means: Tensor, counts: NDArray[np.int64], rows: Tensor, labels: NDArray[np.int64]
) -> Tensor:
    """Take held-out rows out of the class means; the data need not be read again."""
    codes = torch.from_numpy(labels).to(means.device)
    placed = Features(rows, _AS_THEY_ARE, means.device, torch.float64)
    taken = class_means(placed, codes, len(counts))
    size = torch.from_numpy(counts).to(means.device, torch.float64).unsqueeze(1)
    out = torch.bincount(codes, minlength=len(counts)).to(size).unsqueeze(1)
    return ((means.double() * size - taken * out) / (size - out).clamp(min=1)).to(means.dtype)


def _bar(verbose: bool, plan: Plan) -> AbstractContextManager[Watcher | None]:
    return progress_bar("prototypes", plan.n_steps) if verbose and plan.n_steps else nullcontext()


def _description(space: Space, plan: Plan, settings: Settings) -> str:
    seen = "unknown" if space.accuracy is None else f"{100 * space.accuracy:.1f} %"
    radius = space.features.placement.radius
    lengths = f"rows scaled to length {radius:.3g}" if radius is not None else "lengths kept"
    return (
        f"leave-one-out accuracy of the class means {seen}"
        f"{' (taken for memorised)' if space.memorised else ''}; {settings.distance}, {lengths}, "
        f"logit adjustment {space.tau:.2f}, {counted(plan.n_steps, 'step')} of "
        f"{counted(plan.batch_size, 'row')}, learning rate {plan.lr:.3g}"
    )

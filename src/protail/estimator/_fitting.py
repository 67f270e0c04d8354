"""One fit: choose the space, choose the plan on held-out rows, learn, calibrate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail._messages import counted
from protail.estimator._features import Features, Placement, class_means
from protail.estimator._held_out import Fold, calibrated_scale, held_out_folds, likelihood
from protail.estimator._plan import Plan, plans
from protail.estimator._space import Space, choose_space
from protail.estimator._training import DivergenceError, Task, epoch_length, learn, make_head
from protail.heads import PrototypeHead
from protail.training import History, progress_bar
from protail.training.loop import Watcher

Auto = Literal["auto"]
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
    """Fit a head to features given once.

    Parameters
    ----------
    features : Features
        All training rows, as they came.
    labels, counts : ndarray of int
        Class codes, and rows of each class (0 for a class that is still to come).
    settings : Settings
        What the user asked for.
    seed : int
        Same seed, same bits.
    say : callable
        Told what is being done.

    Returns
    -------
    Fit
        The trained head and what was chosen.
    """
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
    """Choose the plan, and calibrate its logits, on rows held out of the training.

    Memorised rows would call any logits too timid; there the rule that set their sharpness (an
    own class at 80 %) is the better guess.
    """
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
        f"{counted(plan.batch_size, 'row')}, rate {plan.lr:.3g}"
    )

"""Going on after a fit of the paper's method: more rows, and new classes."""

from __future__ import annotations

import warnings
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._checks import Settings
from protail.estimator._features import Features, class_means
from protail.estimator._paper import Plan, Task, adjustment, keep_head, learn
from protail.models.heads import PrototypeHead
from protail.training import PlainDriver, cosine, train

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

# So many known classes at most, those nearest to the new ones, take part in the training.
_MOST_NEIGHBOURS = 1024
# The part of all class means that may be taken for another class. A new class that looks like a
# known one is no reason to give up what was learned of all others.
_MOST_WRONG = 0.1


def learn_on(
    fitted: PrototypeClassifier,
    features: Features,
    codes: NDArray[np.int64],
    settings: Settings,
) -> None:
    """Move prototypes along with their class means, and train them on the new rows."""
    counts = np.bincount(codes, minlength=len(fitted.classes_))
    before, total = fitted.class_counts_, fitted.class_counts_ + counts
    new = class_means(features, torch.from_numpy(codes).to(features.device), len(counts))
    fraction = (counts / np.maximum(total, 1))[:, None]
    means = fitted.class_means_ + (new.cpu().numpy() - fitted.class_means_) * fraction
    moved = fitted.prototypes_ + (means - fitted.class_means_)
    # A class that had no rows starts where every class does: at its mean.
    moved[before == 0] = means[before == 0]
    fitted.prototypes_ = moved.astype(fitted.prototypes_.dtype)
    fitted.class_means_ = means.astype(fitted.class_means_.dtype)
    fitted.class_counts_ = total

    head = head_of(fitted, features.device)
    choices = fitted.choices_
    like = head.prototypes.detach()
    # Classes without new rows stay out of the softmax: they could only be pushed away.
    present = np.where(counts > 0, total, 0)
    task = Task(
        features=features,
        labels=codes,
        distance=settings.distance,
        temperature=settings.temperature,
        logit_scale=choices["logit_scale"],
        adjustment=adjustment(present, choices["logit_adjustment"], like),
        sampling=settings.sampling,
    )
    history = learn(task, head, _shorter_plan(fitted, counts, settings), fitted._seed())
    keep_head(fitted, head)
    last = fitted.history_["step"][-1] if fitted.history_["step"] else 0
    fitted.history_ = {
        "step": fitted.history_["step"] + [last + step for step in history.steps],
        "loss": fitted.history_["loss"] + history.losses,
    }


def _shorter_plan(
    fitted: PrototypeClassifier, counts: NDArray[np.int64], settings: Settings
) -> Plan:
    """Give new rows the part of the training that they are of all rows."""
    choices = fitted.choices_
    part = counts.sum() / fitted.class_counts_.sum()
    n_present = int((counts > 0).sum())
    # A class gets one part in n_present of the gradient now.
    lr = choices["lr"] * n_present / max(1, int((fitted.class_counts_ > 0).sum()))
    n_steps = round(choices["steps"] * part) if n_present > 1 else 0
    return Plan(n_steps, choices["batch_size"], lr, settings.temperature_lr, settings.momentum)


def head_of(fitted: PrototypeClassifier, device: torch.device) -> PrototypeHead:
    """Make the head of a fitted classifier."""
    prototypes = torch.from_numpy(fitted.prototypes_)
    head = PrototypeHead(
        *prototypes.shape,
        distance=fitted.choices_["distance"],
        temperature=fitted.choices_["temperature"],
    ).to(device, prototypes.dtype)
    head.set_prototypes(prototypes)
    if fitted.temperature_ is not None and head.log_temperature is not None:
        with torch.no_grad():
            head.log_temperature.copy_(torch.from_numpy(fitted.temperature_).log())
    return head


def add_beside(
    fitted: PrototypeClassifier, features: Features, codes: NDArray[np.int64], new: NDArray[Any]
) -> None:
    """Put the prototypes of new classes behind the others."""
    means = class_means(features, torch.from_numpy(codes).to(features.device), len(new)).cpu()
    means = means.to(torch.from_numpy(fitted.class_means_).dtype)
    counts = np.bincount(codes)
    head = head_of(fitted, torch.device("cpu")).add_classes(means)
    all_means = np.concatenate([fitted.class_means_, means.numpy()])
    learned = _learn_beside(fitted, means, counts, _last(head.temperature, len(new)))
    if learned is None:
        head.set_prototypes(torch.from_numpy(all_means))
        _warn_of_means(new)
    else:
        head.set_prototypes(torch.cat([head.prototypes.detach()[: -len(new)], learned]))
    keep_head(fitted, head)
    fitted.class_means_ = all_means


def _learn_beside(
    fitted: PrototypeClassifier,
    new_means: Tensor,
    new_counts: NDArray[np.int64],
    temperature: Tensor | None,
) -> Tensor | None:
    """Train the prototypes of new classes while the others stay."""
    choices = fitted.choices_
    distance, scale, tau = (
        choices[name] for name in ("distance", "logit_scale", "logit_adjustment")
    )
    n_new, known = len(new_means), np.flatnonzero(fitted.class_counts_)
    known_means = torch.from_numpy(fitted.class_means_[known])
    nearest = _nearest_to_any(new_means, known_means, distance)
    rows = torch.cat([known_means[nearest], new_means])
    with torch.no_grad():
        logits = head_of(fitted, rows.device)(rows)[:, torch.from_numpy(known)]
        found = logits[:-n_new].argmax(1) == nearest
        best = logits.amax(1)
        known_adjustment = adjustment(fitted.class_counts_[known], tau, rows)
        log_sum = torch.logsumexp(scale * logits + known_adjustment, 1)
    prototypes = torch.nn.Parameter(new_means.clone())
    new_adjustment = adjustment(new_counts, tau, rows)

    def loss(_: None) -> Tensor:
        logits = scale * ops.logits(rows, prototypes, distance, temperature) + new_adjustment
        log_sums = torch.logaddexp(log_sum, torch.logsumexp(logits, 1))
        lost_by_known = (log_sums - log_sum)[:-n_new].sum()
        lost_by_new: Tensor = (log_sums[-n_new:] - logits[-n_new:].diagonal()).sum()
        return (lost_by_known + lost_by_new) / (len(known) + n_new)

    optimizer = torch.optim.SGD([prototypes], lr=choices["lr"], momentum=fitted.momentum)
    train(PlainDriver(loss, optimizer), repeat(None), choices["steps"], schedule=cosine)
    learned = prototypes.detach()
    with torch.no_grad():
        logits = ops.logits(rows, learned, distance, temperature)
    n_taken = int((found & ~(logits[:-n_new].amax(1) <= best[:-n_new])).sum())
    own = logits[-n_new:]
    right = (own.argmax(1) == torch.arange(n_new)) & (own.amax(1) >= best[-n_new:])
    n_wrong = n_taken + n_new - int(right.sum())
    return learned if n_wrong <= _MOST_WRONG * (len(known) + n_new) else None


def _nearest_to_any(new_means: Tensor, known_means: Tensor, distance: str) -> Tensor:
    """Find the known classes nearest to new ones: all of them, where they are few."""
    if len(known_means) <= _MOST_NEIGHBOURS:
        return torch.arange(len(known_means))
    distances = ops.distances(known_means, new_means, distance).amin(1)
    return distances.topk(_MOST_NEIGHBOURS, largest=False).indices


def _last(temperature: Tensor | None, n_new: int) -> Tensor | None:
    """Give the temperatures of the last classes."""
    if temperature is None:
        return None
    return (temperature[-n_new:] if len(temperature) > 1 else temperature).detach()


def _warn_of_means(new: NDArray[Any]) -> None:
    warnings.warn(
        f"learned prototypes leave no place for {new.tolist()[:5]}: a class mean would be taken "
        "for another class. From now on every class is measured from its mean. Fit again with "
        "the rows of all classes for learned prototypes.",
        UserWarning,
        stacklevel=4,
    )

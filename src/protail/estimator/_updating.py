"""Going on after a fit: more rows of known classes, and new classes."""

from __future__ import annotations

import warnings
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._checks import (
    check_device,
    check_labels,
    check_prior,
    check_rows,
    check_settings,
    warn_of_harm,
    warn_of_zeros,
)
from protail.estimator._features import Features, Placement, class_means
from protail.estimator._fitting import Plan, Settings, Task, adjustment, fit_prototypes, learn
from protail.models.heads import PrototypeHead
from protail.training import PlainDriver, cosine, train

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier


def update_prototypes(fitted: PrototypeClassifier, X: Any, y: Any, classes: Any) -> None:
    """Do what ``partial_fit`` promises."""
    settings = check_settings(fitted)
    first = not hasattr(fitted, "prototypes_")
    for name in () if first else ("distance", "temperature"):
        if fitted.choices_[name] != getattr(settings, name):
            raise ValueError(
                f"{name}={getattr(settings, name)!r} differs from {fitted.choices_[name]!r}, which "
                "was learned with; expected the same. Set it back, or call fit."
            )
    device = check_device(fitted.device, X)
    rows, n_zeros = check_rows(fitted, X, reset=first)
    labels = check_labels(y, len(rows))
    known = _known_classes(fitted, classes, first=first)
    codes = _codes(labels, known)
    counts = np.bincount(codes, minlength=len(known))
    if first:
        check_prior(fitted.prior, counts)
        features = Features(rows, Placement(), device)
        fit = fit_prototypes(features, codes, counts, settings, fitted._seed(), say=fitted._say)
        fitted.classes_, fitted.class_counts_ = known, counts
        fitted._keep(fit)
        warn_of_harm(known[fit.harmed])
        if fit.space.accuracy is None:
            warnings.warn(
                "the first rows say nothing of radius and logit adjustment, which need two rows of "
                "two classes; neutral values are kept from now on. Start with more rows, or set "
                "normalize and logit_adjustment.",
                UserWarning,
                stacklevel=3,
            )
    else:
        features = Features(rows, fitted._placement, device)
        _go_on(fitted, features, codes, counts, settings)
    if fitted.normalize_ is not None:
        warn_of_zeros(n_zeros)


def _go_on(
    fitted: PrototypeClassifier,
    features: Features,
    codes: NDArray[np.int64],
    counts: NDArray[np.int64],
    settings: Settings,
) -> None:
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
    fitted._keep_head(head)
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


def _known_classes(fitted: PrototypeClassifier, classes: Any, *, first: bool) -> NDArray[Any]:
    if not first:
        known: NDArray[Any] = fitted.classes_
        if classes is not None and not np.array_equal(np.sort(known), np.unique(classes)):
            raise ValueError(
                f"classes={classes!r} differs from the first call's; expected the same labels or "
                "None. Use add_classes for new ones."
            )
        return known
    if classes is None:
        raise ValueError(
            "classes=None in the first call of partial_fit; expected all labels that may come, "
            "for instance classes=numpy.unique(all_labels)."
        )
    known = np.unique(check_labels(classes, len(classes)))
    if len(known) < 2:
        raise ValueError(f"classes={classes!r} has fewer than two labels; expected at least two.")
    return known


def _codes(labels: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int64]:
    check_same_kind(labels, known)
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known[order], labels), len(known) - 1)
    codes = order[place]
    if (strange := labels[known[codes] != labels]).size:
        raise ValueError(
            f"y has {np.unique(strange).tolist()[:5]}, which are not among the classes; expected "
            "labels of classes_ only. Use add_classes for new ones."
        )
    return codes.astype(np.int64)


def check_same_kind(labels: NDArray[Any], known: NDArray[Any]) -> None:
    """Refuse names among numbers, and numbers among names."""
    numbers = "biuf"
    if (labels.dtype.kind in numbers) != (known.dtype.kind in numbers):
        raise ValueError(
            f"y has labels of dtype {labels.dtype}, the classes are of dtype {known.dtype}; "
            "expected numbers with numbers and names with names."
        )


# So many known classes at most, those nearest to the new ones, take part in the training.
_MOST_NEIGHBOURS = 1024
# The part of all class means that may be taken for another class. A new class that looks like a
# known one is no reason to give up what was learned of all others.
_MOST_WRONG = 0.1


def add_new_classes(fitted: PrototypeClassifier, X: Any, y: Any) -> None:
    """Do what ``add_classes`` promises."""
    if not isinstance(fitted.prior, str):
        raise ValueError(
            f"prior is an array of {len(fitted.classes_)} fractions, one for each known class; "
            "expected 'uniform' or 'train' where classes are added. Use set_params(prior=...)."
        )
    device = check_device(fitted.device, X)
    rows, n_zeros = check_rows(fitted, X, reset=False)
    new, codes = np.unique(check_labels(y, len(rows)), return_inverse=True)
    check_same_kind(new, fitted.classes_)
    if known := [label for label in new.tolist() if label in set(fitted.classes_.tolist())]:
        raise ValueError(
            f"y has {known[:5]}, which the classifier knows already; expected new labels only. "
            "Use partial_fit for more rows of a known class."
        )
    features = Features(rows, fitted._placement, device)
    means = class_means(features, torch.from_numpy(codes).to(device), len(new)).cpu()
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
    fitted._keep_head(head)
    classes = np.concatenate([fitted.classes_, new])
    order = np.argsort(classes, kind="stable")
    fitted.classes_ = classes[order]
    fitted.class_counts_ = np.concatenate([fitted.class_counts_, counts])[order]
    fitted.class_means_ = all_means[order]
    fitted.prototypes_ = fitted.prototypes_[order]
    if fitted.temperature_ is not None and len(fitted.temperature_) > 1:
        fitted.temperature_ = fitted.temperature_[order]
    if fitted.normalize_ is not None:
        warn_of_zeros(n_zeros)


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

"""Going on after a fit: more rows of known classes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

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
from protail.estimator._fitting import Settings, adjustment, fit_prototypes
from protail.estimator._plan import Plan
from protail.estimator._training import Task, learn
from protail.heads import PrototypeHead

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
    share = (counts / np.maximum(total, 1))[:, None]
    means = fitted.class_means_ + (new.cpu().numpy() - fitted.class_means_) * share
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

"""New classes after a fit, whose rows are all there is: those of the known classes are gone.

Training moves prototypes away from their class means, outward, so a new class whose prototype
stood at its mean would be nearer than the others to their own rows. It is therefore placed by the
same training as theirs, in which the class means stand for the rows, and only it moves.
"""

from __future__ import annotations

import warnings
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._checks import check_device, check_labels, check_rows, warn_of_zeros
from protail.estimator._features import Features, class_means
from protail.estimator._fitting import adjustment
from protail.estimator._updating import check_same_kind, head_of
from protail.training import PlainDriver, cosine, train

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

# So many known classes at most, those nearest to the new ones, take part in the training.
_MOST_NEIGHBOURS = 1024
# The part of all class means that may be taken for another class. A new class that looks like a
# known one is no reason to give up what was learned of all others.
_MOST_WRONG = 0.1


def add_new_classes(fitted: PrototypeClassifier, X: Any, y: Any) -> None:
    """Do what ``add_classes`` promises."""
    if not isinstance(fitted.prior, str):
        raise ValueError(
            f"prior is an array of {len(fitted.classes_)} shares, one for each known class; "
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
    """Train the prototypes of new classes while the others stay.

    None where they find no place: too many means, known or new, would be taken for another class.
    """
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

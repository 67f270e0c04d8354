"""Going on after a fit: more rows of known classes, and new classes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from protail.estimator._checks import (
    Settings,
    check_device,
    check_labels,
    check_rows,
    check_settings,
    warn_of_zeros,
)
from protail.estimator._features import Features, Placement
from protail.estimator._gaussian import ClosedForm
from protail.estimator._learning import Calibration, calibrate
from protail.estimator._whitened import linear, statistics_of, sum_rows

if TYPE_CHECKING:
    from protail.estimator._classifier import PrototypeClassifier

# So many new rows, and (row, class) pairs, at most say how sharp logits are.
_MOST_ROWS, _MOST_ENTRIES = 4096, 2**22


def update_prototypes(fitted: PrototypeClassifier, X: Any, y: Any, classes: Any) -> None:
    """Do what ``partial_fit`` promises."""
    settings = check_settings(fitted)
    first = not hasattr(fitted, "prototypes_")
    if not first:
        _check_unchanged(fitted, settings)
    device = check_device(fitted.device, X)
    rows, n_zeros = check_rows(fitted, X, reset=first)
    labels = check_labels(y, len(rows))
    known = _known_classes(fitted, classes, first=first)
    codes = _codes(labels, known)
    if first:
        fitted._fit_rows(Features(rows, Placement(), device), known, codes, settings)
        if fitted.choices_["leave_one_out_accuracy"] is None:
            warnings.warn(
                "the first rows say nothing of what is to be chosen, which needs two rows of two "
                "classes; neutral values are kept from now on. Start with more rows.",
                UserWarning,
                stacklevel=3,
            )
    elif fitted.choices_["method"] == "paper":
        from protail.estimator._paper_updating import learn_on

        learn_on(fitted, fitted._placed(rows, device), codes, settings)
    else:
        _place_again(fitted, fitted._placed(rows, device), codes)
    if fitted._keeps_zeros:
        warn_of_zeros(n_zeros)


def _check_unchanged(fitted: PrototypeClassifier, settings: Settings) -> None:
    names = ["distance", "temperature"] if fitted.choices_["method"] == "paper" else []
    for name in names if settings.method == "auto" else ["method", *names]:
        if fitted.choices_[name] != getattr(settings, name):
            raise ValueError(
                f"{name}={getattr(settings, name)!r} differs from {fitted.choices_[name]!r}, which "
                "was learned with; expected the same. Set it back, or call fit."
            )


def _place_again(fitted: PrototypeClassifier, features: Features, codes: NDArray[np.int64]) -> None:
    """Place prototypes by all rows so far; what was learned beyond the closed form stays."""
    choices, before = fitted.choices_, statistics_of(fitted, features.device)
    old = Calibration(fitted.scale_, choices["logit_adjustment"], 0.0)
    total = before + sum_rows(features, codes, np.ones(len(codes)), len(fitted.classes_))
    kappa = None if choices["shrinkage"] else 0.0  # what fell back to class means stays there
    form = ClosedForm.of(total, choices["ridge"], kappa=kappa)
    known_by = 1.0 if choices["leave_one_out_accuracy"] is None else before.degrees
    calibration = _calibrated(form, features, codes, old, known_by)
    weight_cd, bias_c = linear(form, calibration)
    if choices["learned"]:
        filled_c = before.weight_c > 0
        closed = linear(ClosedForm.of(before, choices["ridge"], kappa=choices["shrinkage"]), old)
        found = fitted.coef_, fitted.intercept_
        for now, was, both in zip((weight_cd, bias_c), closed, found, strict=True):
            added = torch.from_numpy(both).to(now) - was
            now[filled_c] += added[filled_c]
    fitted.scale_ = calibration.sharpness
    fitted.choices_ = choices | {"logit_adjustment": calibration.tau, "shrinkage": form.kappa}
    fitted._keep_space(total, weight_cd, bias_c)


def _calibrated(
    form: ClosedForm,
    features: Features,
    codes: NDArray[np.int64],
    old: Calibration,
    known_by: float,
) -> Calibration:
    """Let new rows have their say, in proportion to their number."""
    n_most = min(_MOST_ROWS, max(1, _MOST_ENTRIES // len(form.weight_c)))
    index = np.arange(len(codes))[:: -(-len(codes) // n_most)]
    code_n = torch.from_numpy(codes[index]).to(features.device)
    spare = form.weight_c[code_n] > 1
    if not bool(spare.any()):
        return old
    code_n, rows = code_n[spare], features.take(index)[spare]
    return calibrate(
        form.without(form.mapped(rows), code_n).logits(),
        code_n,
        form.weight_c,
        towards=(old.sharpness, old.tau),
        certainty=known_by,
    )


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


def add_new_classes(fitted: PrototypeClassifier, X: Any, y: Any) -> None:
    """Do what ``add_classes`` promises."""
    if not isinstance(fitted.prior, str):
        raise ValueError(
            f"prior is an array of {len(fitted.classes_)} fractions, one for each known class; "
            "expected a name where classes are added. Use set_params(prior=...)."
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
    features = fitted._placed(rows, device)
    if fitted.choices_["method"] == "paper":
        from protail.estimator._paper_updating import add_beside

        add_beside(fitted, features, codes, new)
    else:
        _place_beside(fitted, features, codes, len(new))
    classes = np.concatenate([fitted.classes_, new])
    order = np.argsort(classes, kind="stable")
    fitted.classes_ = classes[order]
    fitted.class_counts_ = np.concatenate([fitted.class_counts_, np.bincount(codes)])[order]
    for name in (
        *("class_means_", "prototypes_", "coef_", "intercept_", "local_coef_", "temperature_"),
    ):
        if (part := getattr(fitted, name, None)) is not None and len(part) == len(classes):
            setattr(fitted, name, part[order])
    if fitted._keeps_zeros:
        warn_of_zeros(n_zeros)


def _place_beside(
    fitted: PrototypeClassifier, features: Features, codes: NDArray[np.int64], n_new: int
) -> None:
    """Place new classes by the rule of the others, which stay; so does the shared covariance."""
    before = statistics_of(fitted, features.device)
    choices = fitted.choices_
    form = ClosedForm.of(before, choices["ridge"], kappa=choices["shrinkage"])
    form = replace(form, centre_d=torch.from_numpy(fitted.space_centre_).to(form.centre_d))
    new = sum_rows(features, codes, np.ones(len(codes)), n_new)
    mapped_cd = form.mapped(new.mean_cd)
    beside = replace(form, mean_cd=mapped_cd, weight_c=new.weight_c, like=form)
    calibration = Calibration(fitted.scale_, choices["logit_adjustment"], 0.0)
    weight_cd, bias_c = linear(beside, calibration)
    prototypes_cd = form.centre_d + beside.prototypes @ form.map_dd.mT
    if fitted.local_coef_ is not None:  # nothing near the landmarks speaks for or against them
        nothing = np.zeros((n_new, fitted.local_coef_.shape[1]), fitted.local_coef_.dtype)
        fitted.local_coef_ = np.concatenate([fitted.local_coef_, nothing])
    behind = {
        "coef_": weight_cd,
        "intercept_": bias_c,
        "class_means_": new.mean_cd,
        "prototypes_": prototypes_cd,
    }
    for name, part in behind.items():
        old = getattr(fitted, name)
        setattr(fitted, name, np.concatenate([old, part.cpu().numpy().astype(old.dtype)]))

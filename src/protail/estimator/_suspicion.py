"""Training rows that look mislabelled: each is scored by what the others say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protail.estimator._features import Features
from protail.estimator._gaussian import ClosedForm
from protail.estimator._learning import Calibration
from protail.estimator._whitened import statistics_of

if TYPE_CHECKING:
    from protail.estimator._predicting import PredictingMixin

_ENTRIES_AT_A_TIME = 2**24


class Suspicious(NamedTuple):
    """Rows that another class explains better, most suspicious first."""

    rows: NDArray[np.int64]
    suggested: NDArray[np.generic]
    log_odds: NDArray[np.float64]


def suspicious(
    fitted: PredictingMixin,
    features: Features,
    codes: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
) -> Suspicious:
    """Compare what the other rows make of each row's label and of the best other one."""
    weights = np.ones(len(codes)) if weights is None else weights
    choices = fitted.choices_
    form = ClosedForm.of(
        statistics_of(fitted, features.device), choices["ridge"], kappa=choices["shrinkage"]
    )
    calibration = Calibration(fitted.scale_, choices["logit_adjustment"], 0.0)
    other = np.zeros(len(codes), np.int64)
    log_odds = np.full(len(codes), -np.inf)
    step = max(1, _ENTRIES_AT_A_TIME // (len(form.weight_c) + features.n_channels))
    for part, block in features.blocks():
        for begin in range(part.start, part.stop, step):
            end = min(begin + step, part.stop)
            rows, found = block[begin - part.start : end - part.start], np.arange(begin, end)
            spare = fitted.class_counts_[codes[begin:end]] > np.minimum(weights[begin:end], 1)
            if not spare.any():
                continue
            code_n, weight_n = (
                torch.from_numpy(each[begin:end][spare]).to(rows.device)
                for each in (codes, weights)
            )
            z_nd = form.mapped(rows[torch.from_numpy(spare).to(rows.device)])
            scores_nc = calibration(form.without(z_nd, code_n, weight_n).logits(), form.weight_c)
            own_n1 = scores_nc.gather(1, code_n.unsqueeze(1))
            scores_nc.scatter_(1, code_n.unsqueeze(1), -torch.inf)
            best_n, best_code_n = scores_nc.max(1)
            log_odds[found[spare]] = (best_n - own_n1.squeeze(1)).cpu().numpy()
            other[found[spare]] = best_code_n.cpu().numpy()
    index = np.flatnonzero(log_odds > 0)
    index = index[np.argsort(-log_odds[index], kind="stable")]
    return Suspicious(index, fitted.classes_[other[index]], log_odds[index])

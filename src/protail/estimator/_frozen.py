"""One linear classifier of frozen features, chosen and learned from the training rows alone.

Rows are prepared (scaled to unit length, perhaps centred or square-rooted first), then mapped so
that their shared covariance is the identity, and there compared with one prototype a class. What
has to be chosen, the preparation and the regularisation, is chosen by how likely every row is
without itself (`_gaussian`); sharpness, offset and what prototypes still have to learn follow from
the same scores (`_learning`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from protail.estimator._gaussian import ClosedForm, Statistics
from protail.estimator._learning import Calibration, calibrate, learn_residual

PREPARATIONS = ("none", "l2", "centred-l2", "root-l2")
# In units of the mean variance of a channel; the search begins in the middle.
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_FIRST_RIDGE = 3
# Pulls what is learned beyond the closed form towards nothing, in the space of the prototypes.
_RESIDUAL_RIDGE = 30.0
# Scores without a row are computed for at most so many (row, class) pairs, and rows.
_MOST_ENTRIES, _MOST_ROWS, _FEWEST_ROWS = 2**22, 4096, 256
# Learning goes through rows x channels x classes some 25 times: beyond this it is left out.
_MOST_WORK = 2e10


@dataclass(frozen=True)
class Preparation:
    """What is done to a row before anything is measured."""

    kind: str
    centre_d: Tensor

    def __call__(self, x_nd: Tensor) -> Tensor:
        """Prepare rows; those of zeros stay zero."""
        x_nd = x_nd.to(self.centre_d)
        if self.kind == "none":
            return x_nd
        if self.kind == "root-l2":
            x_nd = x_nd.sign() * x_nd.abs().sqrt()
        elif self.kind == "centred-l2":
            x_nd = x_nd - self.centre_d
        length_n1 = torch.linalg.vector_norm(x_nd, dim=1, keepdim=True)
        unit_nd: Tensor = x_nd / length_n1.masked_fill(length_n1 == 0, 1)
        return unit_nd


@dataclass(frozen=True)
class Choice:
    """One preparation and regularisation, and how likely it makes the rows it has not seen."""

    preparation: Preparation
    ridge: float
    form: ClosedForm
    calibration: Calibration

    @property
    def surprise(self) -> float:
        """Mean negative log-likelihood."""
        return self.calibration.surprise


@dataclass(frozen=True)
class FrozenModel:
    """The classifier: ``logits = prepared(x) @ weight.T + bias``."""

    preparation: Preparation
    weight_cd: Tensor
    bias_c: Tensor
    choice: Choice

    def logits(self, x_nd: Tensor) -> Tensor:
        """Score rows; a class without rows has minus infinity."""
        return torch.addmm(self.bias_c, self.preparation(x_nd), self.weight_cd.mT)


def fit_frozen(
    x_nd: Tensor,
    code_n: Tensor,
    n_classes: int,
    *,
    preparations: Iterable[str] = PREPARATIONS,
    learn: bool = True,
    generator: torch.Generator | None = None,
) -> FrozenModel:
    """Choose, calibrate and learn."""
    x_nd = x_nd.double()
    centre_d = x_nd.mean(0)
    evidence_n = _evidence_rows(code_n, n_classes, generator)
    best: tuple[Choice, _Space] | None = None
    for kind in preparations:
        space = _Space.of(Preparation(kind, centre_d), x_nd)
        choice = _choose_ridge(space, code_n, n_classes, evidence_n, [_FIRST_RIDGE])
        if best is None or choice.surprise < best[0].surprise:
            best = choice, space
    assert best is not None
    space = best[1]
    order = [*range(_FIRST_RIDGE, len(RIDGES)), *range(_FIRST_RIDGE - 1, -1, -1)]
    choice = _choose_ridge(space, code_n, n_classes, evidence_n, order)
    added_cd = torch.zeros_like(choice.form.mean_cd)
    if learn and len(code_n) * added_cd.numel() <= _MOST_WORK:
        added_cd = _learned(space, choice, code_n)
    return _composed(space, choice, added_cd)


@dataclass(frozen=True)
class _Space:
    """Prepared rows, in the span of their differences where they are fewer than channels."""

    preparation: Preparation
    origin_d: Tensor
    axes_dr: Tensor | None
    rows_nr: Tensor

    @classmethod
    def of(cls, preparation: Preparation, x_nd: Tensor) -> _Space:
        prepared_nd = preparation(x_nd)
        origin_d = prepared_nd.mean(0)
        rows_nd = prepared_nd - origin_d
        if len(rows_nd) >= rows_nd.shape[1]:
            return cls(preparation, origin_d, None, rows_nd)
        # What no row has, no linear rule that is learned from them asks for.
        axes_dr, rows_rn = torch.linalg.qr(rows_nd.mT)
        return cls(preparation, origin_d, axes_dr, rows_rn.mT.contiguous())


def _choose_ridge(
    space: _Space, code_n: Tensor, n_classes: int, evidence_n: Tensor, order: list[int]
) -> Choice:
    """Try ridges upwards from the first, then downwards, as long as rows get likelier."""
    statistics = Statistics.of(space.rows_nr, code_n, n_classes)
    best: Choice | None = None
    upwards_ended = False
    for place in order:
        if upwards_ended and place > order[0]:
            continue
        choice = _tried(space, statistics, code_n, evidence_n, RIDGES[place])
        if best is None or choice.surprise < best.surprise:
            best = choice
        elif place > order[0]:
            upwards_ended = True
        else:
            break
    assert best is not None
    return best


def _tried(
    space: _Space, statistics: Statistics, code_n: Tensor, evidence_n: Tensor, ridge: float
) -> Choice:
    form = ClosedForm.of(statistics, ridge)
    if not len(evidence_n):  # no class has a row to spare: nothing can be known
        known = Calibration(1.0, 0.0, float("inf"))
        return Choice(space.preparation, ridge, form, known)
    code_e = code_n[evidence_n]
    logits_ec = form.logits_without(space.rows_nr[evidence_n], code_e)
    calibration = calibrate(logits_ec, code_e, form.weight_c)
    return Choice(space.preparation, ridge, form, calibration)


def _evidence_rows(code_n: Tensor, n_classes: int, generator: torch.Generator | None) -> Tensor:
    """Choose rows of classes with two or more, as evenly over the classes as they go."""
    n_most = min(max(_MOST_ENTRIES // n_classes, _FEWEST_ROWS), _MOST_ROWS)
    count_c = torch.bincount(code_n, minlength=n_classes)
    spare_n = torch.nonzero(count_c[code_n] > 1).squeeze(1)
    if len(spare_n) <= n_most:
        return spare_n
    shuffled_n = spare_n[torch.randperm(len(spare_n), generator=generator)]
    by_class_n = shuffled_n[torch.argsort(code_n[shuffled_n], stable=True)]
    first_c = torch.cumsum(torch.bincount(code_n[by_class_n], minlength=n_classes), 0)
    first_c = first_c - torch.bincount(code_n[by_class_n], minlength=n_classes)
    place_n = torch.arange(len(by_class_n)) - first_c[code_n[by_class_n]]
    return by_class_n[torch.argsort(place_n, stable=True)[:n_most]].sort().values


def _learned(space: _Space, choice: Choice, code_n: Tensor) -> Tensor:
    """Learn what to add to the prototypes, in their space."""
    form, rows_nr = choice.form, space.rows_nr
    base_nc = form.logits(rows_nr)
    # A class of one row is not known without it: its logit says as much as the centre does.
    base_nc.scatter_(1, code_n.unsqueeze(1), 0.0)
    spare_n = form.weight_c[code_n] > 1
    if spare_n.any():
        base_nc[spare_n] = form.logits_without(rows_nr[spare_n], code_n[spare_n])
    filled_c = form.weight_c > 0
    base_nc = choice.calibration(base_nc, form.weight_c) + form.weight_c.clamp_min(1).log()
    codes_n = (filled_c.cumsum(0) - 1)[code_n]
    added_cd = torch.zeros_like(form.mean_cd)
    added_cd[filled_c] = learn_residual(
        form.mapped(rows_nr).float(), codes_n, base_nc[:, filled_c].float(), _RESIDUAL_RIDGE
    ).double()
    return added_cd


def _composed(space: _Space, choice: Choice, added_cd: Tensor) -> FrozenModel:
    """Write preparation's rows -> logits as one matrix and one vector."""
    form, calibration = choice.form, choice.calibration
    prototypes_cr = form.prototypes
    direction_cr = calibration.sharpness * prototypes_cr + added_cd
    # Mapping is solving with L: v . L^-1 x is (L^-T v) . x.
    weight_cr = torch.linalg.solve_triangular(form.map_dd.mT, direction_cr.mT, upper=True).mT
    constant_c = -calibration.sharpness * prototypes_cr.square().sum(1) / 2
    offset_c = calibration(torch.zeros_like(constant_c), form.weight_c)
    bias_c = constant_c + offset_c - weight_cr @ form.centre_d
    weight_cd = weight_cr if space.axes_dr is None else weight_cr @ space.axes_dr.mT
    bias_c = bias_c - weight_cd @ space.origin_d
    bias_c = bias_c.masked_fill(form.weight_c == 0, -torch.inf)
    return FrozenModel(space.preparation, weight_cd, bias_c, choice)

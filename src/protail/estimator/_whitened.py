"""Prototypes in a whitened space: chosen, calibrated and learned from the training rows alone.

Rows are prepared (scaled to unit length, perhaps centred or square-rooted first), then mapped so
that their shared covariance is the identity, and there compared with one prototype a class. What
has to be chosen, the preparation and the regularisation, is chosen by how likely every row is
without itself (`_gaussian`); sharpness, offset and what prototypes still have to learn follow from
the same scores (`_learning`). All of it is linear in the prepared row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail.estimator._features import PREPARATIONS, Features, Preparation
from protail.estimator._gaussian import ClosedForm, Statistics
from protail.estimator._learning import (
    LBFGS_STEPS,
    Calibration,
    calibrate,
    class_balanced,
    final_factor,
    learn_residual,
)

if TYPE_CHECKING:
    from protail.estimator._predicting import PredictingMixin

# In units of the mean variance of a channel; the search begins in the middle.
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_FIRST_RIDGE = 3
# Pulls what is learned beyond the closed form towards nothing, in the space of the prototypes.
_RESIDUAL_RIDGE = 30.0
# The preparation is chosen by some rows of some classes.
_SCREENED_ROWS, _SCREENED_A_CLASS, _SCREENED_CLASSES = 512, 6, 512
# At most so many rows and numbers are prepared at once; at most so many rows are scored without
# themselves, in at most so many (row, class) pairs.
_MOST_ROWS, _MOST_NUMBERS, _FEWEST_AXES, _MOST_WIDE = 8192, 2**23, 2048, 2**27
# Part of their mean square that is added to the products of rows that are fewer than channels.
_DEPENDENT = {torch.float64: 1e-10, torch.float32: 1e-5}
_MOST_EVIDENCE, _MOST_ENTRIES, _FEWEST_EVIDENCE = 4096, 2**22, 64
# Learning keeps some ten tables of logits; each class should be in it twice.
_MOST_LOGITS, _FEWEST_LEARNABLE = 2**25, 2
# Learning goes through rows x channels x classes some 25 times: no more rows than this allows.
_MOST_WORK = 5e9
# Steps of the learning that only says how sharp logits may be, and the mean negative
# log-likelihood below which they need not be sharper.
_FEW_STEPS, _LEAST_SURPRISE = 10, 0.04
# Where this part of the rows is right without itself, how likely they are says nothing. They then
# are easy, or known by heart to the network that made them: this preparation is good for both.
_SATURATED = 0.99
_FOR_SATURATED = "centred-l2"
# So large that the covariance has no say.
_ONLY_RIDGE = 1e6
# Rows of a class lie this much closer than class means only where a network was trained on them.
_MEMORISED_KAPPA = 0.05


class Rows(NamedTuple):
    """Training rows, their classes and how often each counts."""

    x_nd: Tensor
    code_n: Tensor
    weight_n: Tensor

    def at(self, index: NDArray[np.int64]) -> Rows:
        """Take some of them."""
        index_n = torch.from_numpy(index).to(self.code_n.device)
        return Rows(*(each.index_select(0, index_n) for each in self))

    def mapped(self, form: ClosedForm) -> Rows:
        """Take them to the space of some prototypes."""
        return self._replace(x_nd=form.mapped(self.x_nd))

    def where(self, mask_n: Tensor) -> Rows:
        """Take those of a mask."""
        return Rows(*(each[mask_n] for each in self))


@dataclass(frozen=True)
class Choice:
    """One regularisation, and what it makes of rows it has not seen."""

    form: ClosedForm
    calibration: Calibration
    accuracy: float | None

    @property
    def saturated(self) -> bool:
        """Whether nearly all rows are right without themselves."""
        return self.accuracy is not None and self.accuracy >= _SATURATED

    @property
    def memorised(self) -> bool:
        """Whether rows look as those do that the network learned from that made the features."""
        return self.saturated and self.form.kappa < _MEMORISED_KAPPA


class Limits(NamedTuple):
    """Rows with more novelty or more doubt than this are rejected."""

    novelty: float
    doubt: float


@dataclass(frozen=True)
class Whitened:
    """The classifier: ``logits = preparation(x) @ weight.T + bias``."""

    preparation: Preparation
    statistics: Statistics
    choice: Choice
    weight_cd: Tensor
    bias_c: Tensor
    learned: bool
    limits: Limits | None

    def logits(self, x_nd: Tensor) -> Tensor:
        """Score rows; a class without rows has minus infinity."""
        return torch.addmm(self.bias_c, self.preparation(x_nd.to(self.bias_c)), self.weight_cd.mT)


def fit_whitened(
    features: Features,
    codes: NDArray[np.int64],
    n_classes: int,
    *,
    weights: NDArray[np.float64] | None = None,
    preparations: Iterable[str] = PREPARATIONS,
    learn: bool = True,
    seed: int = 0,
) -> Whitened:
    """Choose, calibrate and learn."""
    found = choose(features, codes, n_classes, weights, preparations=preparations, seed=seed)
    return harmless(*found, learn=learn)


def choose(
    features: Features,
    codes: NDArray[np.int64],
    n_classes: int,
    weights: NDArray[np.float64] | None = None,
    *,
    preparations: Iterable[str] = PREPARATIONS,
    seed: int = 0,
) -> tuple[_Space, Choice]:
    """Choose preparation and ridge by how likely each row is without itself."""
    weights = np.ones(len(codes)) if weights is None else weights
    table = _Table(features, codes, weights, n_classes, np.random.default_rng(seed))
    few, n_few = table.few()
    best: tuple[_Space, Choice] | None = None
    for kind in preparations:
        preparation = Preparation.of(kind, *few[::2])
        rough = few.x_nd.dtype if len(few.x_nd) < len(codes) else torch.float64
        space = _Space.of_rows(preparation, few, n_few, table.rng, rough)
        choice = space.tried(RIDGES[_FIRST_RIDGE])
        if best is None or _is_better(space, choice, *best):
            best = space, choice
    assert best is not None
    space = best[0]
    if len(few.x_nd) == len(codes):
        return space, _with_best_ridge(space)
    space = _Space.of_table(space.preparation.kind, table)
    choice = _with_best_ridge(space)
    if choice.saturated and space.preparation.kind != _FOR_SATURATED:  # few rows did not show it
        other = _Space.of_table(_FOR_SATURATED, table)
        if (found := _with_best_ridge(other)).saturated:
            return other, found
    return space, choice


def even_sample(
    codes: NDArray[np.int64],
    n_most: int,
    rng: np.random.Generator,
    among: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Choose rows as evenly over the classes as they go: all of them where they are few."""
    index = np.arange(len(codes)) if among is None else np.flatnonzero(among)
    if len(index) <= n_most:
        return index
    index = rng.permutation(index)
    index = index[np.argsort(codes[index], kind="stable")]
    counts = np.bincount(codes[index])
    place = np.arange(len(index)) - (np.cumsum(counts) - counts)[codes[index]]
    return np.sort(index[np.argsort(place, kind="stable")[:n_most]])


def sum_rows(
    features: Features, codes: NDArray[np.int64], weights: NDArray[np.float64], n_classes: int
) -> Statistics:
    """Sum prepared rows, a block at a time."""
    total: Statistics | None = None
    for part, x_bd in features.blocks():
        code_b, weight_b = (torch.from_numpy(a[part]).to(x_bd.device) for a in (codes, weights))
        block = Statistics.of(x_bd, code_b, n_classes, weight_b)
        total = block if total is None else total + block
    assert total is not None
    return total


@dataclass(frozen=True)
class _Table:
    """All training rows, wherever they lie."""

    features: Features
    codes: NDArray[np.int64]
    weights: NDArray[np.float64]
    n_classes: int
    rng: np.random.Generator

    def rows(self, features: Features, index: NDArray[np.int64]) -> Rows:
        """Read some rows, perhaps prepared."""
        code_n, weight_n = (
            torch.from_numpy(each[index]).to(features.device) for each in (self.codes, self.weights)
        )
        return Rows(features.take(index), code_n, weight_n)

    def few(self) -> tuple[Rows, int]:
        """Give some rows of some classes, to choose the preparation by, and how many classes."""
        among, n_classes = None, min(self.n_classes, _SCREENED_CLASSES)
        if n_classes < self.n_classes:
            chosen = np.sort(self.rng.choice(self.n_classes, n_classes, replace=False))
            among = np.isin(self.codes, chosen)
        n_most = max(_SCREENED_ROWS, _SCREENED_A_CLASS * n_classes)
        rows = self.rows(self.features, even_sample(self.codes, n_most, self.rng, among))
        if among is not None:
            codes = np.searchsorted(chosen, rows.code_n.cpu().numpy())
            rows = rows._replace(code_n=torch.from_numpy(codes).to(rows.code_n))
        return rows, n_classes


def _evidence(rows: Rows, n_classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose rows that can be scored without themselves."""
    codes, weights = rows.code_n.cpu().numpy(), rows.weight_n.cpu().numpy()
    n_most = max(min(_MOST_ENTRIES // n_classes, _MOST_EVIDENCE), _FEWEST_EVIDENCE)
    spare = np.bincount(codes, weights)[codes] > np.minimum(weights, 1)
    return even_sample(codes, n_most, rng, among=spare)


@dataclass(frozen=True)
class _Space:
    """Prepared rows: what is summed of all, those to be scored without themselves, and to learn.

    Where rows are fewer than channels, all this is in their span: what no row has, no linear rule
    that is learned from them asks for.
    """

    preparation: Preparation
    statistics: Statistics
    evidence: Rows
    learnable: Rows
    span: _Span | None = None
    _recent: list[tuple[Rows, Tensor, Rows]] = field(default_factory=list)

    def mapped(self, rows: Rows, form: ClosedForm) -> Rows:
        """Take rows to the space of some prototypes, or find that this was done a moment ago."""
        for given, map_dd, found in self._recent:
            if given is rows and map_dd is form.map_dd:
                return found
        found = rows.mapped(form)
        self._recent[:] = [*self._recent[-2:], (rows, form.map_dd, found)]
        return found

    @classmethod
    def of_rows(
        cls,
        preparation: Preparation,
        given: Rows,
        n_classes: int,
        rng: np.random.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> _Space:
        """Prepare rows that are all there are, or stand for all."""
        rows, span = given._replace(x_nd=preparation(given.x_nd)), None
        n_channels = rows.x_nd.shape[1]
        if len(rows.x_nd) < n_channels:
            span = _Span.of(rows, dtype)
            rows = rows._replace(x_nd=span.triangle_nn.to(rows.x_nd))
        statistics = Statistics.of(rows.x_nd, rows.code_n, n_classes, rows.weight_n, n_channels)
        index = _evidence(rows, n_classes, rng)
        evidence = rows if len(index) == len(rows.code_n) else rows.at(index)
        return cls(preparation, statistics, evidence, rows, span)

    @classmethod
    def of_table(cls, kind: str, table: _Table) -> _Space:
        """Prepare all rows, read a block at a time where they are many."""
        features, codes = table.features, table.codes
        # Wide rows are projected onto as many axes as rows are taken here.
        wide = min(_FEWEST_AXES, _MOST_WIDE // features.n_channels)
        n_most = max(_MOST_NUMBERS // features.n_channels, wide, _FEWEST_EVIDENCE)
        n_most = min(_MOST_ROWS, n_most)
        some = table.rows(features, even_sample(codes, n_most, table.rng))
        preparation = Preparation.of(kind, *some[::2])
        if len(some.x_nd) == len(codes):
            return cls.of_rows(preparation, some, table.n_classes, table.rng)
        placed = features.placed_as(preparation)
        statistics = sum_rows(placed, codes, table.weights, table.n_classes)
        whole = Rows(torch.empty(0), torch.from_numpy(codes), torch.from_numpy(table.weights))
        evidence = table.rows(placed, _evidence(whole, table.n_classes, table.rng))
        n_most = int(_MOST_WORK / statistics.sum_cd.numel())
        n_most = min(n_most, _MOST_NUMBERS // statistics.sum_cd.shape[1])
        n_most = min(n_most, _MOST_LOGITS // table.n_classes)
        if n_most < _FEWEST_LEARNABLE * table.n_classes:  # too few to learn anything from
            n_most = 0
        learnable = table.rows(placed, even_sample(codes, n_most, table.rng))
        return cls(preparation, statistics, evidence, learnable)

    def tried(self, ridge: float) -> Choice:
        """Score rows without themselves."""
        rows = self.evidence
        # Means are shrunk by the scatter of the rows, which is known where all that have some are
        # here; else it takes as long as mapping as many rows as there are channels.
        scattered = int((self.statistics.weight_c[self.statistics.weight_c > 1]).sum())
        complete = math.isclose(scattered, float(rows.weight_n.sum()))
        kappa = 0.0 if complete else None
        form = ClosedForm.of(self.statistics, ridge, rows.x_nd.dtype, kappa)
        n_filled = int((self.statistics.weight_c > 0).sum())
        if n_filled < 2 or not len(rows.code_n):  # no row to spare, or nothing to confuse it with
            return Choice(form, Calibration(1.0, 0.0, math.inf), None)
        rows = self.mapped(rows, form)
        if complete:
            form = form.shrunk(form.noise(*rows))
        logits_nc = form.without(*rows).logits()
        calibration = calibrate(logits_nc, rows.code_n, form.weight_c, rows.weight_n)
        right_n = calibration(logits_nc, form.weight_c).argmax(1) == rows.code_n
        accuracy = min(float(class_balanced(rows.code_n, rows.weight_n) @ right_n.double()), 1.0)
        choice = Choice(form, calibration, accuracy)
        if choice.saturated and calibration.tau < 0:  # rows known by heart flatter rare classes
            choice = replace(choice, calibration=replace(calibration, tau=0.0))
        return choice


class _Span(NamedTuple):
    """Rows with all their channels, and their coordinates along as many axes as there are rows."""

    whole: Rows
    triangle_nn: Tensor

    @classmethod
    def of(cls, whole: Rows, dtype: torch.dtype) -> _Span:
        """Take the Cholesky factor of their products for coordinates."""
        x_nd = whole.x_nd.to(dtype)
        gram_nn = x_nd @ x_nd.mT
        # Rows that depend on each other, as centred ones do, have no factor without it.
        added = _DEPENDENT[dtype] * gram_nn.diagonal().mean()
        gram_nn.diagonal().add_(added.clamp_min(torch.finfo(dtype).tiny ** 0.5))
        return cls(whole, torch.linalg.cholesky(gram_nn))

    def back(self, weight_cn: Tensor) -> Tensor:
        """Give weights of all channels that say of the rows what those of coordinates say."""
        part_nc = torch.linalg.solve_triangular(self.triangle_nn.mT, weight_cn.mT, upper=True)
        weight_cd: Tensor = part_nc.mT @ self.whole.x_nd.double()
        return weight_cd


def _is_better(space: _Space, choice: Choice, best: _Space, so_far: Choice) -> bool:
    if choice.saturated and so_far.saturated:
        return space.preparation.kind == _FOR_SATURATED or (
            best.preparation.kind != _FOR_SATURATED
            and choice.calibration.surprise < so_far.calibration.surprise
        )
    return choice.calibration.surprise < so_far.calibration.surprise


def _with_best_ridge(space: _Space) -> Choice:
    """Try larger ridges than the first, or else smaller ones, as long as rows get likelier."""
    first = best = space.tried(RIDGES[_FIRST_RIDGE])
    for ridges in RIDGES[_FIRST_RIDGE + 1 :], RIDGES[:_FIRST_RIDGE][::-1]:
        for ridge in ridges if best is first else ():
            choice = space.tried(ridge)
            if not choice.calibration.surprise < best.calibration.surprise:
                break
            best = choice
    return best


def harmless(
    space: _Space, choice: Choice, *, learn: bool, reject: float | None = None
) -> Whitened:
    """Learn, take back what loses a class that class means get right, and calibrate."""
    rows = space.evidence
    before_nc = _nearest_means(space.statistics, rows)
    for form, calibration, added_cd in _milder(space, choice, learn=learn):
        mapped = space.mapped(rows, form)
        after_nc = mapped.x_nd @ added_cd.mT
        after_nc += calibration(form.without(*mapped).logits(), form.weight_c)
        if not len(lost_classes(before_nc, after_nc, rows.code_n)):
            break
    chosen = replace(choice, form=form, calibration=calibration)
    honest, logits_nc = _scored_without(space, chosen, learned=bool(added_cd.any()))
    factor, limits = 1.0, None
    if choice.accuracy is not None:
        known = honest.code_n, form.weight_c > 0, honest.weight_n
        factor = final_factor(logits_nc, *known, _LEAST_SURPRISE)
    chosen = replace(chosen, calibration=calibration.times(factor))
    if reject is not None and choice.accuracy is not None:
        limits = _limits(honest, factor * logits_nc, chosen, reject)
    exact = ClosedForm.of(space.statistics, form.ridge, kappa=form.kappa)
    weight_cd, bias_c = linear(exact, chosen.calibration, factor * added_cd)
    if space.span is None:
        statistics = space.statistics
    else:
        x_nd, code_n, weight_n = space.span.whole
        statistics = Statistics.of(x_nd, code_n, len(weight_cd), weight_n)
        weight_cd = space.span.back(weight_cd)
    learned = bool(added_cd.any())
    return Whitened(space.preparation, statistics, chosen, weight_cd, bias_c, learned, limits)


def _milder(
    space: _Space, choice: Choice, *, learn: bool
) -> Iterator[tuple[ClosedForm, Calibration, Tensor]]:
    """Give what was chosen and then, step by step, what is nearer to class means."""
    form, calibration = choice.form, choice.calibration
    nothing_cd = torch.zeros_like(form.mean_cd)
    known = choice.accuracy is not None and len(space.learnable.x_nd) > 0
    if learn and known and len(space.learnable.x_nd) * nothing_cd.numel() <= _MOST_WORK:
        yield form, calibration, _learned(space.mapped(space.learnable, form), choice)
    yield form, calibration, nothing_cd
    yield form, replace(calibration, tau=0.0), nothing_cd
    means = ClosedForm.of(space.statistics, _ONLY_RIDGE, form.mean_cd.dtype, kappa=0.0)
    yield means, Calibration(_ONLY_RIDGE * calibration.sharpness, 0.0, 0.0), nothing_cd


def _scored_without(space: _Space, choice: Choice, *, learned: bool) -> tuple[Rows, Tensor]:
    """Score mapped rows by what was fitted without them."""
    if learned and len(space.evidence.code_n):
        return _learned_by_halves(space.mapped(space.learnable, choice.form), choice)
    rows = space.mapped(space.evidence, choice.form)
    return rows, choice.calibration(choice.form.without(*rows).logits(), choice.form.weight_c)


def new_class_weight(sharpness: float, kappa: float) -> float:
    """Say what the squared distance from the centre weighs in the novelty of a row.

    A class that nobody has seen has its mean anywhere that class means are: its rows lie around
    the centre with the variance ``1 + 1 / kappa``, those of a known class around their prototype
    with the variance 1. Of the difference of the two squares, the prototype's logit has the rest.
    """
    return sharpness / (2 * (1 + kappa))


def _limits(rows: Rows, logits_nc: Tensor, choice: Choice, reject: float) -> Limits:
    """Find limits that so many of such rows exceed, classes weighing alike."""
    form = choice.form
    length_n = form.without(*rows).lengths()
    weight = new_class_weight(choice.calibration.sharpness, form.kappa)
    novelty_n = weight * length_n - logits_nc.amax(1)
    doubt_n = 1 - logits_nc.softmax(1).amax(1)
    weight_n = class_balanced(rows.code_n, rows.weight_n.to(logits_nc))

    def at(values_n: Tensor, level: float) -> float:
        """Give the value that this part of the rows does not exceed."""
        sorted_n, order = values_n.sort()
        place = int(torch.searchsorted(weight_n[order].cumsum(0), level))
        return float(sorted_n[min(place, len(sorted_n) - 1)])

    def level(values_n: Tensor) -> Tensor:
        order = values_n.argsort()
        level_n = torch.empty_like(values_n)
        level_n[order] = weight_n[order].cumsum(0)
        return level_n

    # Both limits at the same level, so that either says as much.
    both = at(torch.maximum(level(novelty_n), level(doubt_n)), 1 - reject)
    return Limits(at(novelty_n, both), at(doubt_n, both))


def _learned_by_halves(rows: Rows, choice: Choice) -> tuple[Rows, Tensor]:
    """Score mapped rows by what the others give, and what is learned from one half of them."""
    form = choice.form
    spare = form.spare(*rows[1:])
    scored, logits = [], []
    first_n = _first_half(rows)
    for learned_n in first_n, rows.weight_n - first_n:
        learned_n = torch.where(spare, learned_n, rows.weight_n)
        learned = rows._replace(weight_n=learned_n).where(learned_n > 0)
        added_cd = _learned(learned, choice, _FEW_STEPS)
        others_n = rows.weight_n - learned_n
        others = rows._replace(weight_n=others_n).where(others_n > 0)
        without = form.without(*others)
        scored.append(others)
        logits.append(choice.calibration(without.logits(), form.weight_c))
        logits[-1] += without.products(added_cd)
    return Rows(*map(torch.cat, zip(*scored, strict=True))), torch.cat(logits)


def _first_half(rows: Rows) -> Tensor:
    """Give every other row of each class, or the part of its weight that falls into a half.

    Rows are taken by their length: a row that comes twice is then halved like one that counts two.
    """
    order = torch.argsort(rows.x_nd.square().sum(1), stable=True)
    order = order[torch.argsort(rows.code_n[order], stable=True)]
    end_n = rows.weight_n[order].cumsum(0)
    start_n = end_n - rows.weight_n[order]

    def even(t_n: Tensor) -> Tensor:  # how much of all up to t is in even places
        pairs_n = (t_n / 2).floor()
        return pairs_n + (t_n - 2 * pairs_n).clamp_max(1)

    half_n = torch.empty_like(end_n)
    half_n[order] = even(end_n) - even(start_n)
    return half_n


def _nearest_means(statistics: Statistics, rows: Rows) -> Tensor:
    """Score rows by how near class means are, without the row itself."""
    x_nd, code_n, weight_n = rows
    mean_cd = statistics.mean_cd.to(x_nd)
    taken_n1 = weight_n.clamp_max(1).unsqueeze(1).to(x_nd)
    size_n1 = statistics.weight_c[code_n].unsqueeze(1).to(x_nd)
    own_nd = (mean_cd[code_n] * size_n1 - x_nd * taken_n1) / (size_n1 - taken_n1)
    scores_nc = x_nd @ mean_cd.mT - mean_cd.square().sum(1) / 2
    own_n = (x_nd * own_nd).sum(1) - own_nd.square().sum(1) / 2
    scores_nc.scatter_(1, code_n.unsqueeze(1), own_n.unsqueeze(1))
    return scores_nc.masked_fill(statistics.weight_c == 0, -torch.inf)


def lost_classes(before_nc: Tensor, after_nc: Tensor, code_n: Tensor) -> NDArray[np.int64]:
    """Find the classes of which fewer rows are right afterwards than chance explains."""
    n_c = torch.bincount(code_n, minlength=before_nc.shape[1])
    before_c, after_c = (
        torch.bincount(code_n[scores.argmax(1) == code_n], minlength=len(n_c))
        for scores in (before_nc, after_nc)
    )
    # One row right and one row wrong are added: a class that is all right has its noise too.
    right_2c = torch.stack((before_c, after_c))
    deviation_c = (n_c * (right_2c + 1) * (n_c - right_2c + 1) / (n_c + 2) ** 2).sum(0).sqrt()
    n_filled = int((n_c > 0).sum())
    lost_c = before_c - after_c > math.sqrt(2 * math.log(2 * max(n_filled, 1))) * deviation_c
    codes: NDArray[np.int64] = lost_c.nonzero().squeeze(1).cpu().numpy()
    return codes


def _learned(rows: Rows, choice: Choice, n_steps: int = LBFGS_STEPS) -> Tensor:
    """Learn what to add to the prototypes from mapped rows."""
    form, (z_nd, code_n, weight_n) = choice.form, rows
    base_nc = form.logits(z_nd)
    # A class of one row is not known without it: its logit says as much as the centre does.
    base_nc.scatter_(1, code_n.unsqueeze(1), 0.0)
    spare = form.spare(code_n, weight_n)
    base_nc[spare] = form.without(*rows.where(spare)).logits()
    count_c = torch.bincount(code_n, weight_n.to(base_nc), minlength=len(form.weight_c))
    base_nc = choice.calibration(base_nc, form.weight_c) + count_c.clamp_min(1).log()
    filled_c = form.weight_c > 0
    added_cd = torch.zeros_like(form.mean_cd)
    added_cd[filled_c] = learn_residual(
        z_nd,
        (filled_c.cumsum(0) - 1)[code_n],
        base_nc[:, filled_c],
        _RESIDUAL_RIDGE,
        weight_n=weight_n,
        n_steps=n_steps,
    )
    return added_cd


def linear(
    form: ClosedForm, calibration: Calibration, added_cd: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Write calibrated logits, and what is added, as one matrix and one vector."""
    prototypes_cd = form.prototypes
    direction_cd = calibration.sharpness * prototypes_cd
    if added_cd is not None:
        direction_cd = direction_cd + added_cd
    # Mapping is solving with L: v . L^-1 x is (L^-T v) . x.
    weight_cd = torch.linalg.solve_triangular(form.map_dd.mT, direction_cd.mT, upper=True).mT
    constant_c = calibration(-prototypes_cd.square().sum(1) / 2, form.weight_c)
    bias_c = constant_c - weight_cd @ form.centre_d
    return weight_cd, bias_c.masked_fill(form.weight_c == 0, -torch.inf)


def space_map(fitted: PredictingMixin, device: torch.device | str = "cpu") -> Tensor:
    """Give the lower triangle L that takes prepared rows to a whitened space, by solving."""
    covariance_dd, _ = statistics_of(fitted, device).covariance(fitted.choices_["ridge"])
    map_dd: Tensor
    map_dd, failed = torch.linalg.cholesky_ex(covariance_dd)
    if int(failed):
        raise ValueError(
            "'covariance' is not one: a direction has a variance below 0; expected a symmetric "
            "matrix without."
        )
    return map_dd


def statistics_of(fitted: PredictingMixin, device: torch.device | str = "cpu") -> Statistics:
    """Give what a fitted classifier knows of its training rows, in float64."""
    parts = fitted.class_counts_, fitted.class_means_, fitted.covariance_
    return Statistics.restored(*(torch.from_numpy(part).to(device).double() for part in parts))

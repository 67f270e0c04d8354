"""Prototypes in a whitened space: chosen, calibrated and learned from the training rows alone.

Rows are prepared (scaled to unit length, perhaps centred or square-rooted first), then mapped so
that their shared covariance is the identity, and there compared with one prototype a class. What
has to be chosen, the preparation and the regularisation, is chosen by how likely every row is
without itself (`_gaussian`); sharpness, offset and what prototypes still have to learn follow from
the same scores (`_learning`). All of it is linear in the prepared row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail.data.tables import ShardedRows
from protail.estimator._features import PREPARATIONS, Features, Placement, Preparation
from protail.estimator._gaussian import ROUNDING, ClosedForm, Statistics, Without, symmetric
from protail.estimator._learning import (
    LBFGS_STEPS,
    Calibration,
    calibrate,
    class_balanced,
    final_factor,
    learn_residual,
)
from protail.estimator._local import Corrections, LandmarkFeatures

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
# Ridges are compared on so many of them, or two of each class.
_SEARCHED = 1024
# Learning keeps some ten tables of logits; each class should be in it twice.
_MOST_LOGITS, _FEWEST_LEARNABLE = 2**25, 2
# Learning goes through rows x channels x classes some 25 times: no more rows than this allows.
_MOST_WORK = 5e9
# Steps of the learning that only says how sharp logits may be, and the mean negative
# log-likelihood below which they need not be sharper.
_FEW_STEPS, _LEAST_SURPRISE = 10, 0.04
# Corrections near landmarks spread by so much around 0 before any row is seen. There are so many
# landmarks at most and at least, and rows x (channels + landmarks) x classes come to no more.
_SPREAD, _MOST_LANDMARKS, _FEWEST_LANDMARKS, _MOST_LOCAL_WORK = 3.0, 1024, 64, 1e9
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
        return self if bool(mask_n.all()) else Rows(*(each[mask_n] for each in self))


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
    n_learnable: int | None  # rows that could be learned from; None: all
    corrections: Corrections | None


class _Learned(NamedTuple):
    """What is added to the logits of mapped rows, and what it makes of rows it was not told of."""

    added_ce: Tensor  # channels, then columns where there are some
    columns: LandmarkFeatures | None = None
    honest: tuple[Rows, Tensor] | None = None

    def logits(self, mapped: Rows, rows: Rows) -> Tensor:
        """Say what is added to the logits of rows, mapped and as they are."""
        column_nm = None if self.columns is None else self.columns(rows.x_nd.to(mapped.x_nd))
        wide_ne = _beside(mapped.x_nd, column_nm)
        added_nc: Tensor = wide_ne @ self.added_ce.mT
        return added_nc


def choose(
    features: Features,
    codes: NDArray[np.int64],
    n_classes: int,
    weights: NDArray[np.float64] | None = None,
    *,
    seed: int = 0,
) -> tuple[_Space, Choice]:
    """Choose preparation and ridge by how likely each row is without itself."""
    weights = np.ones(len(codes)) if weights is None else weights
    table = _Table(features, codes, weights, n_classes, np.random.default_rng(seed))
    few, n_few = table.few()
    best: tuple[_Space, Choice] | None = None
    choice: Choice | None = None
    # Of one channel, a length of 1 leaves the sign.
    for kind in PREPARATIONS if features.n_channels > 1 else ("scaled",):
        space = _Space.of_rows(kind, few, n_few, table.rng)
        choice = space.tried(RIDGES[_FIRST_RIDGE], choice)
        if best is None or _is_better(space, choice, *best):
            best = space, choice
    assert best is not None
    space, choice = best
    if len(few.x_nd) == len(codes):
        return space, _with_best_ridge(space, choice)
    space = _Space.of_table(space.preparation.kind, table)
    choice = _searched(space, choice, table)
    wanted = features.n_channels > 1 and space.preparation.kind != _FOR_SATURATED
    if choice.saturated and wanted:  # few rows did not show it
        other = _Space.of_table(_FOR_SATURATED, table)
        found = _searched(other, choice, table)
        if found.saturated:
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
    """Sum prepared rows, a block at a time; those of several files where their engine does it."""
    if isinstance(features.rows, ShardedRows):
        how = features.placement, features.device, features.dtype
        work = partial(_sums_of_part, how=how, n_classes=n_classes)
        parts: Iterator[Statistics] = features.rows.map(work, codes, weights)
        return reduce(operator.add, parts)
    total: Statistics | None = None
    for part, x_bd in features.blocks():
        code_b, weight_b = (torch.from_numpy(a[part]).to(x_bd.device) for a in (codes, weights))
        block = Statistics.of(x_bd, code_b, n_classes, weight_b)
        total = block if total is None else total + block
    assert total is not None
    return total


def _sums_of_part(
    blocks: Iterator[NDArray[Any]],
    codes: NDArray[np.int64],
    weights: NDArray[np.float64],
    *,
    how: tuple[Placement | Preparation, torch.device, torch.dtype],
    n_classes: int,
) -> Statistics:
    """Sum the rows of a part."""

    def of_blocks() -> Iterator[Statistics]:
        start = 0
        for rows in blocks:
            part = slice(start, start := start + len(rows))
            yield sum_rows(Features(rows, *how, keep=False), codes[part], weights[part], n_classes)

    return reduce(operator.add, of_blocks())


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
        among, n_classes, filled = None, self.n_classes, np.unique(self.codes)
        if len(filled) > _SCREENED_CLASSES:
            n_classes = _SCREENED_CLASSES
            chosen = np.sort(self.rng.choice(filled, n_classes, replace=False))
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
    sizes = np.bincount(codes, weights)[codes]
    spare = sizes - np.minimum(weights, 1) > ROUNDING * np.finfo(np.float32).eps * sizes
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
    _scored: list[tuple[ClosedForm, Tensor]] = field(default_factory=list)

    def mapped(self, rows: Rows, form: ClosedForm) -> Rows:
        """Take rows to the space of some prototypes, or find that this was done a moment ago."""
        for given, map_dd, found in self._recent:
            if given is rows and map_dd is form.map_dd:
                return found
        found = rows.mapped(form)
        self._recent[:] = [*self._recent[-2:], (rows, form.map_dd, found)]
        return found

    def scored(self, form: ClosedForm, without: Without | None = None) -> Tensor:
        """Score the evidence without each row, or find that this was done a moment ago."""
        for given, found_nc in self._scored:
            if given is form:
                return found_nc
        without = without or form.without(*self.mapped(self.evidence, form))
        found_nc = without.logits()
        self._scored[:] = [*self._scored[-2:], (form, found_nc)]
        return found_nc

    @classmethod
    def of_rows(
        cls,
        kind: str,
        given: Rows,
        n_classes: int,
        rng: np.random.Generator,
    ) -> _Space:
        """Prepare rows that are all there are, or stand for all."""
        preparation, x_nd = Preparation.of(kind, given.x_nd, given.weight_n)
        rows, span = given._replace(x_nd=x_nd), None
        n_channels = rows.x_nd.shape[1]
        if len(rows.x_nd) < n_channels:
            span = _Span.of(rows)
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
        if len(some.x_nd) == len(codes):
            return cls.of_rows(kind, some, table.n_classes, table.rng)
        preparation, _ = Preparation.of(kind, some.x_nd, some.weight_n)
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

    def tried(self, ridge: float, near: Choice | None = None) -> Choice:
        """Score rows without themselves; the calibration is sought near another's."""
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
        without = form.without(*self.mapped(rows, form))
        if complete:
            form = form.shrunk(rows.weight_n.to(without.uu_n) @ without.uu_n / form.degrees)
            without = replace(without, form=form)
        logits_nc = self.scored(form, without)
        start = None if near is None else (near.calibration.sharpness, near.calibration.tau)
        known = rows.code_n, form.weight_c, rows.weight_n
        calibration = calibrate(logits_nc, *known, start=start)
        right_n = calibration(logits_nc, form.weight_c).argmax(1) == rows.code_n
        accuracy = min(float(class_balanced(rows.code_n, rows.weight_n) @ right_n.double()), 1.0)
        choice = Choice(form, calibration, accuracy)
        if choice.saturated and calibration.tau < 0:  # rows known by heart flatter rare classes
            choice = replace(choice, calibration=replace(calibration, tau=0.0))
        return choice

    def corrections(self, columns: LandmarkFeatures, added_cm: Tensor) -> Corrections:
        """Write what was learned of columns for rows with all their channels."""
        rows = self.learnable if self.span is None else self.span.whole
        return columns.corrections(added_cm, rows.x_nd[columns.index_m])


class _Span(NamedTuple):
    """Rows with all their channels, and their coordinates along as many axes as there are rows."""

    whole: Rows
    triangle_nn: Tensor

    @classmethod
    def of(cls, whole: Rows) -> _Span:
        """Take the Cholesky factor of their products for coordinates."""
        for x_nd in whole.x_nd, whole.x_nd.double():
            gram_nn = symmetric(x_nd, x_nd.mT)
            # Rows that depend on each other, as centred ones do, have no factor without it.
            added = _DEPENDENT[x_nd.dtype] * gram_nn.diagonal().mean()
            gram_nn.diagonal().add_(added.clamp_min(torch.finfo(x_nd.dtype).tiny ** 0.5))
            triangle_nn, failed = torch.linalg.cholesky_ex(gram_nn)
            if not int(failed):
                break
        return cls(whole, triangle_nn)

    def back(self, weight_cn: Tensor) -> Tensor:
        """Give weights of all channels that say of the rows what those of coordinates say."""
        upper_nn = self.triangle_nn.mT.to(weight_cn)
        part_nc = torch.linalg.solve_triangular(upper_nn, weight_cn.mT, upper=True)
        weight_cd: Tensor = part_nc.mT @ self.whole.x_nd.to(weight_cn)
        return weight_cd


def _is_better(space: _Space, choice: Choice, best: _Space, so_far: Choice) -> bool:
    if choice.saturated and so_far.saturated:
        return space.preparation.kind == _FOR_SATURATED or (
            best.preparation.kind != _FOR_SATURATED
            and choice.calibration.surprise < so_far.calibration.surprise
        )
    return choice.calibration.surprise < so_far.calibration.surprise


def _searched(space: _Space, near: Choice, table: _Table) -> Choice:
    """Choose the ridge by some of the rows, and score all of them with it."""
    codes, n_most = space.evidence.code_n.cpu().numpy(), max(_SEARCHED, 2 * table.n_classes)
    if len(codes) <= 2 * n_most:
        return _with_best_ridge(space, space.tried(RIDGES[_FIRST_RIDGE], near))
    few = replace(space, evidence=space.evidence.at(even_sample(codes, n_most, table.rng)))
    best = _with_best_ridge(few, few.tried(RIDGES[_FIRST_RIDGE], near))
    return space.tried(best.form.ridge, best)


def _with_best_ridge(space: _Space, first: Choice) -> Choice:
    """Try larger ridges than the first, or else smaller ones, as long as rows get likelier."""
    best = first
    for ridges in RIDGES[_FIRST_RIDGE + 1 :], RIDGES[:_FIRST_RIDGE][::-1]:
        for ridge in ridges if best is first else ():
            choice = space.tried(ridge, best)
            if not choice.calibration.surprise < best.calibration.surprise:
                break
            best = choice
    return best


def harmless(
    space: _Space,
    choice: Choice,
    *,
    learn: bool,
    local: bool = False,
    reject: float | None = None,
) -> Whitened:
    """Learn, take back what loses a class that class means get right, and calibrate."""
    rows = space.evidence
    before_nc = _nearest_means(space.statistics, rows)
    for form, calibration, found in _milder(space, choice, learn=learn, local=local):
        after_nc = calibration(space.scored(form), form.weight_c)
        if bool(found.added_ce.any()):
            after_nc += found.logits(space.mapped(rows, form), rows)
        if not len(lost_classes(before_nc, after_nc, rows.code_n)):
            break
    chosen = replace(choice, form=form, calibration=calibration)
    honest, logits_nc = found.honest or _scored_without(space, chosen)
    factor, limits = 1.0, None
    if choice.accuracy is not None:
        known = honest.code_n, form.weight_c > 0, honest.weight_n
        factor = final_factor(logits_nc, *known, _LEAST_SURPRISE)
    chosen = replace(chosen, calibration=calibration.times(factor))
    if reject is not None and choice.accuracy is not None:
        limits = _limits(honest, factor * logits_nc, chosen, reject)
    added = (factor * found.added_ce).tensor_split([len(form.map_dd)], dim=1)
    parts = linear(form, chosen.calibration, added[0])
    weight_cd, bias_c = (each.double() for each in parts)
    corrections = None
    if found.columns is not None:
        corrections = space.corrections(found.columns, added[1])
    if space.span is None:
        statistics = space.statistics
    else:
        x_nd, code_n, weight_n = space.span.whole
        statistics = Statistics.of(x_nd, code_n, len(weight_cd), weight_n)
        weight_cd = space.span.back(weight_cd)
    whole = space.preparation, statistics, chosen, weight_cd, bias_c
    learned, n_learnable = found.honest is not None, None
    if not math.isclose(float(space.learnable.weight_n.sum()), float(statistics.weight_c.sum())):
        n_learnable = len(space.learnable.x_nd)
    return Whitened(*whole, learned, limits, n_learnable, corrections)


def _milder(
    space: _Space, choice: Choice, *, learn: bool, local: bool
) -> Iterator[tuple[ClosedForm, Calibration, _Learned]]:
    """Give what was chosen and then, step by step, what is nearer to class means."""
    form, calibration = choice.form, choice.calibration
    nothing = _Learned(torch.zeros_like(form.mean_cd))
    known = choice.accuracy is not None and len(space.learnable.x_nd) > 0
    if learn and known and len(space.learnable.x_nd) * nothing.added_ce.numel() <= _MOST_WORK:
        yield form, calibration, _learned_best(space, choice, local=local)
    yield form, calibration, nothing
    yield form, replace(calibration, tau=0.0), nothing
    means = ClosedForm.of(space.statistics, _ONLY_RIDGE, form.mean_cd.dtype, kappa=0.0)
    yield means, Calibration(_ONLY_RIDGE * calibration.sharpness, 0.0, 0.0), nothing


def _learned_best(space: _Space, choice: Choice, *, local: bool) -> _Learned:
    """Learn prototypes, and corrections near landmarks where these make rows left out likelier."""
    rows, mapped = space.learnable, space.mapped(space.learnable, choice.form)
    honest = _learned_by_halves(mapped, choice)
    index_m, columns = _landmarks(rows, choice) if local else None, None
    if index_m is not None:
        spread = _SPREAD * math.sqrt(_RESIDUAL_RIDGE)
        columns = LandmarkFeatures.of(rows.x_nd.to(mapped.x_nd), index_m, spread)
    if columns is not None:
        tried = _learned_by_halves(mapped, choice, columns.column_nm)
        if _surprise(*tried, choice) < _surprise(*honest, choice):
            added_ce = _learned(mapped, choice, LBFGS_STEPS, columns.column_nm)
            return _Learned(added_ce, columns, tried)
    return _Learned(_learned(mapped, choice, LBFGS_STEPS), None, honest)


def _landmarks(rows: Rows, choice: Choice) -> Tensor | None:
    """Choose rows as evenly over the classes as they go, where there is something to correct."""
    n_rows, (n_classes, n_channels) = len(rows.code_n), choice.form.mean_cd.shape
    n_most = min(int(_MOST_LOCAL_WORK / (n_rows * n_classes)) - n_channels, _MOST_LANDMARKS)
    n_most = min(n_most, _MOST_LOGITS // max(n_rows, 1))
    if choice.saturated or n_rows < 2 or n_most < min(n_rows, _FEWEST_LANDMARKS):
        return None
    index = even_sample(rows.code_n.cpu().numpy(), n_most, np.random.default_rng(0))
    return torch.from_numpy(index).to(rows.code_n)


def _surprise(honest: Rows, logits_nc: Tensor, choice: Choice) -> float:
    """Say how unlikely rows are at the best sharpness of their logits."""
    filled_c = (choice.form.weight_c > 0).to(logits_nc)
    return calibrate(logits_nc, honest.code_n, filled_c, honest.weight_n).surprise


def _beside(z_nd: Tensor, column_nm: Tensor | None) -> Tensor:
    return z_nd if column_nm is None else torch.cat([z_nd, column_nm], 1)


def _scored_without(space: _Space, choice: Choice) -> tuple[Rows, Tensor]:
    """Score mapped rows by the prototypes that the others give."""
    rows = space.mapped(space.evidence, choice.form)
    return rows, choice.calibration(space.scored(choice.form), choice.form.weight_c)


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


def _learned_by_halves(
    rows: Rows, choice: Choice, column_nm: Tensor | None = None
) -> tuple[Rows, Tensor]:
    """Score mapped rows by what the others give, and what is learned from one half of them."""
    form = choice.form
    spare = form.spare(*rows[1:])
    scored, logits = [], []
    first_n = _first_half(rows)
    halves = first_n, rows.weight_n - first_n
    for learned_n in halves[:1] if len(first_n) > _MOST_EVIDENCE else halves:
        learned_n = torch.where(spare, learned_n, rows.weight_n)
        learned = rows._replace(weight_n=learned_n).where(learned_n > 0)
        part_nm = None if column_nm is None else column_nm[learned_n > 0]
        added_ce = _learned(learned, choice, _FEW_STEPS, part_nm)
        added_cd, added_cm = added_ce.tensor_split([rows.x_nd.shape[1]], dim=1)
        others_n = rows.weight_n - learned_n
        others = rows._replace(weight_n=others_n).where(others_n > 0)
        without = form.without(*others)
        scored.append(others)
        logits.append(choice.calibration(without.logits(), form.weight_c))
        logits[-1] += without.products(others.x_nd, added_cd)
        if column_nm is not None:
            logits[-1] += column_nm[others_n > 0] @ added_cm.mT
    return Rows(*map(torch.cat, zip(*scored, strict=True))), torch.cat(logits)


def _first_half(rows: Rows) -> Tensor:
    """Give every other row of each class, or the part of its weight that falls into a half.

    Rows are taken by their length: a row that comes twice is then halved like one that counts two.
    Weights of a class that are below 1 on average are counted in units of that average.
    """
    unit_c = torch.bincount(rows.code_n, rows.weight_n) / torch.bincount(rows.code_n).clamp_min(1)
    unit_n = unit_c.clamp(torch.finfo(unit_c.dtype).tiny, 1)[rows.code_n]
    count_n = rows.weight_n / unit_n
    order = torch.argsort(rows.x_nd.square().sum(1), stable=True)
    order = order[torch.argsort(rows.code_n[order], stable=True)]
    end_n = count_n[order].cumsum(0)
    start_n = end_n - count_n[order]

    def even(t_n: Tensor) -> Tensor:  # how much of all up to t is in even places
        pairs_n = (t_n / 2).floor()
        return pairs_n + (t_n - 2 * pairs_n).clamp_max(1)

    part_n = torch.empty_like(end_n)
    part_n[order] = (even(end_n) - even(start_n)) / count_n[order]
    return rows.weight_n * torch.round(part_n, decimals=9)  # all or nothing has no rounding


def _nearest_means(statistics: Statistics, rows: Rows) -> Tensor:
    """Score rows by how near class means are, without the row itself."""
    x_nd, code_n, weight_n = rows
    mean_cd, size_n = statistics.mean_cd.to(x_nd), statistics.weight_c[code_n].to(x_nd)
    square_c, taken_n = mean_cd.square().sum(1), weight_n.clamp_max(1).to(x_nd)
    scores_nc = x_nd @ mean_cd.mT
    mean_n, row_n = scores_nc.gather(1, code_n.unsqueeze(1)).squeeze(1), x_nd.square().sum(1)
    # The mean of the others of the class, (size mean - taken x) / (size - taken), by its products.
    product_n = (size_n * mean_n - taken_n * row_n) / (size_n - taken_n)
    square_n = size_n**2 * square_c[code_n] - 2 * size_n * taken_n * mean_n + taken_n**2 * row_n
    own_n = product_n - square_n / (2 * (size_n - taken_n) ** 2)
    scores_nc -= square_c / 2
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


def _learned(rows: Rows, choice: Choice, n_steps: int, column_nm: Tensor | None = None) -> Tensor:
    """Learn what to add to the prototypes, and to columns, from mapped rows."""
    form, (z_nd, code_n, weight_n) = choice.form, rows
    spare = form.spare(code_n, weight_n)
    base_nc = form.without(*rows.where(spare)).logits()
    if len(base_nc) < len(z_nd):
        # A class of one row is not known without it: its logit says as much as the centre does.
        known_nc, base_nc = base_nc, form.logits(z_nd)
        base_nc.scatter_(1, code_n.unsqueeze(1), 0.0)
        base_nc[spare] = known_nc
    count_c = torch.bincount(code_n, weight_n.to(base_nc), minlength=len(form.weight_c))
    base_nc = choice.calibration(base_nc, form.weight_c) + count_c.clamp_min(1).log()
    filled_c = form.weight_c > 0
    wide = rows._replace(x_nd=_beside(z_nd, column_nm))
    span = _Span.of(wide) if _pays(wide, len(form.mean_cd), n_steps) else None
    x_ne = wide.x_nd if span is None else span.triangle_nn.to(z_nd)
    added_ce = x_ne.new_zeros(len(form.mean_cd), x_ne.shape[1])
    added_ce[filled_c] = learn_residual(
        x_ne,
        (filled_c.cumsum(0) - 1)[code_n],
        base_nc[:, filled_c],
        _RESIDUAL_RIDGE,
        weight_n=weight_n,
        n_steps=n_steps,
    )
    return added_ce if span is None else span.back(added_ce)


def _pays(wide: Rows, n_classes: int, n_steps: int) -> bool:
    """Say whether steps on as many coordinates as there are rows save more than finding these."""
    n_rows, n_channels = wide.x_nd.shape
    return n_rows * n_channels < 4 * n_steps * n_classes * (n_channels - n_rows)


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
    covariance_dd = statistics_of(fitted, device).covariance(fitted.choices_["ridge"])
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
    return Statistics.restored(*(torch.from_numpy(part).to(device) for part in parts))

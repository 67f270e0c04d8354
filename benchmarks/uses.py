"""What prototypes are for, measured beside linear heads on the same features.

    python benchmarks/uses.py FEATURES... [--only QUESTION ...] [--sets NAME ...] [--again]
        [--json results/frozen/uses.json]

FEATURES are folders that `frozen_features.py` wrote. The questions:

``adding``
    Classes are added one at a time, from 1, 5 or 20 rows each. Balanced accuracy on old and new
    classes after some of them, beside fitting everything again and beside linear heads.
``novelty``
    A third of the classes is left out. Which number tells their rows (``near``), and those of
    another data set (``far``), from rows of the others?
``mixes``
    Test rows in several mixes of classes: accuracy, likelihood and calibration by ``prior``.
``noise``
    Some training labels are made wrong: accuracy on right labels, and who finds the wrong ones.

The rival is logistic regression with post-hoc logit adjustment. Its preparation, its C, its
temperature and what a new weight vector needs are chosen by folds of its training rows; test rows
choose nothing. All of it on three random long-tailed subsets. A question and set that the file
already has is left as it is, unless ``--again`` is given. `uses_page.py` writes docs/uses.md.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from frozen import Array, Problem, Tail, problems, regression, rows_of
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.covariance import LedoitWolf
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors

from protail import PrototypeClassifier
from protail._files import new_file
from protail.baselines import k_nearest_neighbours, nearest_class_mean
from protail.estimator._predicting import class_mix
from protail.evaluation import calibration_error, novelty_auroc

Record = dict[str, Any]
# Not those that rules were made on (`frozen.DEVELOP`).
SETS = {
    "birds lite2": Tail("birds_lite2"),
    "cifar lite2": Tail("cifar100_lite2", n_classes=50, most=60, least=3, n_test=30),
    "kinds": Tail("kinds_use", most=50, least=4, n_test=20),
}
# Rows of another data set by the same network.
FAR = {
    "birds_lite2": "cifar100_lite2",
    "cifar100_lite2": "birds_lite2",
    "digits": "noise",
}
KINDS, FIRST_C, OTHER_C, N_FOLDS = ("l2", "centred-l2", "root-l2"), 10.0, (1.0, 100.0, 1000.0), 5
LEFT_OUT = 1 / 3
# What tells one case from another; everything else is measured.
CASE = ("way", "score", "mix", "head", "finder", "photos", "added", "unseen", "prior", "wrong")
WRONG = (0.0, 0.1, 0.2, 0.4)
N_MIXES = 5  # so many times test rows are drawn in a mix
TEMPERATURES = np.geomspace(0.1, 10, 81)
# A new weight vector beside the mean length of the old ones, and its bias beside their mean.
LENGTHS, OFFSETS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8), np.arange(-8.0, 8.1, 1.0)


@dataclass(frozen=True)
class Growth:
    """Known classes, a long tail of them, and others that are added."""

    file: str
    n_known: int
    n_new: int
    most: int
    least: int
    steps: tuple[int, ...]
    photos: tuple[int, ...] = (1, 5, 20)
    n_test: int = 30


GROWTH = {
    "tiny lite2": Growth("tiny_lite2", 100, 100, 60, 3, (10, 50, 100)),
    "cifar lite2": Growth("cifar100_lite2", 50, 50, 60, 3, (10, 50)),
    "cifar opennsfw": Growth("cifar100_opennsfw", 25, 25, 60, 3, (10, 25), n_test=20),
    "kinds": Growth("kinds_use", 27, 28, 50, 3, (10, 28), n_test=20),
}
QUICK = Tail("digits", most=40, least=4, n_test=20)
QUICK_GROWTH = Growth("digits", 6, 4, 40, 4, (1, 4), (1, 5), n_test=20)


class Regression:
    """Logistic regression with logit adjustment; folds of the rows choose what it needs."""

    def __init__(self, x: Array, y: Array, *, quick: bool = False) -> None:
        self.x, self.y, self.count_c = x, y, np.bincount(y)
        tried: dict[tuple[str, float], Array] = {}
        self.choice = max(
            ((kind, FIRST_C) for kind in KINDS[: 1 if quick else None]),
            key=lambda choice: self._accuracy(tried, choice),
        )
        every = [self.choice, *((self.choice[0], C) for C in OTHER_C[: 1 if quick else None])]
        self.choice = max(every, key=lambda choice: self._accuracy(tried, choice))
        self.held_out = tried[self.choice]  # adjusted logits of each row by the folds without it
        own = self.held_out[np.arange(len(y)), y]
        known = np.isfinite(own)  # a class of one row is in no other fold
        self.temperature = min(
            TEMPERATURES,
            key=lambda t: (
                -by_class(
                    log_softmax(self.held_out[known] / t, 1)[np.arange(known.sum()), y[known]],
                    y[known],
                )
            ),
        )
        self.model = self.again(x, y)

    def _accuracy(self, tried: dict[tuple[str, float], Array], choice: tuple[str, float]) -> float:
        if choice not in tried:
            tried[choice] = held_out(partial(regression, *choice), self.x, self.y)
        return by_class(tried[choice].argmax(1) == self.y, self.y)

    def again(self, x: Array, y: Array) -> Any:
        """Fit other rows with what was chosen."""
        return regression(*self.choice).fit(x, y)

    def adjusted(self, x: Array) -> Array:
        """Give logits, adjusted so that all classes are as frequent."""
        scores: Array = self.model.decision_function(x)
        return scores

    def plain(self, x: Array) -> Array:
        """Give logits as learned."""
        return self.adjusted(x) + np.log(self.count_c)

    def trick(self, photos: int) -> tuple[bool, float, float]:
        """Choose the length and the bias that the weight of a new class of so many rows has.

        In each fold half of the classes are taken for new ones, of at most so many rows. Chosen is
        what serves old and new classes best.
        """
        ways = list(product((False, True), LENGTHS))
        total = np.zeros((len(ways), len(OFFSETS)))
        folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0).split(self.x, self.y)
        for fold, (train, rest) in enumerate(folds):
            every = np.arange(len(self.count_c))
            chosen = np.random.default_rng(fold).permutation(every)[::2]
            codes = np.empty_like(every)  # old ones first, as they will be
            codes[np.concatenate([np.setdiff1d(every, chosen), chosen])] = every
            n_old, x = len(codes) - len(chosen), self.x[train]
            y, true = codes[self.y[train]], codes[self.y[rest]]
            is_old = y < n_old
            few = np.concatenate(
                [np.flatnonzero(y == code)[:photos] for code in range(n_old, len(codes))]
            )
            known = (x[is_old], y[is_old]), (x[few], y[few])
            model = self.again(*known[0])
            imprint = imprinted(model, *known, self.x[rest])
            for i, way in enumerate(ways):
                scores = imprint(*way, 0.0)
                for j, offset in enumerate(OFFSETS):
                    shifted = scores + offset * (np.arange(len(codes)) >= n_old)
                    right = shifted.argmax(1) == true
                    total[i, j] += by_class(right[true < n_old], true[true < n_old])
                    total[i, j] += by_class(right[true >= n_old], true[true >= n_old])
        i, j = np.unravel_index(total.argmax(), total.shape)
        return *ways[i], float(OFFSETS[j])


def imprinted(
    model: Any, old: tuple[Array, Array], new: tuple[Array, Array], x: Array
) -> Callable[[bool, float, float], Array]:
    """Score rows by the weights there are, and by one for each new class along its mean.

    Its bias gives it the logit that old classes have on average, at the centre or (``at_mean``) at
    its own mean, and an offset.
    """
    head, prepare = model[-1], model[:-1].transform
    old_cd = class_means(prepare(old[0]), old[1])
    centre = old_cd.mean(0)
    mean_cd = class_means(prepare(new[0]), new[1]) - centre
    long_c = np.linalg.norm(mean_cd, axis=1)
    z = prepare(x)
    known_nc, new_nc = head.decision_function(z), (z - centre) @ (mean_cd / long_c[:, None]).T
    usual = np.linalg.norm(head.coef_, axis=1).mean()
    at_old = head.decision_function(old_cd).diagonal().mean()
    at_centre = head.decision_function(centre[None]).mean()

    def scores(at_mean: bool, length: float, offset: float) -> Array:
        bias = at_old - length * usual * long_c if at_mean else at_centre
        return np.hstack([known_nc, length * usual * new_nc + bias + offset])

    return scores


def class_means(x: Array, y: Array) -> Array:
    """Average the rows of each class."""
    return np.stack([x[y == code].mean(0) for code in np.unique(y)])


def held_out(make: Callable[[], Any], x: Array, y: Array) -> Array:
    """Score each row by what was fitted on the folds without it."""
    scores = np.full((len(y), y.max() + 1), -np.inf)
    for train, rest in StratifiedKFold(N_FOLDS, shuffle=True, random_state=0).split(x, y):
        model = make().fit(x[train], y[train])
        scores[np.ix_(rest, model.classes_)] = model.decision_function(x[rest])
    return scores


def by_class(values: Array, y: Array) -> float:
    """Average over rows, classes weighing alike."""
    n_c = np.bincount(y)
    return float((np.bincount(y, values)[n_c > 0] / n_c[n_c > 0]).mean())


def folder_of(file: str, folders: list[Path]) -> Path:
    """Find the folder that has a file of features."""
    return next((f for f in folders if (f / f"{file}.npz").exists()), Path("."))


# Adding classes


def grown(growth: Growth, folders: list[Path], seed: int) -> Problem:
    """Draw known classes, which come first, and new ones."""
    x, y, is_test = rows_of(Tail(growth.file), folder_of(growth.file, folders))
    rng = np.random.default_rng(seed)
    is_test = is_test.astype(bool)
    if not is_test.any():
        is_test[rng.permutation(len(y))[: len(y) // 2]] = True
    classes = rng.permutation(y.max() + 1)
    new = classes[np.bincount(y[~is_test])[classes] >= max(growth.photos)][: growth.n_new]
    known = classes[~np.isin(classes, new)][: growth.n_known]
    power = np.arange(growth.n_known) / (growth.n_known - 1)
    sizes = np.round(growth.most * (growth.least / growth.most) ** power).astype(int)
    train, test = [], []
    for label, size in zip(
        [*known, *new], [*sizes, *[max(growth.photos)] * growth.n_new], strict=True
    ):
        own = rng.permutation(np.flatnonzero(y == label))
        train.append(own[~is_test[own]][:size])
        test.append(own[is_test[own]][: growth.n_test])
    codes = np.arange(len(train))
    return Problem(
        x[np.concatenate(train)],
        np.repeat(codes, list(map(len, train))),
        x[np.concatenate(test)],
        np.repeat(codes, list(map(len, test))),
    )


def adding(growth: Growth, folders: list[Path], seed: int, quick: bool) -> Iterator[Record]:
    """Add classes one at a time; fit everything again after some of them."""
    whole = grown(growth, folders, seed)
    x, y, n_known = whole.x, whole.y, growth.n_known
    old = y < n_known
    learned = PrototypeClassifier().fit(x[old], y[old])
    plain = PrototypeClassifier(method="closed-form").fit(x[old], y[old])
    rival = Regression(x[old], y[old], quick=quick)

    def scored(way: str, photos: int, n_new: int, found: Array, seconds: float) -> Record:
        true = whole.y_test[whole.y_test < n_known + n_new]
        right = found == true
        parts = {"all": true >= 0, "old": true < n_known, "new": true >= n_known}
        return {"way": way, "photos": photos, "added": n_new, "seconds": seconds} | {
            name: 100 * by_class(right[rows], true[rows])
            for name, rows in parts.items()
            if rows.any()
        }

    x_old = whole.x_test[whole.y_test < n_known]
    for way, model in ("add_classes", learned), ("closed form, add_classes", plain):
        yield scored(way, 0, 0, model.predict(x_old), 0.0)
    yield scored("regression, new weight", 0, 0, rival.model.predict(x_old), 0.0)
    for photos in growth.photos:
        few = [np.flatnonzero(y == code)[:photos] for code in range(n_known, len(whole.counts))]
        trick = rival.trick(photos)
        model, spent = deepcopy(learned), 0.0
        for n_new, rows in enumerate(few, 1):
            start = time.perf_counter()
            model.add_classes(x[rows], y[rows])
            spent += time.perf_counter() - start
            if n_new not in growth.steps:
                continue
            shown = whole.x_test[whole.y_test < n_known + n_new]
            yield scored("add_classes", photos, n_new, model.predict(shown), spent / n_new)
            new = np.concatenate(few[:n_new])
            every = np.concatenate([np.flatnonzero(old), new])
            start = time.perf_counter()
            at_once = deepcopy(plain).add_classes(x[new], y[new])
            seconds = (time.perf_counter() - start) / n_new
            way = "closed form, add_classes"  # in one call, which changes next to nothing
            yield scored(way, photos, n_new, at_once.predict(shown), seconds)
            start = time.perf_counter()
            known = (x[old], y[old]), (x[new], y[new])
            scores = imprinted(rival.model, *known, shown)(*trick)
            seconds = (time.perf_counter() - start) / n_new
            yield scored("regression, new weight", photos, n_new, scores.argmax(1), seconds)
            for way, fit in {
                "fitted again": PrototypeClassifier().fit,
                "regression, fitted again": rival.again,
                "nearest class mean": nearest_class_mean().fit,
            }.items():
                start = time.perf_counter()
                fitted = fit(x[every], y[every])
                seconds = time.perf_counter() - start
                yield scored(way, photos, n_new, fitted.predict(shown), seconds)


# Novelty


def boundary_nearness(scores: Array, weight_cd: Array) -> Array:
    """Measure how far the nearest boundary of the predicted class is, and give less that."""
    best = scores.argmax(1)
    square_c = np.square(weight_cd).sum(1)
    apart = np.sqrt(np.maximum(square_c[:, None] + square_c - 2 * weight_cd @ weight_cd.T, 1e-12))
    gap = (scores.max(1, keepdims=True) - scores) / apart[best]
    gap[np.arange(len(best)), best] = np.inf
    nearest: Array = gap.min(1)
    return -nearest


def novelties(x: Array, y: Array, quick: bool) -> dict[str, Callable[[Array], Array]]:
    """Fit on some classes; give what can say how new a row is."""
    model = PrototypeClassifier().fit(x, y)
    rival = Regression(x, y, quick=quick)
    prepare = rival.model[:-1].transform
    z = prepare(x)
    mean_cd = class_means(z, y)
    covariance = LedoitWolf(assume_centered=True).fit(z - mean_cd[y]).covariance_
    inverse = np.linalg.inv(np.linalg.cholesky(covariance)).T
    mapped = NearestNeighbors(n_neighbors=1).fit(mean_cd @ inverse)
    rows = NearestNeighbors(n_neighbors=1).fit(z)
    return {
        "novelty_score": model.novelty_score,
        "largest probability": lambda t: -model.predict_proba(t).max(1),
        "energy": lambda t: -logsumexp(model.decision_function(t), axis=1),
        "distance from the prototype": lambda t: model.distances(t).min(1),
        "regression, largest probability": lambda t: -softmax(rival.adjusted(t), 1).max(1),
        "regression, energy": lambda t: -logsumexp(rival.adjusted(t), axis=1),
        "regression, largest logit": lambda t: -rival.adjusted(t).max(1),
        "regression, distance from the boundary": lambda t: boundary_nearness(
            rival.adjusted(t), rival.model[-1].coef_
        ),
        "regression as learned, largest probability": lambda t: -softmax(rival.plain(t), 1).max(1),
        "regression as learned, energy": lambda t: -logsumexp(rival.plain(t), axis=1),
        "nearest row": lambda t: rows.kneighbors(prepare(t))[0][:, 0],
        "nearest class mean, Mahalanobis": lambda t: mapped.kneighbors(prepare(t) @ inverse)[0][
            :, 0
        ],
    }


def novelty(tail: Tail, folders: list[Path], seed: int, quick: bool) -> Iterator[Record]:
    """Leave classes out, and see which numbers tell their rows from the others'."""
    problem = list(problems(tail, folder_of(tail.file, folders)))[seed]
    unseen = np.random.default_rng(seed).random(len(problem.counts)) < LEFT_OUT
    unseen[:2] = False, True
    kept = ~unseen[problem.y]
    codes = np.cumsum(~unseen) - 1
    scores = novelties(problem.x[kept], codes[problem.y[kept]], quick)
    is_new = unseen[problem.y_test]
    shown = {"near": problem.x_test[is_new]}
    if far := FAR.get(tail.file):
        if far == "noise":
            shown["far"] = 16 - shown["near"]
        else:
            with np.load(folder_of(far, folders) / f"{far}.npz") as file:
                rows = file["x"][file["is_test"].astype(bool)].astype(np.float32)
            shown["far"] = np.random.default_rng(seed).permutation(rows)[:1000]
    for name, score in scores.items():
        known = score(problem.x_test[~is_new])
        for unseen_rows, rows in shown.items():
            found = score(rows)
            yield {
                "score": name,
                "unseen": unseen_rows,
                "auroc": 100 * novelty_auroc(known, found),
                "found at 5 %": 100 * float((found > np.quantile(known, 0.95)).mean()),
            }


# Mixes of classes


def likeliest_mix(p_nc: Array, prior_c: Array) -> Array:
    """Estimate the mix of classes as Saerens, Latinne and Decaestecker do."""
    mix_c = prior_c
    for _ in range(500):
        part_nc = p_nc * (mix_c / prior_c)
        part_nc /= part_nc.sum(1, keepdims=True)
        before_c, mix_c = mix_c, part_nc.mean(0)
        if np.abs(mix_c - before_c).max() < 1e-6:
            break
    return mix_c


def mixes(tail: Tail, folders: list[Path], seed: int, quick: bool) -> Iterator[Record]:
    """Score probabilities on test rows in several mixes of classes."""
    problem = list(problems(tail, folder_of(tail.file, folders)))[seed]
    n, n_classes = problem.counts.astype(float), len(problem.counts)
    model = PrototypeClassifier().fit(problem.x, problem.y)
    rival = rival_of(tail, folders, seed, quick)
    # Under a uniform mix; every other mix follows from it.
    even = {
        "default": model.predict_proba(problem.x_test).astype(float),
        "regression": softmax(rival.adjusted(problem.x_test) / rival.temperature, 1),
        "regression, no temperature": softmax(rival.adjusted(problem.x_test), 1),
    }
    rng, alike_c = np.random.default_rng(seed), np.full(n_classes, 1 / n_classes)
    for mix, part_c in {
        "uniform": np.ones(n_classes),
        "as in training": n / n.max(),
        "reversed": n.min() / n,
        "a tail in another order": rng.permutation(n) / n.max(),
    }.items():
        found: dict[tuple[str, str], list[list[float]]] = {}
        for _ in range(N_MIXES):
            rows = rng.random(len(problem.y_test)) < part_c[problem.y_test]
            y = problem.y_test[rows]
            for head, every in even.items():
                p = every[rows]
                for prior, mix_c in {
                    "uniform": alike_c,
                    "exact": part_c / part_c.sum(),
                    "train": n / n.sum(),
                    "estimate": class_mix(p, n),
                    "plain EM": likeliest_mix(p, alike_c),
                }.items():
                    q = p * mix_c
                    q /= q.sum(1, keepdims=True)
                    right, own = q.argmax(1) == y, q[np.arange(len(y)), y]
                    found.setdefault((head, prior), []).append(
                        [
                            100 * right.mean(),
                            -np.log(np.maximum(own, 1e-12)).mean(),
                            100 * calibration_error(q.max(1), right),
                        ]
                    )
        for (head, prior), values in found.items():
            means = np.mean(values, 0).tolist()
            names = "accuracy", "surprise", "calibration"
            yield {"mix": mix, "head": head, "prior": prior, **dict(zip(names, means, strict=True))}


# Label noise


def spoilt(y: Array, fraction: float, rng: np.random.Generator) -> Array:
    """Give so many rows the label of another row; every class keeps a right one."""
    labels, first = y.copy(), np.unique(y, return_index=True)[1]
    free = rng.permutation(np.setdiff1d(np.arange(len(y)), first))
    for row in free[: round(fraction * len(y))]:
        labels[row] = rng.choice(y[y != y[row]])
    return labels


def without(flagged: Array, labels: Array) -> Array:
    """Say which rows stay; a class that would lose all its rows keeps them."""
    left_c = np.bincount(labels[~flagged], minlength=labels.max() + 1)
    stays: Array = ~flagged | (left_c[labels] == 0)
    return stays


def noise(tail: Tail, folders: list[Path], seed: int, quick: bool) -> Iterator[Record]:
    """Make labels wrong; score what is learned from them, and who finds them."""
    problem = list(problems(tail, folder_of(tail.file, folders)))[seed]
    x, y, at = problem.x, problem.y, np.arange(len(problem.y))
    for level in WRONG[::2] if quick else WRONG:
        labels = spoilt(y, level, np.random.default_rng(seed))
        wrong = labels != y
        model = PrototypeClassifier().fit(x, labels)
        rival = (
            Regression(x, labels, quick=quick) if level else rival_of(tail, folders, seed, quick)
        )
        listed = model.suspicious_rows(x, labels)
        odds = np.full(len(y), np.inf)
        odds[listed.rows] = -listed.log_odds
        guess = labels.copy()
        guess[listed.rows] = listed.suggested
        plain = np.where(np.isfinite(rival.held_out), rival.held_out, -1e3)
        adjusted, plain = plain, plain + np.log(rival.count_c)
        others = adjusted.copy()
        others[at, labels] = -np.inf
        for finder, suspicion, suggested in (
            ("suspicious_rows", -odds, guess),
            ("regression, loss", -log_softmax(plain, 1)[at, labels], plain.argmax(1)),
            ("regression, odds", others.max(1) - adjusted[at, labels], adjusted.argmax(1)),
        ):
            flagged = suggested != labels
            record = {"finder": finder, "wrong": level, "listed": 100 * float(flagged.mean())}
            if level:
                ranked = np.where(np.isfinite(suspicion), suspicion, -1e9)
                record |= {
                    "precision": 100 * float(wrong[flagged].mean()),
                    "recall": 100 * float(flagged[wrong].mean()),
                    "average precision": 100 * float(average_precision_score(wrong, ranked)),
                    "suggested": 100 * float((suggested == y)[wrong & flagged].mean()),
                }
            yield record
        cleaned, cleaned_by_rival = (
            without(each != labels, labels) for each in (guess, adjusted.argmax(1))
        )
        heads: dict[str, Any] = {
            "default": model,
            "default, without suspicious_rows": PrototypeClassifier().fit(
                x[cleaned], labels[cleaned]
            ),
            "closed form": PrototypeClassifier(method="closed-form").fit(x, labels),
            "regression": rival.model,
            "regression, without what it finds": rival.again(
                x[cleaned_by_rival], labels[cleaned_by_rival]
            ),
            "nearest class mean": nearest_class_mean().fit(x, labels),
            "nearest rows": k_nearest_neighbours(5).fit(x, labels),
        }
        for head, fitted in heads.items():
            right = fitted.predict(problem.x_test) == problem.y_test
            yield {"head": head, "wrong": level, "accuracy": 100 * by_class(right, problem.y_test)}


RIVALS: dict[tuple[Tail, int], Regression] = {}


def rival_of(tail: Tail, folders: list[Path], seed: int, quick: bool) -> Regression:
    """Fit the rival on right labels, once for two questions."""
    if (tail, seed) not in RIVALS:
        problem = list(problems(tail, folder_of(tail.file, folders)))[seed]
        RIVALS[tail, seed] = Regression(problem.x, problem.y, quick=quick)
    return RIVALS[tail, seed]


QUESTIONS: dict[str, Callable[..., Iterator[Record]]] = {
    "adding": adding,
    "novelty": novelty,
    "mixes": mixes,
    "noise": noise,
}


def together(records: Iterator[Record]) -> list[Record]:
    """Put what subsets gave for the same case side by side."""
    cases: dict[tuple[Any, ...], Record] = {}
    for record in records:
        case = {name: record.pop(name) for name in CASE if name in record}
        values = cases.setdefault(tuple(case.values()), case)
        for name, value in record.items():
            values.setdefault(name, []).append(round(value, 4))
    return list(cases.values())


def as_text(found: Record) -> str:
    """Write JSON with a case a line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\{[^{}]*\}", lambda case: " ".join(case[0].split()), text) + "\n"


def main(arguments: list[str] | None = None) -> Record:
    """Answer what is not answered yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="digits alone, one subset")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--sets", nargs="+", help="names of sets")
    parser.add_argument("--again", action="store_true", help="what the file has is measured again")
    parser.add_argument("--json", type=Path, default=Path("results/frozen/uses.json"))
    chosen = parser.parse_args(arguments)
    found: Record = {"command": "python benchmarks/uses.py FEATURES..."}
    if chosen.json.exists():
        found = json.loads(chosen.json.read_text())
    for question in chosen.only:
        sets: dict[str, Any] = GROWTH if question == "adding" else SETS
        if chosen.quick:
            sets = {"digits": QUICK_GROWTH if question == "adding" else QUICK}
        answers = found.setdefault(question, {})
        for name, what in sets.items():
            if (chosen.sets and name not in chosen.sets) or (name in answers and not chosen.again):
                continue
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # not converged, a class of one row
                answers[name] = together(
                    record
                    for seed in range(1 if chosen.quick else 3)
                    for record in QUESTIONS[question](what, chosen.features, seed, chosen.quick)
                )
            print(f"{question}, {name}: {time.perf_counter() - start:.0f} s", flush=True)
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            with new_file(chosen.json, overwrite=True) as part:
                part.write_text(as_text(found))
    return found


if __name__ == "__main__":
    main()

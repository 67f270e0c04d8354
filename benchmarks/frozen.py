"""Classifiers on frozen pretrained features, long-tailed: accuracy, the rarest classes, time.

    python benchmarks/frozen.py FEATURES [--part develop|judge] [--only NAME ...] [--json FILE]

FEATURES is what `frozen_features.py` wrote. Each set is cut to three random long tails; test rows
are the same number of every class. ``best of LR + LA`` has its preparation and its C chosen *on
the test rows*, for the mean of the three: nobody who sees training rows alone can know them.

Rules are made with the part ``develop`` in view; ``judge`` is looked at once, at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_wine

from protail import PrototypeClassifier
from protail.baselines import (
    LogitAdjustedRegression,
    balanced_logistic_regression,
    nearest_class_mean,
    shrinkage_lda,
)
from protail.estimator._features import PREPARATIONS, Preparation

Array = NDArray[Any]
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Tail:
    """A long-tailed subset of a file of features."""

    file: str
    key: str = "x"
    n_classes: int | None = None
    most: int = 30
    least: int = 3
    n_test: int = 10


DEVELOP = {
    "birds lite0, 30..3": Tail("birds_lite0"),
    "birds lite0, 25..1": Tail("birds_lite0", most=25, least=1),
    "tiny lite0, 40..2": Tail("tiny_lite0", n_classes=100, most=40, least=2, n_test=30),
    "tiny lite0 early, 40..2": Tail("tiny_lite0", "early", 100, 40, 2, 30),
    "cifar lite1, 60..1": Tail("cifar100_lite1", n_classes=50, most=60, least=1, n_test=30),
    "cifar lite1 early, 60..3": Tail("cifar100_lite1", "early", 30, 60, 3, 30),
}
JUDGE = {
    "birds lite2, 30..3": Tail("birds_lite2"),
    "birds lite1, 25..1": Tail("birds_lite1", most=25, least=1),
    "tiny lite2, 60..1": Tail("tiny_lite2", n_classes=150, most=60, least=1, n_test=30),
    "tiny lite2 early, 40..1": Tail("tiny_lite2", "early", 60, 40, 1, 30),
    "cifar lite2, 60..3": Tail("cifar100_lite2", n_classes=100, most=60, least=3, n_test=30),
    "digits, 100..2": Tail("digits", most=100, least=2, n_test=60),
    "wine, 40..3": Tail("wine", most=30, least=3, n_test=15),
}


@dataclass(frozen=True)
class Problem:
    """Rows to learn from and to test on."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array

    @property
    def counts(self) -> Array:
        """Training rows of each class."""
        return np.bincount(self.y)

    def scores(self, predicted: Array) -> tuple[float, float]:
        """Give balanced accuracy, of all classes and of the rarest third, in per cent."""
        right = np.array(
            [100 * np.mean(predicted[self.y_test == c] == c) for c in range(len(self.counts))]
        )
        rarest = np.argsort(self.counts, kind="stable")[: len(right) // 3]
        return float(right.mean()), float(right[rarest].mean())


def rows_of(tail: Tail, features: Path) -> tuple[Array, Array, Array]:
    """Read a file: rows, labels, and which are for testing (in small sets none is yet)."""
    if tail.file in ("digits", "wine"):
        x, y = (load_digits if tail.file == "digits" else load_wine)(return_X_y=True)
        return x.astype(np.float32), y, np.zeros(len(y), bool)
    with np.load(features / f"{tail.file}.npz") as file:
        return file[tail.key].astype(np.float32), file["y"], file["is_test"]


def problems(tail: Tail, features: Path) -> Iterator[Problem]:
    """Cut three long tails."""
    x, y, is_test = rows_of(tail, features)
    pooled = is_test.mean() < 0.1 or "birds" in tail.file  # few rows: which are tested changes too
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        classes = rng.permutation(y.max() + 1)[: tail.n_classes]
        if pooled:  # the largest classes come first, where they have the rows
            classes = classes[np.argsort(-np.bincount(y)[classes], kind="stable")]
        power = np.arange(len(classes)) / (len(classes) - 1)
        sizes = np.round(tail.most * (tail.least / tail.most) ** power).astype(int)
        train, test = [], []
        for label, size in zip(classes, sizes, strict=True):
            own = rng.permutation(np.flatnonzero(y == label))
            held = own[: tail.n_test] if pooled else own[is_test[own]][: tail.n_test]
            test.append(held)
            train.append(np.setdiff1d(own if pooled else own[~is_test[own]], held)[:size])
        codes = np.arange(len(classes))
        yield Problem(
            x[np.concatenate(train)],
            np.repeat(codes, list(map(len, train))),
            x[np.concatenate(test)],
            np.repeat(codes, list(map(len, test))),
        )


def regression(preparation: str, C: float) -> Callable[[Problem], Array]:
    """Predict by logistic regression with post-hoc logit adjustment."""

    def predict(problem: Problem) -> Array:
        rows = [torch.from_numpy(part) for part in (problem.x, problem.x_test)]
        prepared = Preparation.of(preparation, rows[0], torch.ones(len(rows[0])))
        x, x_test = (prepared(part).numpy() for part in rows)
        return LogitAdjustedRegression(C=C).fit(x, problem.y).predict(x_test)

    return predict


def fitted(make: Callable[[], Any]) -> Callable[[Problem], Array]:
    """Predict by a scikit-learn estimator."""
    return lambda problem: make().fit(problem.x, problem.y).predict(problem.x_test)


HEADS: dict[str, Callable[[Problem], Array]] = {
    "PrototypeClassifier": fitted(PrototypeClassifier),
    "closed form alone": fitted(partial(PrototypeClassifier, method="closed-form")),
    "the paper's": fitted(partial(PrototypeClassifier, method="paper", random_state=0)),
    "nearest class mean": fitted(nearest_class_mean),
    "LR, balanced": fitted(balanced_logistic_regression),
    "shrinkage LDA": fitted(shrinkage_lda),
    **{
        f"LR + LA, {name}, C={C:g}": regression(name, C)
        for name in PREPARATIONS[:-1]
        for C in (10.0, 100.0, 1000.0)
    },
}


def main() -> None:
    """Print a line for each set and head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument("--part", choices=["develop", "judge"], default="develop")
    parser.add_argument("--only", nargs="+", default=[], help="heads whose names hold one of these")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    record: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, tail in (DEVELOP if chosen.part == "develop" else JUDGE).items():
        cut = list(problems(tail, chosen.features))
        print(f"{name}: {len(cut[0].y):,} rows x {cut[0].x.shape[1]}, {len(cut[0].counts)} classes")
        for head, predict in HEADS.items():
            if chosen.only and not any(part in head for part in chosen.only):
                continue
            start = time.perf_counter()
            every = [problem.scores(predict(problem)) for problem in cut]
            seconds = (time.perf_counter() - start) / len(cut)
            balanced, rarest = np.mean(every, 0)
            record[name][head] = {"balanced": balanced, "rarest": rarest, "seconds": seconds}
            if not head.startswith("LR + LA"):
                print(f"  {head:26}{balanced:6.1f} ({rarest:4.1f}) {seconds:7.2f} s", flush=True)
        rivals = {head: each for head, each in record[name].items() if head.startswith("LR + LA")}
        if rivals:
            head, best = max(rivals.items(), key=lambda each: each[1]["balanced"])
            print(
                f"  best of LR + LA           {best['balanced']:6.1f} ({best['rarest']:4.1f}) "
                f"{best['seconds']:7.2f} s   {head}",
                flush=True,
            )
        if chosen.json:
            chosen.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

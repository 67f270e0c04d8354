"""Classifiers on frozen features, long-tailed: accuracy, calibration, novelty, time and memory.

    python benchmarks/frozen.py FEATURES [--only NAME ...] [--json FILE]
        [--part develop|judge|verdict|final|memorised|gaussian|mixes|speed]

FEATURES is what `frozen_features.py` wrote. Each set is cut to three random long tails; test rows
are the same number of every class. ``best of LR + LA`` has its preparation and its C chosen *on
the test rows*, for the mean of the three: nobody who sees training rows alone can know them.
Columns: balanced accuracy of all classes, and of the common, middle and rarest third; balanced
negative log-likelihood; calibration error, classes weighing alike, and the one that chance alone
would give on as many rows, were all probabilities right; AUROC with which rows of classes left out
of the training are found (a third of the classes); seconds and MiB of a fit.

Rules are made with the part ``develop`` in view; ``judge`` is looked at once, at the end.
``verdict`` is other networks and other rows (how they are made: `frozen_features.py`), looked at
once after ``judge``. ``final`` is others again, chosen before any classifier had seen them, for a
last look when all the rest was used up.
``memorised`` are features of images that their network learned from (``PROTAIL_SHARED``);
``gaussian`` is a map of easy to hard generated classes. On the sets of ``develop``, ``mixes`` has
the accuracy of each ``prior`` on test rows in several mixes, and ``speed`` medians of times beside
those of logistic regression and of nearest centroids.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, normalize

from protail import PrototypeClassifier
from protail.baselines import (
    LogitAdjustedRegression,
    balanced_logistic_regression,
    nearest_class_mean,
    shrinkage_lda,
)
from protail.estimator._features import PREPARATIONS, Preparation
from protail.evaluation import calibration_error

Array = NDArray[Any]
SEEDS = (0, 1, 2)
# Of the classes, so many are left out of the training where novelty is measured.
LEFT_OUT = 1 / 3
# With fewer, those that are left tell nothing of others.
FEWEST_CLASSES = 6


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
# Made by networks, and of rows, that neither of the two has. Look once.
VERDICT = {
    "birds opennsfw, 30..3": Tail("birds_opennsfw"),
    "birds resnet50, 25..1": Tail("birds_imgsim", most=25, least=1),
    "tiny opennsfw, 60..4": Tail("tiny_opennsfw", n_classes=50, most=60, least=4, n_test=20),
    "cifar opennsfw, 60..1": Tail("cifar100_opennsfw", n_classes=50, most=60, least=1, n_test=20),
    "cifar resnet50, 60..4": Tail("cifar100_imgsim", "embedding", 50, 60, 4, 20),
    "cifar10 lcnet, 250..10": Tail("cifar10_lcnet", "early", most=250, least=10, n_test=60),
    "glosses, 200..2": Tail("glosses_wordllama", most=200, least=2, n_test=60),
    "kinds, 50..4": Tail("kinds_use", most=50, least=4, n_test=20),
    "letter, 200..2": Tail("letter", most=200, least=2, n_test=60),
    "texture, 60..1": Tail("texture", most=60, least=1, n_test=60),
    "vowel, 60..2": Tail("vowel", most=60, least=2, n_test=30),
    "penbased, 450..5": Tail("penbased", most=450, least=5, n_test=60),
}
# The same once more, and words, code and speech. Chosen before anything was fitted to them.
FINAL = {
    "birds mobilenet, 30..3": Tail("birds_mobilenet140"),
    "cifar nudenet, 60..1": Tail("cifar100_nudenet", most=60, least=1, n_test=25),
    "cifar10 oid, 30..1": Tail("cifar10_oid", least=1, n_test=15),
    "cifar10 centernet, 250..5": Tail("cifar10_centernet", most=250, least=5, n_test=60),
    "sketches, 30..3": Tail("sketches_mobilefacenet", n_test=15),
    "words, 100..2": Tail("words_wink", most=100, least=2, n_test=30),
    "russian words, 70..7": Tail("russian_navec", most=70, least=7, n_test=30),
    "code, 60..1": Tail("files_magika", most=60, least=1, n_test=20),
    "speech, 28..4": Tail("speech_resemblyzer", most=28, least=4, n_test=12),
    "libras, 14..2": Tail("libras", most=14, least=2, n_test=7),
    "olive, 120..3": Tail("olive", most=120, least=3, n_test=12),
    "leaf, 60..2": Tail("leaf", most=60, least=2, n_test=25),
}
TAILS = {"develop": DEVELOP, "judge": JUDGE, "verdict": VERDICT, "final": FINAL}


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
            # In an order of chance: next to each other stand rows of one writer, say.
            rest = own[~np.isin(own, held)]
            train.append((rest if pooled else rest[~is_test[rest]])[:size])
        codes = np.arange(len(classes))
        yield Problem(
            x[np.concatenate(train)],
            np.repeat(codes, list(map(len, train))),
            x[np.concatenate(test)],
            np.repeat(codes, list(map(len, test))),
        )


def prepared(kind: str) -> FunctionTransformer:
    """Prepare rows as the default does, by the rows themselves where it needs a centre."""
    kept: list[Preparation] = []

    def prepare(x: Array) -> Array:
        rows = torch.from_numpy(np.ascontiguousarray(x))
        if not kept:
            kept.append(Preparation.of(kind, rows, torch.ones(len(rows)))[0])
        result: Array = kept[0](rows).numpy()
        return result

    return FunctionTransformer(prepare)


def regression(kind: str, C: float) -> Any:
    """Make logistic regression with post-hoc logit adjustment on prepared rows."""
    return make_pipeline(prepared(kind), LogitAdjustedRegression(C=C))


HEADS: dict[str, Callable[[], Any]] = {
    "PrototypeClassifier": PrototypeClassifier,
    "closed form alone": partial(PrototypeClassifier, method="closed-form"),
    "the paper's": partial(PrototypeClassifier, method="paper", random_state=0),
    "nearest class mean": nearest_class_mean,
    "LR, balanced": balanced_logistic_regression,
    "shrinkage LDA": shrinkage_lda,
    **{
        f"LR + LA, {name}, C={C:g}": partial(regression, name, C)
        for name in PREPARATIONS[:-1]
        for C in (10.0, 100.0, 1000.0)
    },
}


@dataclass
class Scores:
    """What one head makes of one problem, or the mean of several."""

    balanced: float
    common: float
    middle: float
    rarest: float
    surprise: float
    calibration: float
    chance: float
    auroc: float
    seconds: float
    mebibytes: float

    @classmethod
    def mean(cls, every: list[Scores]) -> Scores:
        """Average them."""
        return cls(*np.mean([list(asdict(each).values()) for each in every], 0).tolist())

    def __str__(self) -> str:
        return (
            f"{self.balanced:6.1f} ({self.common:5.1f} {self.middle:5.1f} {self.rarest:5.1f}) "
            f"{self.surprise:6.2f} {self.calibration:6.1f} {self.chance:6.1f} {self.auroc:6.1f} "
            f"{self.seconds:8.2f} {self.mebibytes:7.0f}"
        )


def measured(fit: Callable[[], Any]) -> tuple[Any, float, float]:
    """Fit; give the result, seconds, and by how many MiB the process grew meanwhile."""
    process, done, most = psutil.Process(), threading.Event(), 0
    before = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    fitted = fit()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return fitted, seconds, most / 2**20


def tried(make: Callable[[], Any], problem: Problem, seed: int, *, thorough: bool) -> Scores:
    """Fit and score a head."""
    model, seconds, mebibytes = measured(lambda: make().fit(problem.x, problem.y))
    right = model.predict(problem.x_test) == problem.y_test
    by_class = 100 * np.bincount(problem.y_test, right) / np.bincount(problem.y_test)
    thirds = np.array_split(by_class[np.argsort(-problem.counts, kind="stable")], 3)
    surprise = calibration = chance = auroc = np.nan
    if thorough:
        p = model.predict_proba(problem.x_test)
        own = p[np.arange(len(p)), problem.y_test]
        surprise = -np.log(np.maximum(own, 1e-12)).mean()
        sure, rng = p.max(1), np.random.default_rng(seed)
        calibration = 100 * calibration_error(sure, right)
        drawn = rng.random((50, len(sure))) < sure
        chance = 100 * float(np.mean([calibration_error(sure, each) for each in drawn]))
        if len(by_class) >= FEWEST_CLASSES:
            auroc = unseen_auroc(make, problem, seed)
    return Scores(
        float(by_class.mean()),
        *(float(third.mean()) for third in thirds),
        float(surprise),
        calibration,
        chance,
        auroc,
        seconds,
        mebibytes,
    )


def unseen_auroc(make: Callable[[], Any], problem: Problem, seed: int) -> float:
    """Leave classes out, and see whether their rows are told from those of the others."""
    unseen = np.random.default_rng(seed).random(len(problem.counts)) < LEFT_OUT
    unseen[:2] = False, True
    kept, is_new = ~unseen[problem.y], unseen[problem.y_test]
    model = make().fit(problem.x[kept], problem.y[kept])
    if not isinstance(model, PrototypeClassifier):
        return 100 * float(roc_auc_score(is_new, -model.predict_proba(problem.x_test).max(1)))
    found = [model.novelty_score(problem.x_test)]
    if model.choices_["method"] != "paper":  # the usual three, by the same classifier
        logits = torch.from_numpy(
            model.predict_proba(problem.x_test).astype(np.float64)
            if len(model.classes_) == 2
            else model.decision_function(problem.x_test).astype(np.float64)
        )
        found += [
            model.distances(problem.x_test).min(1),
            -logits.logsumexp(1).numpy(),
            -model.predict_proba(problem.x_test).max(1),
        ]
    first, *usual = (100 * float(roc_auc_score(is_new, each)) for each in found)
    if usual:
        USUAL.append((first, *usual))
    return first


# AUROC of the novelty score, distance, energy and largest probability, of the same classifiers.
USUAL: list[tuple[float, ...]] = []


def memorised() -> Iterator[tuple[str, list[Problem]]]:
    """Give features of images that their network learned from, CIFAR-100-LT at imbalance 100."""
    folder = Path(os.environ.get("PROTAIL_SHARED", "")) / "data/features"
    for network in ("resnet34", "resnet32"):
        with np.load(folder / f"cifar100-lt-100_{network}.npz") as file:
            x, x_test = (file[key].astype(np.float32) for key in ("x_train", "x_test"))
            yield f"memorised {network}", [Problem(x, file["y_train"], x_test, file["y_test"])]


def gaussian() -> Iterator[tuple[str, list[Problem]]]:
    """Draw classes around centres of a spread, with noise of 1."""
    cases = product((5, 20, 100), (32, 384), (0.5, 1.0, 2.0, 4.0), (10, 100))
    for n_classes, n_channels, spread, imbalance in cases:
        counts = np.round(500 * imbalance ** (-np.arange(n_classes) / (n_classes - 1))).astype(int)
        cut = []
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            centres = spread * rng.normal(size=(n_classes, n_channels))
            labels = np.repeat(np.arange(n_classes), counts), np.repeat(np.arange(n_classes), 40)
            rows = [centres[y] + rng.normal(size=(len(y), n_channels)) for y in labels]
            cut.append(Problem(rows[0], labels[0], rows[1], labels[1]))
        yield f"{n_classes} classes, {n_channels} channels, {spread:g}, 1:{imbalance}", cut


def print_mixes(features: Path) -> None:
    """Print the accuracy over test rows in several mixes, by prior, and what an estimate costs."""
    every: dict[str, list[list[list[float]]]] = defaultdict(list)
    priors = "uniform", "estimate", "train"
    for tail in DEVELOP.values():
        found = defaultdict(list)
        for problem in problems(tail, features):
            rng, n, y = np.random.default_rng(0), problem.counts.astype(float), problem.y_test
            model = PrototypeClassifier().fit(problem.x, problem.y)
            for name, part_c in {
                "uniform": np.ones(len(n)),
                "as in training": n / n.max(),
                "its square root": np.sqrt(n / n.max()),
                "the reverse of training": n.min() / n,
                "every fourth class common": np.where(np.arange(len(n)) % 4, 0.1, 1),
            }.items():
                rows = rng.random(len(y)) < part_c[y]
                x_mixed, y_mixed = problem.x_test[rows], y[rows]
                score = [model.set_params(prior=p).score(x_mixed, y_mixed) for p in priors]
                found[name].append([100 * each for each in score])
        for name, scores in found.items():
            every[name].append(np.mean(scores, 0).tolist())
    print("mix of the test rows: accuracy with prior", *priors, "(least gain of an estimate)")
    for name, scores in every.items():
        least = min(each[1] - each[0] for each in scores)
        print(f"  {name:26}", *(f"{each:6.1f}" for each in np.mean(scores, 0)), f"({least:+.1f})")


def print_speed(features: Path) -> None:
    """Print how long fits and predictions take, in milliseconds."""

    def median(call: Callable[[], Any], times: int) -> float:
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return 1000 * float(np.median(seconds))

    chosen = [(name, next(problems(tail, features))) for name, tail in DEVELOP.items()]
    chosen += (
        [(name, cut[0]) for name, cut in memorised()] if "PROTAIL_SHARED" in os.environ else []
    )
    heads = "default", "closed form", "regression", "nearest centroid"
    print(" " * 34, "fit, predict:", *heads)
    for name, cut in chosen:
        x, long = normalize(cut.x), np.tile(cut.x_test, (5, 1))
        makers = (
            (PrototypeClassifier(memorised=False), cut.x),
            (PrototypeClassifier(method="closed-form"), cut.x),
            (LogisticRegression(C=100, max_iter=200), x),
            (NearestCentroid(), cut.x),
        )
        fits = [median(partial(model.fit, rows, cut.y), 5) for model, rows in makers]
        predictions = [median(partial(model.predict, long), 15) for model, _ in makers]
        size = f"{len(x):,} x {x.shape[1]}"
        print(f"{name:24}{size:>13}", *(f"{each:8.1f}" for each in fits + predictions), flush=True)


def sets(part: str, features: Path) -> Iterator[tuple[str, list[Problem]]]:
    """Give the problems of a part of the benchmark."""
    if part in TAILS:
        for name, tail in TAILS[part].items():
            yield name, list(problems(tail, features))
    else:
        yield from (memorised if part == "memorised" else gaussian)()


def main() -> None:
    """Print a line for each set and head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument(
        "--part",
        choices=[*TAILS, "memorised", "gaussian", "mixes", "speed"],
        default="develop",
    )
    parser.add_argument("--only", nargs="+", default=[], help="heads whose names hold one of these")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # not converged, a class of one row
    if chosen.part in ("mixes", "speed"):
        (print_mixes if chosen.part == "mixes" else print_speed)(chosen.features)
        return
    record: dict[str, dict[str, Any]] = defaultdict(dict)
    print(
        " " * 28 + "   all (common middle rarest)  surprise  calib. chance  auroc  seconds     MiB",
        flush=True,
    )
    for name, cut in sets(chosen.part, chosen.features):
        print(f"{name}: {len(cut[0].y):,} rows x {cut[0].x.shape[1]}, {len(cut[0].counts)} classes")
        rivals: dict[str, Scores] = {}
        for head, make in HEADS.items():
            if chosen.only and not any(part in head for part in chosen.only):
                continue
            is_rival = head.startswith("LR + LA")
            thorough = chosen.part != "gaussian" and (not is_rival or ", l2, C=100" in head)
            every = [
                tried(make, problem, seed, thorough=thorough) for seed, problem in enumerate(cut)
            ]
            found = Scores.mean(every)
            record[name][head] = asdict(found)
            if is_rival:
                rivals[head] = found
            if not is_rival or thorough:
                print(f"  {head:26}{found}", flush=True)
        if rivals:
            head, best = max(rivals.items(), key=lambda each: each[1].balanced)
            print(f"  {'best of LR + LA':26}{best}  {head}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(record, indent=1))
        if USUAL:
            print("  AUROC of novelty score, distance, energy, largest probability of the default:")
            print("   ", np.round(np.mean(USUAL[: len(cut)], 0), 1).tolist())
            USUAL.clear()


if __name__ == "__main__":
    main()

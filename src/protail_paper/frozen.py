"""The leaderboard of classifiers on frozen features: its runs, its numbers and its picture.

A set is a file of features at an imbalance. It is cut to five random long-tailed subsets, on each
of which every head learns; a result is a small JSON file, ``SET/HEAD.json``. A head of your own is
a file in the folder ``heads`` beside the results: a recipe, or Python with a function ``make``.
"""

from __future__ import annotations

import hashlib
import json
import math
import runpy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata, studentized_range  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.preprocessing import normalize
from torch import nn

from protail.baselines import logit_adjusted_regression
from protail.data.images import FeatureData, FeatureSet
from protail.experiments import Options, Pipeline, describe_surroundings
from protail.recipes import load_recipe
from protail.training import ClassifierSettings, DivergenceError, count_steps, logits_of
from protail.utils import new_file
from protail_paper.bundled import refitted
from protail_paper.figures import rank_figure
from protail_paper.page_methods import header, line
from protail_paper.paper import read_data
from protail_paper.results import ResultError

Array = NDArray[Any]
FOLDER, DEFAULT = "frozen-board", "PrototypeClassifier"
N_SUBSETS, IMBALANCES = 5, (10, 100)
SCORES = ("balanced", "many", "medium", "few", "likelihood", "seconds")
KNOWN = read_data("frozen.toml")
# Of a set: classes, and training rows of one. Of a class: rows for testing.
_MOST_CLASSES, _MOST_ROWS, _FEWEST_TESTED, _TESTED = 30, 100, 10, 600
# Features that a network has learned have about this length where the recipes' settings were found;
# and epochs of few rows are repeated until there are so many steps.
_LENGTH, _FEWEST_STEPS = 16.0, 300


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to learn from and rows to test on, classes by number."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


Head = Callable[[Problem], tuple[Array, Array | None, float]]


def problems(file: Path, imbalance: int) -> Iterator[Problem]:
    """Cut a file of features to long-tailed subsets; one with a test part of its own is one."""
    with np.load(file) as arrays:
        if "x_train" in arrays:
            parts = [arrays[f"{name}_{part}"] for part in ("train", "test") for name in "xy"]
            yield Problem(*(p.astype(np.float32 if p.ndim == 2 else np.int64) for p in parts))
            return
        x, y = arrays["x"].astype(np.float32), arrays["y"]
    for seed in range(N_SUBSETS):
        rng = np.random.default_rng(seed)
        classes = rng.permutation(y.max() + 1)[:_MOST_CLASSES]
        n_rows = np.bincount(y)[classes]
        classes, n_rows = classes[order := np.argsort(-n_rows, kind="stable")], n_rows[order]
        tested = min(max(20, _TESTED // len(classes)), max(_FEWEST_TESTED, n_rows.min() // 2))
        largest = min(_MOST_ROWS, n_rows[0] - tested)
        power = np.arange(len(classes)) / (len(classes) - 1)
        counts = np.round(largest / min(imbalance, largest) ** power).astype(int)
        own = [rng.permutation(np.flatnonzero(y == label)) for label in classes]
        train = [rows[tested:][:count] for rows, count in zip(own, counts, strict=True)]
        codes = np.repeat(np.arange(len(classes)), list(map(len, train)))
        rows, test = np.concatenate(train), np.concatenate([rows[:tested] for rows in own])
        yield Problem(x[rows], codes, x[test], np.repeat(np.arange(len(classes)), tested))


def chosen_regression() -> GridSearchCV:
    """Make logit-adjusted logistic regression whose C is chosen on a third of the training rows."""
    grid = {"logitadjustedregression__C": [10.0, 100.0, 1000.0]}
    third = ShuffleSplit(1, test_size=1 / 3, random_state=0)
    return GridSearchCV(logit_adjusted_regression(), grid, scoring="balanced_accuracy", cv=third)


def known_heads(board: Path) -> dict[str, Head]:
    """Name every head: those that come with protail, and files in the folder ``heads``."""
    heads: dict[str, Head] = {}
    for name, options in KNOWN["classifiers"].items():
        module, _, call = options["call"].rpartition(".")
        given = {key: value for key, value in options.items() if key != "call"}
        heads[name] = partial(_by_estimator, partial(getattr(import_module(module), call), **given))
    heads |= {name: partial(_by_recipe, name) for name in KNOWN["recipes"]}
    for file in sorted((board / "heads").glob("*.toml")):
        heads[file.stem] = partial(_by_recipe, str(file))
    for file in sorted((board / "heads").glob("*.py")):
        heads[file.stem] = partial(_by_estimator, runpy.run_path(str(file))["make"])
    return heads


def _by_estimator(make: Callable[[], Any], problem: Problem) -> tuple[Array, Array | None, float]:
    began = time.process_time()
    model = make().fit(problem.x, problem.y)
    seconds = time.process_time() - began
    chances = model.predict_proba(problem.x_test) if hasattr(model, "predict_proba") else None
    return model.predict(problem.x_test), chances, seconds


def _by_recipe(recipe: str, problem: Problem) -> tuple[Array, Array | None, float]:
    settings = _settings(recipe)
    first, before = _softmax(problem) if settings.start == "representation" else (None, 0.0)
    try:
        head, seconds = _learned(settings, problem, first)
    except DivergenceError:  # which gets no row right
        return np.full(len(problem.y_test), -1), None, before
    rows = torch.from_numpy(_LENGTH * normalize(problem.x_test))
    chances = torch.softmax(logits_of(head, rows).double(), 1).numpy()
    return chances.argmax(1), chances, before + seconds


@lru_cache(N_SUBSETS)
def _softmax(problem: Problem) -> tuple[nn.Module, float]:
    """Learn what takes the place of the head of stage 1."""
    return _learned(_settings("softmax"), problem, None)


def _settings(recipe: str) -> ClassifierSettings:
    found = load_recipe(recipe)
    return found.classifier or refitted(found.phases["representation"])


def _learned(
    settings: ClassifierSettings, problem: Problem, first: nn.Module | None
) -> tuple[nn.Module, float]:
    began = time.process_time()
    rows = FeatureSet(_LENGTH * normalize(problem.x), problem.y)
    data = FeatureData("rows", tuple(map(str, np.unique(problem.y))), rows, rows)
    pipeline = Pipeline(data, 0, Options(torch.device("cpu"), "plain"))
    pipeline.head = first
    steps = count_steps(settings, pipeline.features) if settings.epochs else _FEWEST_STEPS
    longer = max(1, math.ceil(_FEWEST_STEPS / steps))
    settings = replace(settings, precision="float32", epochs=longer * settings.epochs)
    head = pipeline.learn({"": settings})[""].head
    return head, time.process_time() - began


def scores_of(problem: Problem, found: tuple[Array, Array | None, float]) -> dict[str, Any]:
    """Score what a head says of the test rows; many, medium and few are thirds of the classes."""
    predicted, chances, seconds = found
    n = np.bincount(problem.y_test)
    by_class = np.bincount(problem.y_test, predicted == problem.y_test) / n
    thirds = np.array_split(by_class[np.argsort(-np.bincount(problem.y), kind="stable")], 3)
    likelihood = None
    if chances is not None:
        own = np.log(np.maximum(chances[np.arange(len(chances)), problem.y_test], 1e-12))
        likelihood = round(float(np.mean(np.bincount(problem.y_test, own) / n)), 4)
    accuracies = [round(float(100 * each.mean()), 3) for each in (by_class, *thirds)]
    return dict(zip(SCORES, [*accuracies, likelihood, round(seconds, 3)], strict=True))


def run_board(
    files: Sequence[Path],
    board: Path,
    *,
    only: Sequence[str] = (),
    budget: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Run the missing heads on sets; a result is kept at once, and none begun after the budget."""
    heads, about, n_run = known_heads(board), describe_surroundings(), 0
    end = np.inf if budget is None else time.monotonic() + budget
    for imbalance, file in product(IMBALANCES, files):
        cut: list[Problem] = []
        for name, head in heads.items():
            place = board / f"{file.stem}-{imbalance}" / f"{name}.json"
            title = f"{place.parent.name}, {name}"
            wanted = not only or any(fnmatch(title, pattern) for pattern in only)
            if place.exists() or not wanted:
                continue
            if time.monotonic() > end:
                return n_run
            cut = cut or list(problems(file, imbalance))
            if len(cut) < N_SUBSETS and imbalance != IMBALANCES[-1]:
                break  # it has the imbalance that it has
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of steps that run out, and classes of one row
                every = [scores_of(problem, head(problem)) for problem in cut]
            counts = np.bincount(cut[0].y)
            record = {
                "command": f"protail bench frozen FEATURES --only '{title}'",
                "features": hashlib.sha256(file.read_bytes()).hexdigest()[:16],
                "channels": cut[0].x.shape[1],
                "counts": [int(counts.max()), int(counts.min())],
                "classes": len(counts),
                "rows": [len(cut[0].y), len(cut[0].y_test)],
                **{key: [each[key] for each in every] for key in SCORES},
                "about": about,
            }
            with new_file(place, overwrite=True) as temporary:
                temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            say(f"{np.mean(record['balanced']):5.1f} %  {title}")
            n_run += 1
    return n_run


class Board:
    """What the results in a folder come to: of sets that every head of protail has.

    Parameters
    ----------
    folder : Path
        A folder for each set, and in it a file for each head.
    """

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.json"))
        self._records = {(file.parent.name, file.stem): _read(file) for file in files}
        own = [file.stem for file in sorted((folder / "heads").glob("*.*"))]
        known = [*KNOWN["classifiers"], *KNOWN["recipes"]]
        self.heads = list(dict.fromkeys([*known, *own, *(head for _, head in self._records)]))
        names = dict.fromkeys(name for name, _ in self._records)
        self.sets = [s for s in names if all((s, head) in self._records for head in known)]
        self._whole = [h for h in self.heads if all((s, h) in self._records for s in self.sets)]
        balanced = [[self._mean(name, h, "balanced") for name in self.sets] for h in self._whole]
        ranks = rankdata(-np.round(balanced, 3), axis=0) if balanced else []
        self._ranks = dict(zip(self._whole, ranks, strict=True))

    @property
    def missing(self) -> list[str]:
        """What is not there of the sets that are wanted."""
        wanted = (f"{file}-{n}" for file in sorted(KNOWN["sets"]) for n in IMBALANCES)
        pairs = [(name, h) for name in wanted if name not in KNOWN["once"] for h in self.heads]
        return [f"{name}, {head}" for name, head in pairs if (name, head) not in self._records]

    def of(self, head: str, sets: str, score: str) -> dict[str, float]:
        """Give a score of a head by set: of those like a pattern, or that are "new" to the default.

        A score is one of ``SCORES``, or "rank" among the heads that all of these have.
        """
        return {
            name: float(self._ranks[head][i]) if score == "rank" else self._mean(name, head, score)
            for i, name in enumerate(self.sets)
            if fnmatch(name, sets) or (sets == "new" and _file(name) not in KNOWN["development"])
        }

    def average(self, head: str, sets: str, score: str) -> float:
        """Average a score of a head over sets."""
        return float(np.mean([*self.of(head, sets, score).values()]))

    def ranked(self) -> dict[str, float]:
        """Give average ranks, the best head first."""
        found = {head: self.average(head, "*", "rank") for head in self._whole if self.sets}
        return dict(sorted(found.items(), key=lambda each: each[1]))

    def difference(self) -> float:
        """Give the least difference of average ranks that is none by chance (Nemenyi, 5 %).

        Sets of one file have rows in common: files are counted, not sets.
        """
        k, n = len(self._whole), len({_file(name) for name in self.sets})
        quantile = studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2)
        return float(quantile * np.sqrt(k * (k + 1) / (6 * n)))

    def rank_table(self) -> str:
        """Write a line for each head: average ranks, scores, and on how many sets it is ahead."""
        columns, places = KNOWN["columns"], self.of(DEFAULT, "*", "rank")
        lines = [*header("classifier", *columns, "ahead of the default")]
        for head in self.ranked():
            numbers = [self.average(head, *address.split("; ")) for address in columns.values()]
            written = ["-" if np.isnan(each) else f"{each:#.3g}" for each in numbers]
            ahead = sum(rank < places[name] for name, rank in self.of(head, "*", "rank").items())
            lines.append(line([head, *written, str(ahead)]))
        return "\n".join(lines)

    def set_table(self) -> str:
        """Write a line for each set: what it is, the best head, and some others."""
        shown = KNOWN["shown"]
        lines = [*header("features", "channels", "classes", "rows of a class", "best", *shown)]
        for name in self.sets:
            record = self._records[name, DEFAULT]
            best = min(self._whole, key=lambda head: self.of(head, name, "rank")[name])
            heads = best, *shown.values()
            scores = [f"{self._mean(name, head, 'balanced'):.1f}" for head in heads]
            what = KNOWN["sets"].get(_file(name), name), record["channels"], record["classes"]
            counts = "..".join(map(str, record["counts"]))
            entries = [*map(str, what), counts, f"{best} {scores[0]}", *scores[1:]]
            lines.append(line(entries))
        return "\n".join(lines)

    def picture(self) -> bytes:
        """Draw average ranks, and which heads chance alone may have put behind the best."""
        return rank_figure(self.ranked(), self.difference(), KNOWN["kinds"])

    def _mean(self, name: str, head: str, score: str) -> float:
        values = self._records[name, head][score]
        return np.nan if None in values else float(np.mean(values))


def _read(file: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        assert all(record[key] for key in SCORES)
    except (OSError, ValueError, LookupError, TypeError, AssertionError) as error:
        raise ResultError(f"{file} is no result: it cannot be read. Remove it.") from error
    return record


def _file(name: str) -> str:
    return name.rpartition("-")[0]

"""The paper's figures, and accuracy against training cost, from what has been run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protail.data.images import FeatureData, long_tailed_counts
from protail.recipes import Recipe, load_recipe
from protail.training import GivenFeatures, learn_heads
from protail_paper.analysis import (
    PAIRS,
    Boundaries,
    Separation,
    class_separation,
    learn_boundaries,
    mean_class_norms,
)
from protail_paper.comparisons import COMPARISONS, Entry
from protail_paper.figures import CostPoint, cost_figure, figure1, figure2, figure3, figure4
from protail_paper.paper import GROUPS
from protail_paper.results import Result, Results, summarize
from protail_paper.scores import class_vectors
from protail_paper.tables import BACKBONES, QUESTIONS, TABLES, Row
from protail_paper.wanted import CIFAR100

# Whose norms Figure 2 shows; the last are where prototypes start, and only measured.
_VECTORS = {
    "softmax": Row("softmax", None),
    "centroids": Row("centroids", "ncm"),
    "prototypes": Row("prototypes", "pc-cdt-la"),
    "augmented centroids": Row("augmented centroids", "ncm-augmented"),
}
_DRAWN = ("softmax", "centroids", "prototypes")
# Panels of Figure 4, each the question of which it is the answer.
_PANELS = {"lr": "rate", "epochs": "epochs", "tau": "tau"}
_WATCHED = ("pc", "pc-la")
_LARGEST_CLASS = 500
_TABLE = TABLES["questions"]
# Costs are those of a table of other methods, at one imbalance.
_METHODS, _COLUMN = COMPARISONS["table4"], "100"
_TITLE = "Table 4, CIFAR-100-LT, imbalance 100: accuracy against training cost on one {hardware}"
_NOTE = """\
Points: means over seeds; bars: standard deviation of three seeds. Seconds: stage 1 and a \
classifier. Trainings at once share their time by what
their steps take, and classifiers learned at once on the same features equally."""


class Drawn(NamedTuple):
    """A picture (a PNG file), its name, and the numbers it shows that no result has."""

    name: str
    picture: bytes
    numbers: dict[str, Any]


def draw_figures(
    results: Results, features: FeatureData | None, say: Callable[[str], None] = print
) -> Iterator[Drawn]:
    """Draw every figure whose numbers are there, and say which are left out, and why.

    Figure 1; Figures 2 and 4 of each backbone; Figure 3 of PC and of PC + LA, learned on
    ``features``; accuracy against training cost.

    Examples
    --------
    >>> import tempfile
    >>> from protail_paper.results import Results
    >>> from protail_paper.drawing import draw_figures
    >>> [drawn.name for drawn in draw_figures(Results(tempfile.mkdtemp()), None, say=str)]
    ['figure1']
    """
    boundaries = learn_boundaries()
    yield Drawn("figure1", figure1(boundaries), _numbers_of_boundaries(boundaries))
    for backbone in BACKBONES:
        norms = seed_norms(results, backbone)
        if set(_DRAWN) <= set(norms):
            yield _draw_norms(backbone, norms)
        else:
            say(f"Figure 2 of {backbone} is left out: results of wd, ncm or pc-cdt-la are missing.")
    if features is not None:
        for recipe, (steps, measured) in watch_separation(features).items():
            numbers = {"features": features.name, "steps": steps, **_series(measured)}
            yield Drawn(f"figure3-{recipe}", figure3(steps, measured), numbers)
    for backbone in BACKBONES:
        curves = seed_curves(results, backbone)
        if all(curves.values()):
            yield Drawn(f"figure4-{_file_name(backbone)}", figure4(curves), {})
        else:
            say(f"Figure 4 of {backbone} is left out: results of rate, epochs or tau are missing.")
    yield from draw_costs(results, say)


def draw_costs(results: Results, say: Callable[[str], None]) -> Iterator[Drawn]:
    """Draw accuracy against training cost, where two rows are known to have been run alike."""
    costs = method_costs(results)
    if len(costs.points) < 2:
        say(
            "The figure of costs is left out: fewer than two rows of table4 at imbalance 100 have "
            "results that know their seconds on one kind of GPU. Run them again."
        )
        return
    if costs.left_out:
        rows = ", ".join(costs.left_out)
        say(f"The figure of costs is without {rows}: diverged, or no seconds on {costs.hardware}.")
    title = _TITLE.format(hardware=costs.hardware)
    picture = cost_figure(list(costs.points.values()), title, _NOTE)
    yield Drawn("cost", picture, costs.to_dict())


def seed_norms(results: Results, backbone: str) -> dict[str, NDArray[np.float64]]:
    """Give the norms of class vectors that results hold, a row a seed, as far as they are there."""
    found = {}
    for name, row in _VECTORS.items():
        norms = [each.record["norms"] for each in results.of(_TABLE.experiments(backbone, [row]))]
        if norms:
            found[name] = np.array(norms, dtype=np.float64)
    return found


def seed_curves(
    results: Results, backbone: str
) -> dict[str, dict[float, Mapping[str, list[float]]]]:
    """Give accuracies against rate, epochs and tau, as `figure4` takes them."""
    questions = {question.name: question for question in QUESTIONS}
    curves: dict[str, dict[float, Mapping[str, list[float]]]] = {}
    for setting, name in _PANELS.items():
        axis, curves[setting] = questions[name].axis, {}
        assert axis is not None
        for row in questions[name].rows:
            found = results.of(_TABLE.experiments(backbone, [row]))
            scores = {
                group: [score for each in found if (score := each.score(group)) is not None]
                for group in GROUPS
            }
            if found:
                known = {group: each for group, each in scores.items() if each}
                curves[setting][float(row.overrides[axis])] = known
    return curves


def watch_separation(features: FeatureData) -> dict[str, tuple[list[int], list[Separation]]]:
    """Learn prototypes by "pc" and "pc-la"; give steps and how far apart they were then."""
    given = GivenFeatures(features, torch.device("cpu"))
    settings = {}
    for name in _WATCHED:
        classifier = load_recipe(name).classifier
        assert classifier is not None
        settings[name] = classifier
    seen: dict[str, tuple[list[int], list[Separation]]] = {name: ([], []) for name in _WATCHED}

    def measure(step: int, heads: Mapping[str, nn.Module]) -> None:
        for name, head in heads.items():
            steps, measured = seen[name]
            steps.append(step)
            measured.append(class_separation(class_vectors(head), given.counts))

    learn_heads(settings, given, seed=0, watch=measure)
    return seen


def _draw_norms(backbone: str, norms: Mapping[str, NDArray[np.float64]]) -> Drawn:
    n_classes = norms["softmax"].shape[1]
    counts = long_tailed_counts(_LARGEST_CLASS, n_classes, CIFAR100.imbalance)
    numbers = {}
    for name, of_seeds in norms.items():
        measured = mean_class_norms(of_seeds, counts)
        each = {
            "rank_correlation": measured.rank_correlation,
            "variation": measured.variation,
            "head_to_tail": measured.head_to_tail,
            "mean": measured.norms.mean(),
            "least": measured.norms.min(),
            "greatest": measured.norms.max(),
        }
        rounded = {key: _rounded(value) for key, value in each.items()}
        numbers[name] = {"seeds": len(of_seeds), **rounded}
    picture = figure2(counts, *(norms[name] for name in _DRAWN))
    return Drawn(f"figure2-{_file_name(backbone)}", picture, numbers)


def _numbers_of_boundaries(boundaries: Boundaries) -> dict[str, Any]:
    return {
        f"{one.model}, {one.sampling}": {
            "norms": [_rounded(norm) for norm in np.linalg.norm(one.vectors, axis=1)],
            "accuracy": [_rounded(each) for each in one.accuracy],
            "mean accuracy": _rounded(one.accuracy.mean()),
        }
        for one in boundaries.classifiers
    }


def _series(measured: list[Separation]) -> dict[str, Any]:
    return {
        measure: {
            pair: [_rounded(getattr(each, measure)[pair]) for each in measured] for pair in PAIRS
        }
        for measure in ("distance", "cosine")
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _file_name(backbone: str) -> str:
    return backbone.lower().replace("-", "")


@dataclass(frozen=True)
class Costs:
    """What the methods of Table 4 take and give.

    Attributes
    ----------
    hardware : str
        The GPU that all of them were trained on; empty without points.
    points : dict of str to CostPoint
        By the names of recipes, with the variant of those that have one; rows that come to the
        same are one point.
    left_out : tuple of str
        Rows with results that are no point: trained elsewhere, diverged, or of unknown cost.
    """

    hardware: str
    points: Mapping[str, CostPoint]
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Turn the numbers into values that JSON can hold, by the label of each point."""
        rows = {
            point.label: {
                "name": name,
                "kind": point.kind,
                "backbone": point.backbone,
                "seeds": len(point.accuracies),
                "seconds": round(point.seconds, 2),
                "all": round(point.accuracy, 2),
                "deviation": None if point.deviation is None else round(point.deviation, 2),
            }
            for name, point in self.points.items()
        }
        return {"hardware": self.hardware, "rows": rows, "left_out": list(self.left_out)}


def method_costs(results: Results) -> Costs:
    """Gather what the methods of Table 4 take and give, on CIFAR-100-LT at imbalance 100.

    Only results that were run on a GPU count, and only those of the GPU that most rows were run
    on: seconds on others are others.
    """
    rows: dict[str, _Method] = {}
    for entry in _METHODS.entries:
        # Other images are no other method.
        if entry.column == _COLUMN and entry.subset.selection == "shuffled":
            wanted = [entry.experiment(seed) for seed in _METHODS.seeds]
            row = rows.setdefault(wanted[0].key, _Method(results.of(wanted)))
            row.entries.append(entry)
    run = [row for row in rows.values() if row.results]
    places: Counter[str] = Counter()
    for row in run:
        places.update(list(dict.fromkeys(filter(None, map(_gpu_of, row.results)))))
    hardware = places.most_common(1)[0][0] if places else ""
    points, left_out = {}, []
    for row in run:
        point = row.point(hardware)
        if point is None:
            left_out.append(row.label)
        else:
            points[row.name] = point
    return Costs(hardware, points, tuple(left_out))


@dataclass(frozen=True)
class _Method:
    """Rows of the table that come to the same computation, and the results of it."""

    results: list[Result]
    entries: list[Entry] = field(default_factory=list)

    @property
    def name(self) -> str:
        first = self.entries[0]
        return f"{first.recipe}, {first.variant}" if first.variant else first.recipe

    @property
    def label(self) -> str:
        return " = ".join(entry.row for entry in self.entries)

    def point(self, hardware: str) -> CostPoint | None:
        there = [result for result in self.results if _gpu_of(result) == hardware]
        diverged = any(result.diverged for result in self.results)
        scores = {} if diverged else summarize(there, "mirrored")
        if not scores:
            return None
        first = self.entries[0]
        recipe = first.experiment(0).recipe
        seconds = mean(took for result in there if (took := result.gpu_seconds) is not None)
        return CostPoint(
            self.label, _kind(recipe), _METHODS.backbone_of(first), seconds, scores["all"].values
        )


def _gpu_of(result: Result) -> str | None:
    """Name the GPU of a result; None where there was none, or its seconds are not known."""
    return None if result.gpu_seconds is None else " and ".join(result.record["about"]["gpus"])


def _kind(recipe: Recipe) -> str:
    if recipe.classifier is not None and "prototype" in recipe.classifier.head:
        return "prototypes on frozen features"
    if recipe.phases["representation"].method != "standard":
        return "experts, views or contrast"
    if recipe.classifier is not None:
        return "classifier on frozen features"
    return "one training, its own loss or mixing"

"""What every method of Table 4 takes to train, and what it gives, from the cells of the bench."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from protail.bench.cells import Cells, Result
from protail.bench.comparisons import COMPARISONS, Entry
from protail.bench.summaries import summarize_results
from protail.recipes import Recipe
from protail.report.figures import CostPoint, cost_figure

_TABLE, _COLUMN = COMPARISONS["table4"], "100"
_TITLE = "Table 4, CIFAR-100-LT, imbalance 100: accuracy against training cost on one {hardware}"
_NOTE = """\
Points: means over seeds; bars: standard deviation of three seeds. Seconds: stage 1 and a \
classifier. Trainings at once share their time by what
their steps take, and classifiers learned at once on the same features equally."""


@dataclass(frozen=True)
class Costs:
    """Points of the picture, and what it rests on.

    Attributes
    ----------
    hardware : str
        The GPU that all of them were trained on; empty without points.
    points : dict of str to CostPoint
        By the names of recipes, with the variant of those that have one; rows that come to the
        same are one point.
    left_out : tuple of str
        Rows with cells that are no point: trained elsewhere, diverged, or of unknown cost.
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

    def picture(self) -> bytes:
        """Draw it: a PNG file."""
        title = _TITLE.format(hardware=self.hardware)
        return cost_figure(list(self.points.values()), title, _NOTE)


def method_costs(cells: Cells) -> Costs:
    """Gather what the methods of Table 4 take and give, on CIFAR-100-LT at imbalance 100.

    Only cells that were run on a GPU count, and only those of the GPU that most rows were run
    on: seconds on others are others.

    Parameters
    ----------
    cells : Cells
        What has been run.

    Returns
    -------
    Costs
        A point for each row that has such a cell.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.report.bench_cost import method_costs
    >>> method_costs(Cells(tempfile.mkdtemp()))
    Costs(hardware='', points={}, left_out=())
    """
    rows = [row for row in _rows(cells) if row.results]
    places: Counter[str] = Counter()
    for row in rows:
        found = (_place_if_known(result) for result in row.results)
        places.update(list(dict.fromkeys(place for place in found if place is not None)))
    hardware = places.most_common(1)[0][0] if places else ""
    points, left_out = {}, []
    for row in rows:
        point = row.point(hardware)
        if point is None:
            left_out.append(row.label)
        else:
            points[row.name] = point
    return Costs(hardware, points, tuple(left_out))


@dataclass(frozen=True)
class _Row:
    """Rows of the table that come to the same computation, and the cells of it."""

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
        there = [result for result in self.results if _place_if_known(result) == hardware]
        diverged = any(result.diverged for result in self.results)
        scores = {} if diverged else summarize_results(there, "mirrored")
        if not scores:
            return None
        recipe = self.entries[0].cell(0).recipe
        seconds = mean(took for result in there if (took := result.gpu_seconds) is not None)
        accuracies = scores["all"].values
        return CostPoint(self.label, _kind(recipe), _backbone(recipe), seconds, accuracies)


def _rows(cells: Cells) -> list[_Row]:
    rows: dict[str, _Row] = {}
    for entry in _TABLE.entries:
        # Other images are no other method.
        if entry.column == _COLUMN and entry.draw.selection == "shuffled":
            wanted = [entry.cell(seed) for seed in _TABLE.seeds]
            results = [result for cell in wanted if (result := cells.get(cell)) is not None]
            rows.setdefault(wanted[0].key, _Row(results)).entries.append(entry)
    return list(rows.values())


def _place_if_known(result: Result) -> str | None:
    """Name the GPU of a cell; None where there was none, or its seconds are not known."""
    return None if result.gpu_seconds is None else " and ".join(result.record["about"]["gpus"])


def _kind(recipe: Recipe) -> str:
    if recipe.classifier is not None and "prototype" in recipe.classifier.head:
        return "prototypes on frozen features"
    if recipe.phases["representation"].method != "standard":
        return "experts, views or contrast"
    if recipe.classifier is not None:
        return "classifier on frozen features"
    return "one training, its own loss or mixing"


def _backbone(recipe: Recipe) -> str:
    trained = recipe.phases["representation"].backbone
    return next(name for name, known in _TABLE.backbones.items() if trained in known)

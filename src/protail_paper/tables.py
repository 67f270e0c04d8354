"""Tables 1, 2 and 8 of the paper, and the questions it leaves open, as ``tables.toml`` has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

from protail.recipes import load_recipe
from protail_paper.paper import read_data
from protail_paper.wanted import CIFAR100, SEEDS, Experiment, Subset

# Stage 1 of the paper's tables, and the smaller network that its text names.
BACKBONES = {"ResNet-34": "wd", "ResNet-32": "wd-resnet32"}
# What we call the images that prototypes learn from, as the paper augments them, elsewhere.
AS_PC = "images as PC"
# What we call the images of selection "author".
TWO_SETS = "two sets of images"
_DATA = read_data("tables.toml")
# What a variant of a recipe sets.
VARIANTS: dict[str, dict[str, Any]] = _DATA["variants"]


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    label : str
        What the reader sees.
    classifier : str or None
        The recipe whose stage 2 is run; None for the softmax of stage 1.
    overrides : mapping of str to object
        What is set otherwise.
    selection : str
        Which images of a class are kept.
    paper : str or None
        The row of the paper's table beside it.
    backbone : str or None
        The only one it is run on, by what the reader sees; None for all of its table.
    """

    label: str
    classifier: str | None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    selection: str = "shuffled"
    paper: str | None = None
    backbone: str | None = None


@dataclass(frozen=True)
class Question:
    """A factor and the values it was given.

    Attributes
    ----------
    name : str
        A short word, unique.
    text : str
        What is asked.
    rows : tuple of Row
        One a value.
    axis : str or None
        The setting that its curve in Figure 4 is drawn over; None where it has none.
    """

    name: str
    text: str
    rows: tuple[Row, ...]
    axis: str | None = None


@dataclass(frozen=True)
class Table:
    """A table of results, on one representation for each backbone.

    Attributes
    ----------
    name : str
        What users write.
    title : str
        One line on what it shows.
    rows : tuple of Row
        From top to bottom.
    paper : int or None
        The number of the paper's table that it is compared with.
    seeds : tuple of int
        One experiment each in every row.
    backbones : mapping of str to str
        The recipe of stage 1, by what the reader sees.
    held_out : float
        The fraction of the training images that it is evaluated on, others for every seed; 0 for
        the test images.
    subset : Subset
        The subset its images are of, before anything is held out.
    aside_from : float
        The smaller ratio whose images, as far as the subset leaves them, it is evaluated on
        instead, the same for every seed; 0 where it is not these.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    paper: int | None = None
    seeds: tuple[int, ...] = SEEDS
    backbones: Mapping[str, str] = field(default_factory=lambda: dict(BACKBONES))
    held_out: float = 0.0
    subset: Subset = CIFAR100
    aside_from: float = 0.0

    def experiments(self, backbone: str, rows: Iterable[Row] | None = None) -> list[Experiment]:
        """List the experiments of rows, by default all of them, on a backbone; seed by seed."""
        chosen = rows_on(backbone, self.rows if rows is None else rows)
        return [self.experiment(row, backbone, seed) for seed in self.seeds for row in chosen]

    def experiment(self, row: Row, backbone: str, seed: int) -> Experiment:
        """Make the experiment of a row: its classifier on a representation."""
        name = first = self.backbones[backbone]
        if row.classifier is not None:
            name = _on_representation(row.classifier, first)
        subset = replace(self.subset, selection=row.selection, aside_from=self.aside_from)
        if self.held_out:
            subset = replace(subset, held_out=self.held_out, held_out_seed=seed)
        return Experiment(name, subset, seed, row.overrides)


@cache
def _on_representation(classifier: str, first: str) -> str:
    """Name a recipe's stage 2 on another's stage 1: by itself where that is its own."""
    own = load_recipe(classifier).phases == load_recipe(first).phases
    return classifier if own else f"{first}/{classifier}"


def rows_on(backbone: str, rows: Iterable[Row]) -> list[Row]:
    """List the rows that are run on a backbone."""
    return [row for row in rows if row.backbone in (None, backbone)]


def named(tables: Iterable[Any]) -> dict[str, Any]:
    """Give tables by their names."""
    return {table.name: table for table in tables}


def settings(stage: str, **values: Any) -> dict[str, Any]:
    """Name settings of a stage, as overrides of a recipe do."""
    return {f"{stage}.{key}": value for key, value in values.items()}


def grid(label: str, classifier: str, **values: Iterable[Any]) -> tuple[Row, ...]:
    """Make a row for every combination of settings of the classifier, labelled by their values."""
    rows = (dict(zip(values, each, strict=True)) for each in product(*values.values()))
    return tuple(
        Row(label.format(*row.values()), classifier, settings("classifier", **row)) for row in rows
    )


def _rows(entry: Mapping[str, Any]) -> Iterator[Row]:
    """Make the rows of a table or a question: those that are listed, then those of its grids."""
    shared = {k: entry[k] for k in ("overrides", "selection", "backbone") if k in entry}
    for label, recipe, *paper in entry.get("rows", ()):
        classifier = None if recipe == "-" else recipe
        yield Row(label, classifier, paper=paper[0] if paper else None, **shared)
    for each in entry.get("grid", ()):
        selection = {"selection": each["selection"]} if "selection" in each else {}
        for row in grid(each["label"], each["classifier"], **each.get("values", {})):
            changes = {**settings("classifier", **each.get("set", {})), **row.overrides}
            yield replace(row, overrides=changes, **shared, **selection)


QUESTIONS = tuple(
    Question(each["name"], each["text"], tuple(_rows(each)), each.get("axis"))
    for each in _DATA["question"]
)
TABLES: dict[str, Table] = named(
    (
        *(
            Table(each["name"], each["title"], tuple(_rows(each)), paper=each["paper"])
            for each in _DATA["table"]
        ),
        Table(
            "questions",
            "What the paper leaves open, one factor at a time",
            tuple(row for question in QUESTIONS for row in question.rows),
        ),
    )
)

"""Which cells a table is made of, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from protail._messages import unknown_name
from protail.bench.comparisons import COMPARISONS, Comparison
from protail.bench.large import LARGE
from protail.bench.questions import QUESTIONS
from protail.bench.rows import Row, rows_on
from protail.bench.strong import (
    CONSISTENT_STAGE_1,
    CONSISTENT_STAGE_2,
    PARTNERS_STAGE_1,
    PARTNERS_STAGE_2,
    STRONG_STAGE_1,
    STRONG_STAGE_2,
    TAUGHT_STAGE_1,
)
from protail.bench.tuning import (
    DECAYS,
    DECAYS_CIFAR10,
    ON_CONTRAST,
    ON_EXPERTS,
    STAGE_1,
    STAGE_1_LEFT,
    STAGE_2,
    TAUS,
    crossed,
)
from protail.bench.wanted import CIFAR10, CIFAR100, SEEDS, Cell, Draw
from protail.recipes import load_recipe

# Stage 1 of the paper's tables, and the smaller network that its text names.
BACKBONES = {"ResNet-34": "wd", "ResNet-32": "wd-resnet32"}


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes
    ----------
    name : str
        What users write.
    title : str
        One line on what it shows.
    rows : tuple of Row
        From top to bottom.
    paper : int or None
        The number of the paper's table that it stands beside.
    seeds : tuple of int
        One cell each in every row.
    backbones : mapping of str to str
        The recipe of stage 1, by what the reader sees.
    held_out : float
        The share of the training images that it is judged on, others for every seed; 0 for the
        test images.
    draw : Draw
        What its images are drawn from, before anything is held out.
    aside_from : float
        The smaller ratio whose images, as far as the draw leaves them, it is judged on instead,
        the same for every seed; 0 where it is not these.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    paper: int | None = None
    seeds: tuple[int, ...] = SEEDS
    backbones: Mapping[str, str] = field(default_factory=lambda: dict(BACKBONES))
    held_out: float = 0.0
    draw: Draw = CIFAR100
    aside_from: float = 0.0

    def cells(self, backbone: str, rows: Iterable[Row] | None = None) -> list[Cell]:
        """List the cells of rows, by default all of them, on a backbone; seed by seed."""
        chosen = rows_on(backbone, self.rows if rows is None else rows)
        return [self.cell(row, backbone, seed) for seed in self.seeds for row in chosen]

    def cell(self, row: Row, backbone: str, seed: int) -> Cell:
        """Make the cell of a row: its classifier on a representation."""
        name = first = self.backbones[backbone]
        if row.classifier is not None:
            name = _on_representation(row.classifier, first)
        draw = replace(self.draw, selection=row.selection, aside_from=self.aside_from)
        if self.held_out:
            draw = replace(draw, held_out=self.held_out, held_out_seed=seed)
        return Cell(name, draw, seed, row.overrides)


@cache
def _on_representation(classifier: str, first: str) -> str:
    """Name a recipe's stage 2 on another's stage 1: by itself where that is its own."""
    own = load_recipe(classifier).phases == load_recipe(first).phases
    return classifier if own else f"{first}/{classifier}"


_SOFTMAX = Row("Softmax", None, paper="Softmax")

TABLES = {
    table.name: table
    for table in (
        Table(
            "table1",
            "What each part of the method adds",
            (
                _SOFTMAX,
                Row("NCM, clean images", "ncm"),
                Row("NCM, augmented images", "ncm-augmented", paper="NCM"),
                Row("PC", "pc", paper="PC"),
                Row("PC + CDT", "pc-cdt", paper="+ CDT"),
                Row("PC + LA", "pc-la", paper="+ LA"),
                Row("PC + CDT + LA", "pc-cdt-la", paper="+ CDT + LA"),
            ),
            paper=1,
        ),
        Table(
            "table2",
            "Which distance",
            (
                _SOFTMAX,
                Row("PC, Euclidean", "pc-cdt-la", paper="PC + Euclidean"),
                Row(
                    "PC, squared Euclidean", "pc-sqeuclidean-cdt-la", paper="PC + Squared Euclidean"
                ),
                Row("PC, squared Euclidean, bare", "pc-sqeuclidean"),
                Row("PC, cosine", "pc-cosine-cdt-la", paper="PC + Cosine"),
                Row("PC, cosine, no CDT", "pc-cosine-la"),
            ),
            paper=2,
        ),
        Table(
            "table8",
            "What has a temperature of its own",
            (
                Row("PC", "pc", paper="PC"),
                Row("PC + channel T", "pc-cdt", paper="+ Channel T"),
                Row("PC + class T", "pc-class-t", paper="+ Class T"),
                Row("PC + dense T", "pc-dense-t", paper="+ Dense T"),
            ),
            paper=8,
        ),
        Table(
            "questions",
            "What the paper leaves open, one factor at a time",
            tuple(row for question in QUESTIONS for row in question.rows),
        ),
    )
}
# Tables that choices are made by: none of their cells knows a test image.
_CHOSEN_ON: dict[str, Any] = {"backbones": {"ResNet-34": "wd"}, "held_out": 0.2}
_CHOSEN_ON_CIFAR10: dict[str, Any] = {**_CHOSEN_ON, "draw": CIFAR10, "seeds": (0,)}
_BY_TAU = "Which tau normalised weights do best with"
_BY_DECAY = "Which decay weights under a limit do best with"
_ON_CIFAR10 = " on CIFAR-10-LT"
# Where stages 1 differ by less than a fifth of the draw can tell.
_CHOSEN_ASIDE: dict[str, Any] = {
    "backbones": {"ResNet-34": "wd"},
    "seeds": (0,),
    "aside_from": 10,
}
CHOICES = {
    table.name: table
    for table in (
        Table(
            "tuning-stage-1",
            "Which stage 1 the prototype classifier does best on",
            crossed(STAGE_1, STAGE_2),
            seeds=(0,),
            **_CHOSEN_ON,
        ),
        Table(
            "tuning-stage-2",
            "Which setting of the prototype classifier does best",
            crossed(STAGE_1_LEFT, STAGE_2),
            seeds=(0, 1),
            **_CHOSEN_ON,
        ),
        Table("tuning-tau", _BY_TAU, TAUS, seeds=(0, 1), **_CHOSEN_ON),
        Table("tuning-max", _BY_DECAY, DECAYS, seeds=(0, 1), **_CHOSEN_ON),
        Table("tuning-tau-cifar10", _BY_TAU + _ON_CIFAR10, TAUS, **_CHOSEN_ON_CIFAR10),
        Table(
            "tuning-max-cifar10",
            _BY_DECAY + _ON_CIFAR10,
            DECAYS_CIFAR10,
            **_CHOSEN_ON_CIFAR10,
        ),
        *(
            Table(
                f"tuning-{first}",
                f"Which prototypes do best on {what}",
                rows,
                seeds=(0,),
                backbones={"ResNet-32": first},
                held_out=0.2,
            )
            for first, what, rows in (
                ("ride", "the experts of RIDE", ON_EXPERTS),
                ("paco", "the features of PaCo", ON_CONTRAST),
            )
        ),
        Table(
            "strong-stage-1",
            "Which stronger stage 1 prototypes do best on",
            crossed(STRONG_STAGE_1, STRONG_STAGE_2),
            **_CHOSEN_ASIDE,
        ),
        Table(
            "strong-consistent",
            "Which consistent mixtures prototypes do best on",
            crossed(CONSISTENT_STAGE_1, CONSISTENT_STAGE_2),
            **_CHOSEN_ASIDE,
        ),
        Table(
            "strong-partners",
            "What else helps prototypes on consistent mixtures",
            crossed(PARTNERS_STAGE_1, PARTNERS_STAGE_2),
            **_CHOSEN_ASIDE,
        ),
        Table(
            "strong-taught",
            "Whether a teacher helps prototypes on consistent mixtures",
            crossed(TAUGHT_STAGE_1, PARTNERS_STAGE_2),
            **{**_CHOSEN_ASIDE, "backbones": {"ResNet-34": "mixture-distillation"}},
        ),
    )
}


# What a reader sees of any table.
BACKBONE_NAMES = (*BACKBONES, *(name for table in LARGE.values() for name in table.backbones))


def bench_table(name: str) -> Table | Comparison:
    """Give a table by its name.

    Parameters
    ----------
    name : str
        Such as "table1".

    Returns
    -------
    Table or Comparison
        What it is made of.

    Examples
    --------
    >>> from protail.bench.tables import bench_table
    >>> bench_table("table8").cells("ResNet-34")[1].command
    'protail train pc-cdt --dataset cifar100-lt --imbalance 100 --seed 0'
    >>> bench_table("table9").cells("ResNet-32")[0].command
    'protail train ce-resnet32 --dataset cifar10-lt --imbalance 100 --seed 0'
    """
    tables: dict[str, Table | Comparison] = {**TABLES, **COMPARISONS, **CHOICES, **LARGE}
    if name not in tables:
        raise ValueError(unknown_name("table", name, tables))
    return tables[name]


def wanted_cells(names: Iterable[str], backbones: Iterable[str]) -> list[Cell]:
    """List the cells of tables, each once, the most wanted first.

    Parameters
    ----------
    names : iterable of str
        Tables, the most wanted first; but one seed of all of them comes before the next.
    backbones : iterable of str
        Likewise.

    Returns
    -------
    list of Cell
        What the tables are made of.

    Examples
    --------
    >>> from protail.bench.tables import wanted_cells
    >>> (
    ...     len(wanted_cells(["table1"], ["ResNet-34"])),
    ...     len(wanted_cells(["table1", "table8"], ["ResNet-34"])),
    ... )
    (21, 27)
    """
    cells: dict[str, Cell] = {}
    tables, backbones = [bench_table(name) for name in names], list(backbones)
    for backbone in backbones:
        if backbone not in BACKBONE_NAMES:
            raise ValueError(unknown_name("backbone", backbone, BACKBONE_NAMES))
        for table in tables:
            for cell in table.cells(backbone) if backbone in table.backbones else ():
                cells.setdefault(cell.key, cell)
    if not cells and tables:
        theirs = ", ".join(dict.fromkeys(each for table in tables for each in table.backbones))
        asked = ", ".join(table.name for table in tables)
        raise ValueError(f"{asked}: no cell on {', '.join(backbones)}; expected one of {theirs}.")
    return sorted(cells.values(), key=lambda cell: cell.seed)

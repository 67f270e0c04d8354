"""From tables to trainings: which cells tables want, sorted by the representation they use."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from protail.utils import unknown_name
from protail_paper.comparisons import COMPARISONS, Comparison
from protail_paper.large import LARGE
from protail_paper.tables import BACKBONES, TABLES, Table
from protail_paper.tuning import CHOICES
from protail_paper.wanted import Cell

# What a reader sees of any table.
BACKBONE_NAMES = (*BACKBONES, *(name for table in LARGE.values() for name in table.backbones))


def bench_table(name: str) -> Table | Comparison:
    """Give a table by its name.

    Examples
    --------
    >>> from protail_paper.groups import bench_table
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

    One seed of all tables comes before the next; then go backbones and tables, as they are named.

    Examples
    --------
    >>> from protail_paper.groups import wanted_cells
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


@dataclass(frozen=True)
class Group:
    """Cells that share a trained representation.

    Attributes
    ----------
    cells : tuple of Cell
        At least one; with the same stage 1, images and seed.
    """

    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        """Any of them, for what they share."""
        return self.cells[0]

    @property
    def name(self) -> str:
        """What to call it in a log."""
        # The backbone is named anyway, and once, though every phase has it.
        changes = [
            f"{key.partition('.')[2]}={value}"
            for key, value in self.first.overrides.items()
            if not key.startswith("classifier.") and not key.endswith(".backbone")
        ]
        made_by = ", ".join([self._backbone, *changes])
        first = self.first
        return f"{first.stage_1} ({made_by}) on {first.draw.folder}, seed {first.seed}"

    @property
    def file(self) -> str:
        """What to call a file of its weights."""
        first = self.first
        words = [first.stage_1, self._backbone, first.draw.folder, f"seed{first.seed}"]
        return "-".join([*words, first.representation_key[:10]]) + ".safetensors"

    @property
    def _backbone(self) -> str:
        return self.first.recipe.phases["representation"].backbone


def missing_groups(
    wanted: Iterable[Cell], cells: Container[Cell], known: Iterable[Cell] = ()
) -> list[Group]:
    """Sort missing cells by the representation they need, in the order they are wanted.

    All cells of one representation are to be comparable: where it has to be trained again, those
    of ``wanted`` and ``known`` that are there already are evaluated on it again.

    Examples
    --------
    >>> import tempfile
    >>> from protail_paper.cells import Cells
    >>> from protail_paper.groups import missing_groups, wanted_cells
    >>> groups = missing_groups(
    ...     wanted_cells(["table1"], ["ResNet-34"]), Cells(tempfile.mkdtemp())
    ... )
    >>> [(group.name, len(group.cells)) for group in groups[:1]]
    [('wd (resnet34-cifar) on cifar100-lt-100, seed 0', 7)]
    """
    every = list(wanted)
    groups: dict[str, dict[str, Cell]] = {
        cell.representation_key: {} for cell in every if cell not in cells
    }
    for cell in [*every, *(cell for cell in known if cell in cells)]:
        group = groups.get(cell.representation_key)
        if group is not None:
            group.setdefault(cell.key, cell)
    return [Group(tuple(members.values())) for members in groups.values()]


def only_named(wanted: Iterable[Cell], patterns: Iterable[str]) -> list[Cell]:
    """Keep the cells of trainings whose whole name is like a pattern, those of the first one first.

    ``*`` stands for anything, ``?`` for one letter.

    Examples
    --------
    >>> from protail_paper.groups import only_named, wanted_cells
    >>> cells = wanted_cells(["table1"], ["ResNet-34"])
    >>> len(cells), len(only_named(cells, ["wd (*, seed 0"]))
    (21, 7)
    """
    groups = missing_groups(wanted, ())
    chosen: list[Group] = []
    for pattern in patterns if groups else ():
        # Names hold brackets, which are no sets of letters here.
        plain = pattern.replace("[", "[[]")
        alike = [group for group in groups if fnmatchcase(group.name, plain)]
        if not alike:
            raise ValueError(
                f"{pattern!r}: no training is called like that; expected a pattern of a "
                f"whole name, as in {groups[0].name!r} or '*, seed 0'. "
                "protail bench status --json lists those that are missing."
            )
        chosen += [group for group in alike if group not in chosen]
    return [cell for group in chosen for cell in group.cells]

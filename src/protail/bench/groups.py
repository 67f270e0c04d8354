"""Missing cells, sorted by the representation they stand on."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from protail.bench.wanted import Cell


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

    A representation that has to be trained again is judged by all that stands on it: cells of
    one representation are to be comparable.

    Parameters
    ----------
    wanted : iterable of Cell
        The most wanted first.
    cells : Cells or other container of Cell
        What is there.
    known : iterable of Cell
        Cells beside those wanted; of these, the ones that are there and stand on a
        representation that has to be trained again.

    Returns
    -------
    list of Group
        What is left to run.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.bench.groups import missing_groups
    >>> from protail.bench.tables import wanted_cells
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
    """Keep the cells whose training is called like one of some patterns.

    Parameters
    ----------
    wanted : iterable of Cell
        The most wanted first.
    patterns : iterable of str
        Of the whole name of a group: ``*`` stands for anything, ``?`` for one letter.

    Returns
    -------
    list of Cell
        Those of the first pattern first.

    Examples
    --------
    >>> from protail.bench.groups import only_named
    >>> from protail.bench.tables import wanted_cells
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

"""Rows of tables as numbers: mean and deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev

from protail.bench.cells import GROUPS, Cells, Result
from protail.bench.rows import Row
from protail.bench.tables import Table
from protail.bench.wanted import Cell

# Points of deviation from which on the single seeds are shown.
_WIDE = 3.0


@dataclass(frozen=True)
class Summary:
    """An accuracy over seeds, in per cent.

    Attributes
    ----------
    values : tuple of float
        One a seed.

    Examples
    --------
    >>> from protail.bench.summaries import Summary
    >>> str(Summary.of([0.5, 0.52, 0.54])), str(Summary.of([0.5]))
    ('52.00 ± 2.00', '50.00')
    >>> str(Summary.of([0.5, 0.1]))
    '30.00 ± 28.28 (50.00, 10.00)'
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, shares: Iterable[float]) -> Summary:
        """Sum up shares from 0 to 1."""
        return cls(tuple(100 * share for share in shares))

    @property
    def mean(self) -> float:
        """Their mean."""
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """Their standard deviation (of a sample); None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.values)

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        spread = f"{self.mean:.2f} ± {self.deviation:.2f}"
        # A mean of seeds that have little in common says less than each of them.
        apart = self.deviation > _WIDE
        return f"{spread} ({', '.join(f'{v:.2f}' for v in self.values)})" if apart else spread


def summarize(
    table: Table, row: Row, backbone: str, cells: Cells, view: str = "plain"
) -> dict[str, Summary]:
    """Sum up a row of a table over the seeds that are there.

    Parameters
    ----------
    table : Table
        Says which seeds.
    row : Row
        Says what was run.
    backbone : str
        On what.
    cells : Cells
        Where the numbers are.
    view : {"plain", "mirrored"}
        Whether logits are averaged with those of the mirror image.

    Returns
    -------
    dict of str to Summary
        By group; empty where no cell is there, or one has diverged.
    """
    return summarize_results(_found(table, row, backbone, cells), view)


def summarize_results(found: Iterable[Result], view: str) -> dict[str, Summary]:
    """Sum up cells of one row: by group; empty where there is none, or one has diverged."""
    found = list(found)
    if any(result.diverged for result in found):
        return {}
    summaries = {}
    for group in GROUPS:
        shares = [s for result in found if (s := result.score(group, view)) is not None]
        if shares:
            summaries[group] = Summary.of(shares)
    return summaries


def has_diverged(table: Table, row: Row, backbone: str, cells: Cells) -> bool:
    """Say whether the loss of a row became no number, with any seed."""
    return any(result.diverged for result in _found(table, row, backbone, cells))


def backbones_differ(table: Table, rows: Iterable[Row], backbone: str, cells: Cells) -> bool:
    """Say whether cells of one seed and one stage 1 stand on different trained backbones.

    Parameters
    ----------
    table : Table
        Says which seeds.
    rows : iterable of Row
        That are compared.
    backbone : str
        On what.
    cells : Cells
        Where it is said; cells that do not say it count with any other.

    Returns
    -------
    bool
        Whether differences between the rows hold more than what the rows differ in.
    """
    return trainings_differ(table.cells(backbone, rows), cells)


def trainings_differ(compared: Iterable[Cell], cells: Cells) -> bool:
    """Say whether cells of one seed and one stage 1 stand on different trained backbones."""
    trained: dict[str, set[str]] = {}
    for cell in compared:
        result = cells.get(cell)
        if result is not None and "backbone" in result.record:
            trained.setdefault(cell.representation_key, set()).add(result.record["backbone"])
    return any(len(hashes) > 1 for hashes in trained.values())


def _found(table: Table, row: Row, backbone: str, cells: Cells) -> list[Result]:
    wanted = [table.cell(row, backbone, seed) for seed in table.seeds]
    return [result for cell in wanted if (result := cells.get(cell)) is not None]


def ranked_rows(table: Table, backbone: str, cells: Cells) -> list[tuple[Row, Summary]]:
    """Rank the rows that choices are made by: the mean accuracy of the classes, mirrored.

    Parameters
    ----------
    table : Table
        Judged on held-out training images.
    backbone : str
        On what.
    cells : Cells
        Where the numbers are.

    Returns
    -------
    list of (Row, Summary)
        The best first; rows of which every seed is there.
    """
    ranked = []
    for row in table.rows:
        found = _found(table, row, backbone, cells)
        if any(result.diverged for result in found):
            continue
        shares = [result.score("balanced", "mirrored") for result in found]
        known = [share for share in shares if share is not None]
        if len(known) == len(table.seeds):
            ranked.append((row, Summary.of(known)))
    return sorted(ranked, key=lambda each: each[1].mean, reverse=True)

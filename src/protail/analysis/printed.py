"""The accuracy of all classes that the paper prints, beside the mean of its printed groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protail.analysis.errata import GROUPS
from protail.bench import PaperTable

# Above what adding up four numbers in floating point can do to a sum.
_SLACK = 1e-9


@dataclass(frozen=True)
class PrintedMean:
    """Hold one printed "all" and what its row's groups make of it.

    Attributes
    ----------
    table : int
        Number of the table.
    row : str
        Name of the row, as printed.
    printed : float
        What the paper says, in percent.
    computed : float
        The mean of the printed groups, each class with the same weight.
    rounding : float
        By how much the two may differ when every number was rounded from the true one.
    """

    table: int
    row: str
    printed: float
    computed: float
    rounding: float

    @property
    def is_right(self) -> bool:
        """Whether rounding explains the difference."""
        return abs(self.printed - self.computed) <= self.rounding + _SLACK


def printed_means(table: PaperTable, group_sizes: Sequence[int]) -> list[PrintedMean]:
    """Compute the "all" of every row of a table from its groups.

    Test sets are balanced, so "all" is the mean of the groups, weighted by their classes.

    Parameters
    ----------
    table : PaperTable
        With columns many, medium, few and all.
    group_sizes : sequence of int
        Classes in many, medium and few.

    Returns
    -------
    list of PrintedMean
        One a row; rows without groups are left out.

    Examples
    --------
    >>> from protail.analysis import printed_means
    >>> from protail.bench import paper_table
    >>> means = printed_means(paper_table(1), [35, 35, 30])
    >>> [
    ...     (mean.row, mean.printed, round(mean.computed, 2))
    ...     for mean in means
    ...     if not mean.is_right
    ... ]
    [('Softmax', 46.12, 46.19), ('+ CDT', 53.06, 52.71), ('+ CDT + LA', 53.41, 54.3)]
    """
    if table.columns != GROUPS:
        raise ValueError(
            f"table is Table {table.number} with columns {', '.join(table.columns)}; expected one "
            f"with columns {', '.join(GROUPS)}."
        )
    if len(group_sizes) != 3 or min(group_sizes) < 0 or sum(group_sizes) == 0:
        raise ValueError(
            f"group_sizes={list(group_sizes)}; expected the classes in many, medium and few, as in "
            "[35, 35, 30]."
        )
    # Half a unit of the last digit for "all", half a unit for the mean of the groups.
    rounding = 10.0**-table.decimals
    means = []
    for row in table.rows:
        *groups, everything = row.values
        present = [value for value in groups if value is not None]
        if everything is None or len(present) < len(groups):
            continue
        total = sum(value * size for value, size in zip(present, group_sizes, strict=True))
        means.append(
            PrintedMean(table.number, row.name, everything, total / sum(group_sizes), rounding)
        )
    return means

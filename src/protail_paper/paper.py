"""The paper's numbers as data, and where they contradict themselves or the class counts.

The numbers are in ``paper.toml``, as printed, errors included.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from protail.profile import ClassProfile
from protail.utils import unknown_name

GROUPS = ("many", "medium", "few", "all")
ATTRIBUTES = ("classes", "samples")
# Classes with many, medium and few images of CIFAR-100-LT 100.
_CLASSES = (35, 35, 30)
# What rounding can make of a mean of numbers with two digits, with room to spare.
_ROUNDING = 0.02
# Above what adding up four numbers in floating point can do to a sum.
_SLACK = 1e-9


@dataclass(frozen=True)
class PaperRow:
    """Hold one row of a table, as printed.

    Attributes
    ----------
    name : str
        As printed, without indent.
    values : tuple of float or None
        One a column, in percent; None where the paper has a dash.
    """

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class PaperTable:
    """Hold one table of results, as printed, errors included.

    Attributes
    ----------
    number : int
        Its number in the paper.
    title : str
        What it shows, in our words.
    dataset : str
        Its name in protail.
    imbalance : int or None
        The ratio; None where the columns are ratios, or the data set is not cut to one.
    backbone : str or None
        What the paper says it used for this data set; None where it says nothing.
    decimals : int
        Digits after the point; single entries have more.
    columns : tuple of str
        Groups ("many", "medium", "few", "all"), ratios ("100"), or classifiers.
    rows : tuple of PaperRow
        In the order of the paper.
    """

    number: int
    title: str
    dataset: str
    imbalance: int | None
    backbone: str | None
    decimals: int
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    def row(self, name: str) -> dict[str, float | None]:
        """Give a row by its name.

        Parameters
        ----------
        name : str
            As printed.

        Returns
        -------
        dict of str to float or None
            Values in percent, by column; None where the paper has a dash.

        Examples
        --------
        >>> from protail_paper import paper_table
        >>> paper_table(4).row("RIDE")
        {'100': 49.1, '50': None, '10': None}
        """
        rows = {row.name: row.values for row in self.rows}
        if name not in rows:
            raise ValueError(unknown_name(f"row of Table {self.number}", name, rows))
        return dict(zip(self.columns, rows[name], strict=True))

    def value(self, row: str, column: str) -> float | None:
        """Give one number.

        Parameters
        ----------
        row : str
            As printed.
        column : str
            One of ``columns``.

        Returns
        -------
        float or None
            In percent; None where the paper has a dash.

        Examples
        --------
        >>> from protail_paper import paper_table
        >>> paper_table(1).value("+ CDT + LA", "all")
        53.41
        """
        values = self.row(row)
        if column not in values:
            raise ValueError(unknown_name(f"column of Table {self.number}", column, values))
        return values[column]


@dataclass(frozen=True)
class PaperFigure:
    """Hold what the paper says about a figure; its points are not printed.

    Attributes
    ----------
    number : int
        Its number in the paper.
    title : str
        What it shows, in our words.
    dataset : str or None
        Its name in protail; None for an illustration.
    panels : tuple of str
        What each panel shows or varies.
    chosen : tuple of (str, float)
        Settings that the paper chose among those a panel varies.
    """

    number: int
    title: str
    dataset: str | None
    panels: tuple[str, ...]
    chosen: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Row:
    """Hold one data set of Table 7, as printed.

    Attributes
    ----------
    dataset : str
        Its name in protail.
    imbalance : int or None
        For data sets that are cut to it.
    classes, samples : tuple of int
        For many, medium, few and all.
    """

    dataset: str
    imbalance: int | None
    classes: tuple[int, ...]
    samples: tuple[int, ...]


def read_data(file: str) -> dict[str, Any]:
    """Read a file of data that comes with the package."""
    return tomllib.loads(resources.files("protail_paper").joinpath(file).read_text("utf-8"))


def _read(kind: str, **defaults: Any) -> list[dict[str, Any]]:
    """Read the entries of a kind from ``paper.toml``; what is a list there is a tuple here."""
    return [
        {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        for entry in ({**defaults, **given} for given in read_data("paper.toml")[kind])
    ]


def _row(entries: Sequence[Any]) -> PaperRow:
    return PaperRow(entries[0], tuple(None if each == "-" else each for each in entries[1:]))


# What the page of results says beside its numbers.
TEXT: dict[str, Any] = read_data("page.toml")
PAPER_TABLES = tuple(
    PaperTable(**{**entry, "rows": tuple(map(_row, entry["rows"]))})
    for entry in _read("table", imbalance=None, backbone=None)
)
PAPER_FIGURES = tuple(
    PaperFigure(**{**entry, "chosen": tuple(entry["chosen"].items())})
    for entry in _read("figure", dataset=None, chosen={})
)
TABLE_7 = tuple(Row(**entry) for entry in _read("table7", imbalance=None))


def paper_table(number: int) -> PaperTable:
    """Give a table by its number.

    Parameters
    ----------
    number : int
        1 to 6, 8 or 9.

    Returns
    -------
    PaperTable
        As printed.

    Examples
    --------
    >>> from protail_paper import paper_table
    >>> [row.name for row in paper_table(2).rows]
    ['Softmax', 'PC + Euclidean', 'PC + Squared Euclidean', 'PC + Cosine']
    """
    tables = {table.number: table for table in PAPER_TABLES}
    if number in tables:
        return tables[number]
    message = unknown_name("table", number, list(map(str, tables)))
    if number == 7:
        message += " Table 7 has no results; it is protail_paper.analysis.TABLE_7."
    raise ValueError(message)


def paper_value(table: int, row: str, column: str) -> float | None:
    """Give one number of the paper.

    Parameters
    ----------
    table : int
        1 to 6, 8 or 9.
    row : str
        The row's name, as printed.
    column : str
        "many", "medium", "few" or "all"; in Table 4 a ratio such as "100", in Table 3 a
        classifier.

    Returns
    -------
    float or None
        In percent; None where the paper has a dash.

    Examples
    --------
    >>> from protail_paper import paper_value
    >>> paper_value(1, "NCM", "few")
    14.13
    >>> paper_value(3, "WD", "PC (Ours)")
    53.4
    """
    return paper_table(table).value(row, column)


def paper_figure(number: int) -> PaperFigure:
    """Give what the paper says about a figure.

    Parameters
    ----------
    number : int
        1 to 4.

    Returns
    -------
    PaperFigure
        Its panels, and the settings that were chosen.

    Examples
    --------
    >>> from protail_paper import paper_figure
    >>> dict(paper_figure(4).chosen)
    {'lr': 4.0, 'epochs': 1.0, 'tau': 0.25}
    """
    figures = {figure.number: figure for figure in PAPER_FIGURES}
    if number not in figures:
        raise ValueError(unknown_name("figure", number, list(map(str, figures))))
    return figures[number]


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
    >>> from protail_paper.analysis import printed_means
    >>> from protail_paper import paper_table
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
        known = [value for value in row.values if value is not None]
        if len(known) == len(GROUPS):
            total = sum(value * n for value, n in zip(known[:3], group_sizes, strict=True))
            computed = total / sum(group_sizes)
            means.append(PrintedMean(table.number, row.name, known[3], computed, rounding))
    return means


def mean_of_groups(table: int, row: str) -> float:
    """Give what "all" is by the groups of a row of CIFAR-100-LT 100: of Table 1, 2 or 8.

    Examples
    --------
    >>> from protail_paper.paper import mean_of_groups, paper_value
    >>> round(mean_of_groups(1, "+ CDT + LA"), 2), paper_value(1, "+ CDT + LA", "all")
    (54.3, 53.41)
    """
    means = {mean.row: mean.computed for mean in printed_means(paper_table(table), _CLASSES)}
    return means[row]


def shown_all(table: int, row: str, digits: int = 2) -> str:
    """Write the "all" of a row, with the mean of its groups where that is another number.

    Examples
    --------
    >>> from protail_paper.paper import shown_all
    >>> shown_all(1, "+ CDT + LA"), shown_all(1, "+ CDT + LA", 1), shown_all(1, "PC")
    ('53.41 [54.30]', '53.4 [54.3]', '52.56')
    """
    printed, true = paper_value(table, row, "all") or 0.0, mean_of_groups(table, row)
    bracket = f" [{true:.{digits}f}]" if abs(true - printed) > _ROUNDING else ""
    return f"{printed:.{digits}f}{bracket}"


@dataclass(frozen=True)
class Entry:
    """Hold one number of Table 7 and what it should be.

    Attributes
    ----------
    attribute : {"classes", "samples"}
        What is counted.
    group : {"many", "medium", "few", "all"}
        The column.
    printed : int
        What the paper says.
    computed : int
        What the counts say.
    """

    attribute: str
    group: str
    printed: int
    computed: int

    @property
    def is_right(self) -> bool:
        """Whether the paper says what the counts say."""
        return self.printed == self.computed


def table7_row(dataset: str, imbalance: float | None = None) -> Row | None:
    """Find what Table 7 says about a data set.

    Parameters
    ----------
    dataset : str
        Its name in protail.
    imbalance : float, optional
        For data sets that are cut to it.

    Returns
    -------
    Row or None
        None where the table does not have it.

    Examples
    --------
    >>> from protail_paper.analysis import table7_row
    >>> table7_row("cifar100-lt", 10).samples
    (17743, 2130, 0, 19573)
    """
    rows = {(row.dataset, row.imbalance): row for row in TABLE_7}
    return rows.get((dataset, imbalance))  # type: ignore[arg-type]


def table7_entries(row: Row, profile: ClassProfile) -> list[Entry]:
    """Compute every number of a row from the class counts.

    Parameters
    ----------
    row : Row
        What the paper says.
    profile : ClassProfile
        The counts of that training set. Groups follow the paper's text: many from 100 images on,
        few below 20.

    Returns
    -------
    list of Entry
        Classes, then samples, of many, medium, few and all.

    Examples
    --------
    >>> from protail_paper.analysis import table7_entries, table7_row
    >>> from protail.data.images import long_tailed_counts
    >>> from protail.profile import ClassProfile
    >>> profile = ClassProfile(long_tailed_counts(500, 100, 10))
    >>> wrong = [
    ...     entry
    ...     for entry in table7_entries(table7_row("cifar100-lt", 10), profile)
    ...     if not entry.is_right
    ... ]
    >>> wrong
    [Entry(attribute='samples', group='many', printed=17743, computed=17443)]
    """
    members = list(profile.groups().values())
    classes = [len(group) for group in members] + [profile.n_classes]
    samples = [int(profile.counts[group].sum()) for group in members] + [profile.n_samples]
    return [
        Entry(attribute, group, printed, value)
        for attribute, computed in zip(ATTRIBUTES, (classes, samples), strict=True)
        for group, printed, value in zip(GROUPS, getattr(row, attribute), computed, strict=True)
    ]


def table7_errata(row: Row, profile: ClassProfile | None = None) -> list[str]:
    """Say in sentences what is wrong with a row.

    Parameters
    ----------
    row : Row
        What the paper says.
    profile : ClassProfile, optional
        The counts of that training set. Without them only the sums can be checked.

    Returns
    -------
    list of str
        One sentence an error; empty where none was found.

    Examples
    --------
    >>> from protail_paper.analysis import TABLE_7, table7_errata
    >>> for sentence in table7_errata(TABLE_7[-1]):
    ...     print(sentence)
    classes: many, medium and few add up to 8,517, not to the 8,142 of all
    samples: many, medium and few add up to 825,207, not to the 437,513 of all
    """
    found = []
    for attribute in ATTRIBUTES:
        *groups, everything = getattr(row, attribute)
        if sum(groups) != everything:
            found.append(
                f"{attribute}: many, medium and few add up to {sum(groups):,}, not to the "
                f"{everything:,} of all"
            )
    if profile is not None:
        found += [
            f"{entry.attribute}: {entry.group} should be {entry.computed:,}, not {entry.printed:,}"
            for entry in table7_entries(row, profile)
            if not entry.is_right
        ]
    return found

"""The paper's numbers: every table of results, and what is said about the figures.

Table 7, statistics of the data sets, stands in `protail.analysis` beside its errata.
"""

from __future__ import annotations

from protail._messages import unknown_name
from protail.bench._paper_tables import PAPER_FIGURES, PAPER_TABLES
from protail.bench._paper_types import PaperFigure, PaperRow, PaperTable

__all__ = [
    "PAPER_FIGURES",
    "PAPER_TABLES",
    "PaperFigure",
    "PaperRow",
    "PaperTable",
    "paper_figure",
    "paper_table",
    "paper_value",
]

# Classes with many, medium and few images of CIFAR-100-LT 100.
_CLASSES = {"many": 35, "medium": 35, "few": 30}
# What rounding can make of a mean of numbers with two digits, with room to spare.
_ROUNDING = 0.02


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
    >>> from protail.bench import paper_table
    >>> [row.name for row in paper_table(2).rows]
    ['Softmax', 'PC + Euclidean', 'PC + Squared Euclidean', 'PC + Cosine']
    """
    found = next((table for table in PAPER_TABLES if table.number == number), None)
    if found is not None:
        return found
    message = unknown_name("table", number, [str(table.number) for table in PAPER_TABLES])
    if number == 7:
        message += " Table 7 has no results; it is protail.analysis.TABLE_7."
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
    >>> from protail.bench import paper_value
    >>> paper_value(1, "NCM", "few")
    14.13
    >>> paper_value(3, "WD", "PC (Ours)")
    53.4
    """
    return paper_table(table).value(row, column)


def mean_of_groups(table: int, row: str) -> float:
    """Give what "all" is by the groups of a row of CIFAR-100-LT 100, whose test set is balanced.

    Parameters
    ----------
    table : int
        1, 2 or 8.
    row : str
        The row's name, as printed.

    Returns
    -------
    float
        In percent.

    Examples
    --------
    >>> from protail.bench.paper import mean_of_groups, paper_value
    >>> round(mean_of_groups(1, "+ CDT + LA"), 2), paper_value(1, "+ CDT + LA", "all")
    (54.3, 53.41)
    """
    values = paper_table(table).row(row)
    shares = [n * (values[group] or 0.0) for group, n in _CLASSES.items()]
    return sum(shares) / sum(_CLASSES.values())


def shown_all(table: int, row: str, digits: int = 2) -> str:
    """Write the "all" of a row, with the mean of its groups where that is another number.

    Parameters
    ----------
    table : int
        1, 2 or 8.
    row : str
        The row's name, as printed.
    digits : int, default=2
        Behind the point.

    Returns
    -------
    str
        As printed, then the mean in brackets.

    Examples
    --------
    >>> from protail.bench.paper import shown_all
    >>> shown_all(1, "+ CDT + LA"), shown_all(1, "+ CDT + LA", 1), shown_all(1, "PC")
    ('53.41 [54.30]', '53.4 [54.3]', '52.56')
    """
    printed, true = paper_value(table, row, "all") or 0.0, mean_of_groups(table, row)
    bracket = f" [{true:.{digits}f}]" if abs(true - printed) > _ROUNDING else ""
    return f"{printed:.{digits}f}{bracket}"


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
    >>> from protail.bench import paper_figure
    >>> dict(paper_figure(4).chosen)
    {'lr': 4.0, 'epochs': 1.0, 'tau': 0.25}
    """
    found = next((figure for figure in PAPER_FIGURES if figure.number == number), None)
    if found is None:
        numbers = [str(figure.number) for figure in PAPER_FIGURES]
        raise ValueError(unknown_name("figure", number, numbers))
    return found

"""What a table and a figure of the paper are."""

from __future__ import annotations

from dataclasses import dataclass

from protail._messages import unknown_name


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
        >>> from protail.bench import paper_table
        >>> paper_table(4).row("RIDE")
        {'100': 49.1, '50': None, '10': None}
        """
        found = next((row for row in self.rows if row.name == name), None)
        if found is None:
            names = [row.name for row in self.rows]
            raise ValueError(unknown_name(f"row of Table {self.number}", name, names))
        return dict(zip(self.columns, found.values, strict=True))

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
        >>> from protail.bench import paper_table
        >>> paper_table(1).value("+ CDT + LA", "all")
        53.41
        """
        values = self.row(row)
        if column not in values:
            raise ValueError(
                unknown_name(f"column of Table {self.number}", column, list(self.columns))
            )
        return values[column]


@dataclass(frozen=True)
class PaperFigure:
    """Hold what the paper says about a figure; its points are nowhere printed.

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

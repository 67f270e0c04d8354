"""Tables that fit a terminal: headings wrap, numbers never do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Column, Table

# A word of text may break where it is longer; a cell of a right-aligned column never does.
_LONGEST_WORD = 20


def fitted(table: Table, width: int) -> RenderableType:
    """Make a table fit: narrower columns, then no frame, then its rows below each other.

    Parameters
    ----------
    table : rich.table.Table
        What is too wide, maybe. Columns of numbers are those aligned to the right.
    width : int
        How many signs a line holds.

    Returns
    -------
    rich.table.Table or rich.text.Text
        All of its words, and every number in one piece.

    Examples
    --------
    >>> from rich.console import Console
    >>> from rich.table import Table
    >>> from protail.cli._tables import fitted
    >>> table = Table("in %")
    >>> for heading in ("all", "balanced"):
    ...     table.add_column(heading, justify="right")
    >>> table.add_row("softmax", "38.3", "38.9")
    >>> Console(width=16).print(fitted(table, 16))
    softmax
      all: 38.3
      balanced: 38.9
    """
    least, most = (list(each) for each in zip(*map(_extent, table.columns), strict=True))
    n = len(least)
    if sum(most) + 3 * n + 1 <= width:
        return table
    if sum(least) + 3 * n + 1 > width:
        table.box, table.padding = None, (0, 1, 0, 0)
        if sum(least) + n > width:
            return _below_each_other(table)
    room = width - (n if table.box is None else 3 * n + 1)
    for column, wide in zip(table.columns, _shared_out(least, most, room), strict=True):
        column.width, column.overflow, column.no_wrap = wide, "fold", False
    return table


def _extent(column: Column) -> tuple[int, int]:
    """Give the least width that breaks nothing that must not break, and the one that is enough."""
    heading, cells = str(column.header), [str(cell) for cell in column.cells]
    words = [len(word) for text in (heading, *cells) for word in text.split()]
    least = min(max(words, default=1), _LONGEST_WORD)
    lines = [len(line) for text in (heading, *cells) for line in text.splitlines()]
    if column.justify == "right" or column.no_wrap:
        least = max([least, *map(len, cells)])
    return max(least, 1), max([*lines, least, 1])


def _shared_out(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widen columns one sign after the other, until all have enough or nothing is left."""
    widths = list(least)
    while (left := room - sum(widths)) > 0:
        growing = [place for place, wide in enumerate(widths) if wide < most[place]]
        for place in growing[:left]:
            widths[place] += 1
        if not growing:
            break
    return widths


def _below_each_other(table: Table) -> RenderableType:
    from rich.text import Text

    headings = [str(column.header) for column in table.columns]
    lines = [str(words) for words in (table.title,) if words]
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        lines.append(str(first))
        named = zip(headings[1:], map(str, others), strict=True)
        lines += [f"  {heading}: {cell}" for heading, cell in named if cell]
    lines += [str(words) for words in (table.caption,) if words]
    return Text("\n".join(lines), overflow="fold")

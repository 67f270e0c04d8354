"""Results as rich tables; names never pass through markup."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from protail.evaluation._checks import GROUPS

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from protail.evaluation.comparison import Comparison
    from protail.evaluation.evaluation import Evaluation

_HEADERS = {
    "all": "all",
    "balanced_accuracy": "balanced",
    "many": "many",
    "medium": "medium",
    "few": "few",
    "macro_f1": "macro F1",
    "calibration_error": "calibration error",
}


def results_table(
    results: Mapping[str, Evaluation], title: str | None = None, *, without: Collection[str] = ()
) -> Table:
    """Make a rich table with one row for each evaluation, in per cent.

    Parameters
    ----------
    results : mapping of str to Evaluation
        The evaluations by the name of their row.
    title : str, optional
        What stands above the table.
    without : collection of str
        Scores that are left out, such as "macro_f1".

    Returns
    -------
    rich.table.Table
        The columns all, balanced, many, medium, few, macro F1 and calibration error; one that
        would be empty is left out. Groups carry their number of classes.

    Examples
    --------
    >>> from protail.evaluation import Evaluation, results_table
    >>> known = {"classes": ["cat", "lynx"], "counts": [500, 5]}
    >>> truth = ["cat", "cat", "lynx", "lynx"]
    >>> results = {
    ...     "softmax": Evaluation.from_predictions(truth, ["cat"] * 4, **known),
    ...     "prototypes": Evaluation.from_predictions(truth, truth, **known),
    ... }
    >>> [str(column.header) for column in results_table(results).columns]
    ['in %', 'all', 'balanced', 'many (1)', 'few (1)', 'macro F1']
    """
    table = _new_table(title)
    shown = [
        name
        for name in _HEADERS
        if name not in without
        and any(getattr(result, name) is not None for result in results.values())
    ]
    for name in shown:
        sizes = {group_size(result, name) for result in results.values()} if name in GROUPS else ()
        table.add_column(_header(name, sizes), justify="right")
    for label, result in results.items():
        cells = [_per_cent(getattr(result, name)) for name in shown]
        table.add_row(_text(label), *map(_text, cells))
    return table


def group_size(result: Evaluation, group: str) -> str:
    """Count the classes of a group; where some have no test rows, those that have.

    Parameters
    ----------
    result : Evaluation
        What was evaluated.
    group : str
        "many", "medium" or "few".

    Returns
    -------
    str
        As in "3" or "2 of 3".

    Examples
    --------
    >>> from protail.evaluation import Evaluation, group_size
    >>> result = Evaluation.from_predictions([0], [1], classes=[0, 1], counts=[9, 3])
    >>> group_size(result, "few")
    '1 of 2'
    """
    members = result.groups[group]
    tested = int((result.class_rows[members] > 0).sum())
    return str(tested) if tested == members.size else f"{tested} of {members.size}"


def comparison_table(comparison: Comparison, first_name: str, second_name: str) -> Table:
    """Make a rich table of a comparison with one row for each score, in per cent."""
    table = _new_table(None)
    interval = f"{100 * comparison.confidence_level:g} % interval"
    for header in (first_name, second_name, "difference", interval):
        table.add_column(_text(header), justify="right")
    table.add_column(_text(f"{second_name} is"))
    for name, difference in comparison.differences.items():
        if difference is None:
            continue
        sizes = {str(comparison.group_classes[name])} if name in GROUPS else ()
        cells = (
            _per_cent(difference.first),
            _per_cent(difference.second),
            _signed(difference.difference),
            f"{_signed(difference.low)} to {_signed(difference.high)}",
            difference.verdict,
        )
        table.add_row(_header(name, sizes), *map(_text, cells))
    return table


def _new_table(title: str | None) -> Table:
    from rich.table import Table

    table = Table(title=None if title is None else _text(title))
    table.add_column(_text("in %"))
    return table


def _text(words: str) -> Text:
    """Wrap words so that rich prints them as they are: a model may be called ``[bold]``."""
    from rich.text import Text

    return Text(str(words))


def _header(name: str, sizes: set[str] | tuple[()]) -> Text:
    """Name a score; a group with its number of classes where all results agree on it."""
    header = _HEADERS[name]
    return _text(f"{header} ({next(iter(sizes))})" if len(sizes) == 1 else header)


def _per_cent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f}"


def _signed(fraction: float) -> str:
    # + 0.0 turns a rounded -0.0 into 0.0.
    return "-" if math.isnan(fraction) else f"{round(100 * fraction, 1) + 0.0:+.1f}"

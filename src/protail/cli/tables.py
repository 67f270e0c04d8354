"""Tables of results, and how they fit a terminal: headings wrap, numbers never do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protail._messages import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Column, Table

    from protail.cli.command import Voice
    from protail.evaluation import Evaluation

Record = Mapping[str, Mapping[str, Any]]

COST = "cost"
_VIEWS = ("plain", "mirrored")
_SCORES = ("all", "many", "medium", "few")
# A word of text may break where it is longer; a cell of a right-aligned column never does.
_LONGEST_WORD = 20


def make_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: int | None = None,
    simple: bool = True,
    **options: Any,
) -> Table:
    """Make a table.

    Parameters
    ----------
    headings : sequence of str
        One a column.
    rows : iterable of sequence
        Texts, one a column; other things as `str` writes them.
    right : int, optional
        The first column of numbers: aligned to the right, as all behind it.
    simple : bool, default=True
        Without a frame.
    **options
        As for `rich.table.Table`.

    Returns
    -------
    rich.table.Table
        To be shown by `Voice.show`.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=box.SIMPLE if simple else box.HEAVY_HEAD, **options)
    for column in table.columns[len(headings) if right is None else right :]:
        column.justify = "right"
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    return table


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
    >>> from protail.cli.tables import fitted
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


def chosen(record: Record, flipped: bool | None) -> dict[str, dict[str, Any]]:
    """Keep of a run's scores those that were asked for.

    Parameters
    ----------
    record : mapping
        What ``evaluation.json`` holds: scores by stage and view.
    flipped : bool or None
        Averaged with mirror images, or not; None keeps both.

    Returns
    -------
    dict
        By stage and view.

    Examples
    --------
    >>> from protail.cli.tables import chosen
    >>> chosen({"classifier": {"plain": {"all": 0.5}, "mirrored": {"all": 0.6}}}, True)
    {'classifier': {'mirrored': {'all': 0.6}}}
    """
    views = _VIEWS if flipped is None else ("mirrored" if flipped else "plain",)
    if flipped and not all("mirrored" in scores for scores in record.values()):
        raise ValueError(
            "--flip was given, but the data has no features of flipped test images; expected "
            "them as x_test_mirror. Leave it out."
        )
    return {
        stage: {view: scores[view] for view in (*views, COST) if view in scores}
        for stage, scores in record.items()
    }


def show_scores(voice: Voice, runs: Mapping[str, Record]) -> None:
    """Show a table of all runs and, of several, one of means and standard deviations.

    Parameters
    ----------
    voice : Voice
        Who shows it.
    runs : mapping of str to mapping
        Scores by stage and view, by the name of the run.
    """
    from protail.experiments import scores_table

    voice.show(scores_table(runs))
    for words in dict.fromkeys(_cost_words(record) for record in runs.values()):
        if words:
            voice.show(words)
    if len(runs) > 1:
        voice.show(f"mean ± standard deviation of {len(runs)} runs:")
        voice.show(_summary_table(summary(runs.values())))


def summary(records: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Give mean and standard deviation of each score over several runs.

    Parameters
    ----------
    records : iterable of mapping
        Scores by stage and view, one a run; at least two.

    Returns
    -------
    dict
        By row of the table and score, ``mean`` and ``std`` (of a sample).

    Examples
    --------
    >>> from protail.cli.tables import summary
    >>> summary([{"classifier": {"plain": {"all": fraction}}} for fraction in (0.25, 0.75)])
    {'classifier': {'all': {'mean': 0.5, 'std': 0.3535533905932738}}}
    """
    from protail.experiments import scores_by_row

    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for label, scores in scores_by_row(record).items():
            for name in _SCORES:
                if scores.get(name) is not None:
                    found.setdefault(label, {}).setdefault(name, []).append(scores[name])
    return {
        label: {
            name: {"mean": float(np.mean(each)), "std": float(np.std(each, ddof=1))}
            for name, each in scores.items()
        }
        for label, scores in found.items()
    }


def _cost_words(record: Record) -> str:
    """Say what an image costs, once where all stages cost the same."""
    costs = {
        stage: f"{views[COST]['gflops']:.3g} GFLOPs" + _experts_words(views[COST])
        for stage, views in record.items()
        if COST in views
    }
    if not costs:
        return ""
    each = ", ".join(f"{stage} {cost}" for stage, cost in costs.items())
    one = next(iter(costs.values()))
    return f"An image costs {one if len(set(costs.values())) == 1 else each}."


def _experts_words(cost: Mapping[str, float]) -> str:
    used = cost.get("experts_used")
    return "" if used is None else f" ({used:.2f} experts, the mean over the test images)"


def _summary_table(rows: dict[str, dict[str, dict[str, float]]]) -> Table:
    shown = [name for name in _SCORES if any(name in scores for scores in rows.values())]
    cells = [
        [label, *(f"{100 * s[n]['mean']:.1f} ± {100 * s[n]['std']:.1f}" for n in shown)]
        for label, s in rows.items()
    ]
    return make_table(["", *shown], cells, right=1, simple=False, caption="per cent")


def show_evaluation(voice: Voice, evaluation: Evaluation, name: str) -> None:
    """Show the table of one model and, in a line each, what else is known."""
    voice.show(evaluation.table(name))
    for line in (*_error_lines(evaluation), *_novelty_lines(evaluation)):
        voice.show(line)


def show_rejected(voice: Voice, rejected: Any, known: Any) -> dict[str, float]:
    """Tell which part of the rows a model does not name; rows of known classes first.

    Parameters
    ----------
    voice : Voice
        Who shows it.
    rejected, known : ndarray of bool
        Which rows have no label, and which are of a class that the model knows.

    Returns
    -------
    dict
        The fraction of the ``known`` and of the ``unknown`` ones, where there are any.
    """
    parts = {"known": rejected[known], "unknown": rejected[~known]}
    found = {name: float(part.mean()) for name, part in parts.items() if len(part)}
    words = [f"{100 * part:.1f} % of the rows of {name} classes" for name, part in found.items()]
    voice.show(f"rejected: {', '.join(words)}; above they count by their likeliest class")
    return found


def _error_lines(evaluation: Evaluation) -> list[str]:
    """Tell where the errors of each group go, and how honest its probabilities are."""
    groups = tuple(evaluation.groups)
    lines = []
    for group, fractions in zip(groups, evaluation.confusion, strict=True):
        if not np.isnan(fractions).any():
            goes = ", ".join(
                f"{100 * s:.1f} % to {g}" for g, s in zip(groups, fractions, strict=True)
            )
            line = f"errors of {group}: {goes}"
            calibration = evaluation.group_calibration_error[group]
            if calibration is not None:
                line += f"; calibration error {100 * calibration:.1f} %"
            lines.append(line)
    return lines


def _novelty_lines(evaluation: Evaluation) -> list[str]:
    if evaluation.novelty_auroc is None:
        return []
    unseen = counted(evaluation.n_unseen, "row is", "rows are")
    return [
        f"{unseen} of classes the model does not know: its novelty score tells them from the "
        f"others with AUROC {evaluation.novelty_auroc:.3f}"
    ]

"""The page of results: tables in Markdown, made from cells and never written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from protail.bench.cells import GROUPS, Cells
from protail.bench.paper import paper_table
from protail.bench.questions import QUESTIONS
from protail.bench.rows import Row
from protail.bench.summaries import Summary, summarize
from protail.bench.tables import BACKBONES, TABLES, Table

# Classes with many, medium and few images of CIFAR-100-LT 100: what the paper's All should be.
_CLASSES = {"many": 35, "medium": 35, "few": 30}
_MISSING = "not run"

_INTRODUCTION = """\
# Results

Made by `protail bench write` from the cells in this folder; do not edit. Accuracy in per cent on
the test images, mean ± standard deviation over seeds, after the last epoch, one training set for
both stages unless a row says otherwise. *Mirrored*: logits averaged over an image and its mirror
image. Nothing was chosen on test images. Every cell says the command that makes it.
"""


def results_page(cells: Cells) -> str:
    """Write the page.

    Parameters
    ----------
    cells : Cells
        What has been run.

    Returns
    -------
    str
        Markdown.

    Examples
    --------
    >>> import tempfile
    >>> from protail.bench.cells import Cells
    >>> from protail.bench.page import results_page
    >>> page = results_page(Cells(tempfile.mkdtemp()))
    >>> page.splitlines()[0], "not run" in page
    ('# Results', True)
    """
    parts = [_INTRODUCTION]
    for table in TABLES.values():
        for backbone in BACKBONES:
            parts.append(_section(table, backbone, cells))
    return "\n".join(parts)


def _section(table: Table, backbone: str, cells: Cells) -> str:
    data = f"CIFAR-100-LT 100, {backbone}, {len(table.seeds)} seeds"
    if table.paper is not None:
        title = f"## Table {table.paper} of the paper: {table.title} ({data})"
        return "\n".join([title, "", *_beside_paper(table, backbone, cells), ""])
    lines = [f"## {table.title} ({data})", ""]
    for question in QUESTIONS:
        lines += [f"### {question.text}", "", *_plain(table, question.rows, backbone, cells), ""]
    return "\n".join(lines)


def _beside_paper(table: Table, backbone: str, cells: Cells) -> Iterable[str]:
    yield _line(
        [
            "",
            *GROUPS,
            *(f"mirrored: {g}" for g in GROUPS),
            *(f"paper: {g}" for g in GROUPS),
            "difference",
        ]
    )
    yield "|---|" + "---|" * 13
    for row in table.rows:
        plain, mirrored = (
            summarize(table, row, backbone, cells, view) for view in ("plain", "mirrored")
        )
        printed = _printed(table, row)
        yield _line(
            [
                row.label,
                *_numbers(plain, table),
                *_numbers(mirrored, table),
                *(printed or [""] * 4),
                _difference(table, row, mirrored),
            ]
        )
    yield ""
    yield (
        "*Paper*, all: as printed, in brackets the mean of its groups where it is another one. "
        "*Difference*: mirrored (as the published code evaluates) minus the mean of the paper's "
        "groups."
    )


def _plain(table: Table, rows: Iterable[Row], backbone: str, cells: Cells) -> Iterable[str]:
    yield "| | many | medium | few | all | all, mirrored |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        plain, mirrored = (
            summarize(table, row, backbone, cells, view) for view in ("plain", "mirrored")
        )
        last = str(mirrored["all"]) if mirrored else _MISSING
        yield _line([row.label, *_numbers(plain, table), last])


def _line(entries: Iterable[str]) -> str:
    return "| " + " | ".join(entries) + " |"


def _numbers(summary: dict[str, Summary], table: Table) -> list[str]:
    if not summary:
        return [_MISSING] * len(GROUPS)
    n, whole = summary["all"].n, len(table.seeds)
    short = "" if n == whole else f" ({n} of {whole} seeds)"
    return [f"{summary[group]}{short if group == 'all' else ''}" for group in GROUPS]


def _printed(table: Table, row: Row) -> list[str] | None:
    if row.paper is None or table.paper is None:
        return None
    values = paper_table(table.paper).row(row.paper)
    texts = [f"{values[group]:.2f}" for group in GROUPS]
    true = _true_mean(table, row)
    if true is not None and abs(true - (values["all"] or 0.0)) > 0.02:
        texts[-1] += f" [{true:.2f}]"
    return texts


def _true_mean(table: Table, row: Row) -> float | None:
    if row.paper is None or table.paper is None:
        return None
    values = paper_table(table.paper).row(row.paper)
    sums = [n * (values[group] or 0.0) for group, n in _CLASSES.items()]
    return sum(sums) / sum(_CLASSES.values())


def _difference(table: Table, row: Row, mirrored: dict[str, Summary]) -> str:
    true = _true_mean(table, row)
    if true is None or not mirrored:
        return ""
    return f"{mirrored['all'].mean - true:+.2f}"

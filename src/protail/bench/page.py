"""The page of results: tables in Markdown, made from cells and never written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from protail.bench._page_about import about_cells, figure_lines, search_lines
from protail.bench._page_choices import choices_section
from protail.bench._page_comparisons import comparisons_section
from protail.bench._page_tables import DIVERGED, MISSING, MIXED, header, line
from protail.bench.cells import GROUPS, Cells
from protail.bench.paper import mean_of_groups, paper_table, shown_all
from protail.bench.questions import QUESTIONS
from protail.bench.rows import Row, rows_on
from protail.bench.summaries import Summary, backbones_differ, has_diverged, summarize
from protail.bench.tables import BACKBONES, TABLES, Table

_INTRODUCTION = """\
# Results

Made by `protail bench write` from the cells in this folder; do not edit. CIFAR-100-LT, imbalance
100. Accuracy in per cent on the test images, mean ± standard deviation over three seeds (above 3
points the single seeds follow), after the last epoch, one training set for both stages unless a row
says otherwise. *Mirrored*: logits averaged over an image and its mirror image, as the published
code does; *plain*: without that. Rows of a backbone share its three trainings and one draw of
images: differences between rows are much firmer than ± suggests, and ± does not hold the spread
over draws. No setting and no epoch was chosen on test images; which values are tried at all was
informed by earlier results on them. Every cell says the command that makes it.
"""
_NOTE = """\
*All* of the paper: as printed, in brackets the mean of its groups where that is another one.
*Ours - paper*: our *all*, mirrored, minus the mean of the paper's groups.
"""


def results_page(cells: Cells) -> str:
    """Write the page.

    Parameters
    ----------
    cells : Cells
        What has been run. Figures and searches that lie beside their folder are linked.

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
    folder = cells.folder.parent
    parts = [_INTRODUCTION, f"{about_cells(cells)}\n", _NOTE]
    for backbone in BACKBONES:
        parts += [f"## {backbone}\n", *(_section(t, backbone, cells) for t in TABLES.values())]
    parts += filter(None, [comparisons_section(cells)])
    parts += [choices_section(cells)]
    for title, lines in (("Figures", figure_lines(folder)), ("Searches", search_lines(folder))):
        found = list(lines)
        if found:
            parts += [f"## {title}\n", "\n".join(found) + "\n"]
    return "\n".join(parts).rstrip("\n") + "\n"


def _section(table: Table, backbone: str, cells: Cells) -> str:
    if table.paper is not None:
        title = f"### Table {table.paper} of the paper: {table.title} ({backbone})"
        lines = [title, "", *_beside_paper(table, backbone, cells), ""]
        lines += [*_plain(table, backbone, cells), ""]
        return "\n".join([*lines, *_mixed(table, table.rows, backbone, cells)])
    lines = [f"### {table.title} ({backbone})", ""]
    for question in QUESTIONS:
        rows = rows_on(backbone, question.rows)
        if not any(cell in cells for cell in table.cells(backbone, rows)):
            continue
        lines += [f"#### {question.text}", ""]
        lines += [*_question(table, rows, backbone, cells), ""]
        lines += _mixed(table, rows, backbone, cells)
    return "\n".join(lines)


def _beside_paper(table: Table, backbone: str, cells: Cells) -> Iterable[str]:
    yield from header("mirrored", *GROUPS, "ours - paper")
    for row in table.rows:
        mirrored = summarize(table, row, backbone, cells, "mirrored")
        yield line([row.label, *_numbers(mirrored, table), ""])
        printed = _printed(table, row)
        if printed is not None:
            yield line(["*paper*", *printed, _difference(table, row, mirrored)])


def _plain(table: Table, backbone: str, cells: Cells) -> Iterable[str]:
    yield from header("plain", *GROUPS)
    for row in table.rows:
        yield line([row.label, *_numbers(summarize(table, row, backbone, cells), table)])


def _question(table: Table, rows: Iterable[Row], backbone: str, cells: Cells) -> Iterable[str]:
    yield from header("plain", *GROUPS, "all, mirrored")
    for row in rows:
        plain, mirrored = (
            summarize(table, row, backbone, cells, view) for view in ("plain", "mirrored")
        )
        missing = DIVERGED if has_diverged(table, row, backbone, cells) else MISSING
        last = str(mirrored["all"]) if mirrored else missing
        yield line([row.label, *_numbers(plain, table, missing), last])


def _mixed(table: Table, rows: Iterable[Row], backbone: str, cells: Cells) -> list[str]:
    return [MIXED, ""] if backbones_differ(table, rows, backbone, cells) else []


def _numbers(summary: dict[str, Summary], table: Table, missing: str = MISSING) -> list[str]:
    if not summary:
        return [missing] * len(GROUPS)
    n, whole = summary["all"].n, len(table.seeds)
    short = "" if n == whole else f" ({n} of {whole} seeds)"
    return [f"{summary[group]}{short if group == 'all' else ''}" for group in GROUPS]


def _printed(table: Table, row: Row) -> list[str] | None:
    if row.paper is None or table.paper is None:
        return None
    values = paper_table(table.paper).row(row.paper)
    groups = [f"{values[group]:.2f}" for group in GROUPS if group != "all"]
    return [*groups, shown_all(table.paper, row.paper)]


def _difference(table: Table, row: Row, mirrored: dict[str, Summary]) -> str:
    if row.paper is None or table.paper is None or not mirrored:
        return ""
    return f"{mirrored['all'].mean - mean_of_groups(table.paper, row.paper):+.2f}"

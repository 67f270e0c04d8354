"""What the page of results says about other methods: Tables 3, 4, 9, 5 and 6."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import mean

from protail.bench._page_paired import paired_section
from protail.bench._page_tables import DIVERGED, MISSING, MIXED, header, line
from protail.bench.cells import GROUPS, Cells, Result
from protail.bench.comparisons import COMPARISONS, OTHER_SETTINGS, Comparison, Entry
from protail.bench.large import LARGE
from protail.bench.paper import paper_table
from protail.bench.summaries import Summary, summarize_results, trainings_differ
from protail.bench.tables import BACKBONES, TABLES, wanted_cells
from protail.bench.wanted import Cell

_TITLE = "## Other methods"
_NOTE = """\
*All* of the test images, mirrored. *GFLOPs*: thousands of millions of operations that the features
of one image take, a multiply-add as two; its mirror image takes as many again. *GPU s*: seconds of
GPU time of one seed, stage 1 and a classifier: where several were trained together, each its share
by what its steps take, and an equal one of what all classifiers took; of cells that do not know
theirs none are shown. One and the same training has been charged half as much again, and more,
beside others: small differences mean nothing. Both are those of the first column that has been run.
*Images as PC*: the classifier learns from images that are augmented as those of PC, with
AutoAugment and Cutout; *crop and flip*: without these. *As published*: with the rate and decay of
its authors, but rows are shortened after every step, theirs once an epoch, and the last epoch
counts, where they take the best. *Chosen on CIFAR-10-LT*: with what did best on held-out images
there, not on those of CIFAR-100-LT. *As on WD*: with the settings of `pc-la` there, not those
chosen for these features. *Two sets of images*: as in the published code stage 1 learns from the
first images of a class, and stage 2 from others that are drawn. Nothing stands where no run is
wanted, a dash where there is nothing to tell.
"""
_DASH = "-"


def comparisons_section(cells: Cells) -> str:
    """Write the tables that have a cell of their own, which no table above them has."""
    above = {cell.key for cell in wanted_cells(TABLES, BACKBONES)}
    shown = [
        table
        for table in (COMPARISONS | LARGE).values()
        if any(cell.key not in above and cell in cells for cell in _all_cells(table))
    ]
    if not shown:
        return ""
    parts = [*(_section(table, cells) for table in shown), paired_section(cells)]
    return "\n".join([_TITLE, "", _NOTE, *filter(None, parts)])


def _all_cells(table: Comparison) -> list[Cell]:
    return [cell for backbone in table.backbones for cell in table.cells(backbone)]


def _section(table: Comparison, cells: Cells) -> str:
    lines = [f"### Table {table.paper} of the paper: {table.title}", ""]
    lines += [*_beside_paper(table, cells), "", *_groups(table, cells)]
    mixed = trainings_differ(_all_cells(table), cells)
    return "\n".join([*lines, *([MIXED, ""] if mixed else [])])


def _beside_paper(table: Comparison, cells: Cells) -> Iterator[str]:
    yield from header("mirrored", "backbone", *table.columns, "GFLOPs", "GPU s")
    for row, entries in _rows(table).items():
        found = {entry.column: _found(table, entry, cells) for entry in entries}
        numbers = [
            _number(table, found[column], _group(column)) if column in found else ""
            for column in table.columns
        ]
        yield line([row, _backbone(table, entries[0]), *numbers, *_costs(found.values())])
        printed = _printed(table, entries)
        if printed:
            shown = [
                _as_printed(table, printed.get(column)) if column in found else ""
                for column in table.columns
            ]
            yield line(["*paper*", "", *shown, "", ""])
            differences = list(_differences(table, found, printed))
            if any(differences):
                yield line(["*ours - paper*", "", *differences, "", ""])


def _groups(table: Comparison, cells: Cells) -> Iterator[str]:
    """Show the groups of classes of all that has been run, where they are no columns already."""
    if set(GROUPS) <= set(table.columns):
        return
    parts: dict[str, list[str]] = {}
    for entry in table.entries:
        if found := _found(table, entry, cells):
            is_ratio = entry.column.isdecimal()
            part = f"mirrored, imbalance {entry.column}" if is_ratio else "mirrored"
            numbers = (_number(table, found, group) for group in GROUPS)
            parts.setdefault(part, []).append(line([_label(entry), *numbers]))
    for part, lines in parts.items():
        yield from (*header(part, *GROUPS), *lines, "")


def _label(entry: Entry) -> str:
    """Name an entry where its column is not seen: as its row, unless columns are classifiers."""
    if entry.column.isdecimal() or entry.column in GROUPS:
        return entry.row
    row = entry.row.removesuffix(OTHER_SETTINGS)
    return ", ".join(filter(None, (f"{row} / {entry.column}", entry.variant)))


def _rows(table: Comparison) -> dict[str, list[Entry]]:
    rows: dict[str, list[Entry]] = {}
    for entry in table.entries:
        rows.setdefault(entry.row, []).append(entry)
    return rows


def _found(table: Comparison, entry: Entry, cells: Cells) -> list[Result]:
    results = (cells.get(entry.cell(seed)) for seed in table.seeds)
    return [result for result in results if result is not None]


def _backbone(table: Comparison, entry: Entry) -> str:
    of_recipe = entry.cell(table.seeds[0]).recipe.phases["representation"].backbone
    return next(name for name, known in table.backbones.items() if of_recipe in known)


def _group(column: str) -> str:
    return column if column in GROUPS else "all"


def _number(table: Comparison, found: list[Result], group: str = "all") -> str:
    score = _score(found, group)
    if score is None:
        if any(result.diverged for result in found):
            return DIVERGED
        return _DASH if found else MISSING  # of small imbalances no class is in *few*
    whole = len(table.seeds)
    short = f" ({score.n} of {whole} seeds)" if group == "all" and score.n < whole else ""
    return f"{score}{short}"


def _score(found: list[Result], group: str = "all") -> Summary | None:
    return summarize_results(found, "mirrored").get(group)


def _costs(columns: Iterable[list[Result]]) -> list[str]:
    results = next((found for found in columns if found), [])
    flops = [each.record["cost"]["gflops"] for each in results if "cost" in each.record]
    seconds = [took for each in results if (took := each.gpu_seconds) is not None]
    return [f"{mean(flops):.3f}" if flops else "", f"{mean(seconds):.0f}" if seconds else ""]


def _printed(table: Comparison, entries: list[Entry]) -> dict[str, float]:
    paper = paper_table(table.paper)
    values = {
        entry.column: paper.value(entry.paper, entry.column)
        for entry in entries
        if entry.paper is not None
    }
    return {column: value for column, value in values.items() if value is not None}


def _as_printed(table: Comparison, value: float | None) -> str:
    if value is None:
        return _DASH
    usual = f"{value:.{paper_table(table.paper).decimals}f}"
    # Single entries have more digits.
    return usual if float(usual) == value else str(value)


def _differences(
    table: Comparison, found: dict[str, list[Result]], printed: dict[str, float]
) -> Iterator[str]:
    for column in table.columns:
        ours, theirs = _score(found.get(column, []), _group(column)), printed.get(column)
        yield "" if ours is None or theirs is None else f"{ours.mean - theirs:+.2f}"

"""What the page of results says about the tables that choices are made by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from protail._messages import counted
from protail.bench._page_tables import MISSING, header, line
from protail.bench.cells import Cells
from protail.bench.paper import paper_value
from protail.bench.rows import Row
from protail.bench.summaries import Summary, ranked_rows, summarize
from protail.bench.tables import CHOICES, TABLES, Table
from protail.bench.tuning import stage_1_of
from protail.bench.wanted import SIZES
from protail.data.sets import long_tailed_counts
from protail.recipes._aside_data import aside_counts

_TITLE = "## The best setting of the prototype classifier, on held-out training images"
_STRONG_TITLE = "## The strongest prototypes, on training images that the draw leaves"
_TAU_TITLE = "## The tau of normalised weights, on held-out training images"
_COMBINED_TITLE = "## Prototypes on other methods, on held-out training images"
_MAX_TITLE = "## The decay of weights under a limit, on held-out training images"
# Rows that are shown; the cells have the others.
_BEST_SHOWN = 10
# Classifiers, by the first words of their labels.
_KINDS = ("softmax", "post hoc", "PC")
_Ranked = list[tuple[Row, Summary]]


def choices_section(cells: Cells) -> str:
    """Write what was tried on held-out training images, and what became of the best."""
    taus, decays = (
        [line for on in ("", "-cifar10") for line in _tried(CHOICES[name + on], cells)]
        for name in ("tuning-tau", "tuning-max")
    )
    combined = [
        line
        for name in ("tuning-ride", "tuning-paco")
        for line in _tried(CHOICES[name], cells, _BEST_SHOWN)
    ]
    strong = [
        line
        for name, table in CHOICES.items()
        if name.startswith("strong-")
        for line in _strong(table, cells)
    ]
    sections = (
        (_TITLE, _best_setting(cells)),
        (_TAU_TITLE, taus),
        (_MAX_TITLE, decays),
        (_COMBINED_TITLE, combined),
        (_STRONG_TITLE, strong),
    )
    return "\n".join("\n".join([title, "", *lines]) for title, lines in sections if lines)


def _best_setting(cells: Cells) -> list[str]:
    first, second = (CHOICES[name] for name in ("tuning-stage-1", "tuning-stage-2"))
    [backbone] = first.backbones
    lines: list[str] = []
    ranked = ranked_rows(first, backbone, cells)
    if ranked:
        shown = _best_of_each_stage_1(ranked)
        lines += _choice(first, backbone, f"{_run(first, ranked)} Each stage 1 at its best:", shown)
    ranked = ranked_rows(second, backbone, cells)
    if ranked:
        shown = ranked[:_BEST_SHOWN]
        lines += _choice(second, backbone, f"{_run(second, ranked)} The best of them:", shown)
        lines += [_outcome(ranked[0][0], backbone, cells), ""]
    return lines


def _tried(table: Table, cells: Cells, most: int | None = None) -> list[str]:
    """List what was tried, the best first; only so many of them if it is too much."""
    [backbone] = table.backbones
    ranked = ranked_rows(table, backbone, cells)
    if not ranked:
        return []
    said = _run(table, ranked) + (" The best of them:" if most else "")
    return [*_choice(table, backbone, said, ranked[:most])]


def _strong(table: Table, cells: Cells) -> list[str]:
    """Show each stage 1 with its softmax, and with other classifiers at their best."""
    [backbone] = table.backbones
    ranked = ranked_rows(table, backbone, cells)
    if not ranked:
        return []
    first = stage_1_of(table.rows[0])  # the others have the same classifiers
    n_tried = Counter(_classifier(row)[0] for row in table.rows if stage_1_of(row) == first)
    tried = " and ".join(f"{n_tried[kind]} of {kind}" for kind in _KINDS[1:])
    said = (
        f"{_run(table, ranked)} Each stage 1, with the best of every kind of classifier; the best "
        f"of many is high by chance alone, and there are {tried}; nor does one seed tell how far "
        "trainings of the same stage 1 differ:"
    )
    lines = [*_about(table, backbone, said), *header("stage 1", *_KINDS, "which PC")]
    best: dict[str, dict[str, tuple[str, Summary]]] = {}
    for row, score in ranked:
        kind, setting = _classifier(row)
        best.setdefault(stage_1_of(row), {}).setdefault(kind, (setting, score))
    for name, kinds in best.items():
        scores = [f"{kinds[kind][1].mean:.2f}" if kind in kinds else MISSING for kind in _KINDS]
        lines.append(line([name, *scores, kinds["PC"][0] if "PC" in kinds else ""]))
    return [*lines, ""]


def _classifier(row: Row) -> tuple[str, str]:
    """Give the kind of a row's classifier, and how it is set."""
    kind, _, setting = row.label.removeprefix(f"{stage_1_of(row)} / ").partition(", ")
    return kind, setting


def _run(table: Table, ranked: _Ranked) -> str:
    return f"{len(ranked)} of {len(table.rows)} settings have been run."


def _about(table: Table, backbone: str, said: str) -> Iterator[str]:
    yield from (f"### {table.title} ({backbone})", "")
    judged_on, doubt = _judged_aside(table) if table.aside_from else _judged_held_out(table)
    yield (
        f"Mean accuracy of the classes, mirrored, on {judged_on}, which neither stage has seen; no "
        f"test image was seen either. {counted(len(table.seeds), _one_of(table))}. Which values "
        "were tried was informed by earlier results on test images; the choice among them was not. "
        f"{doubt} {said}"
    )
    yield ""


def _judged_held_out(table: Table) -> tuple[str, str]:
    """Say which images a table is judged on, and how sure it is."""
    return f"{100 * table.held_out:g} % of each class's training images", (
        "With so few held-out images of rare classes, differences below about a point are noise."
    )


def _judged_aside(table: Table) -> tuple[str, str]:
    """Say the same where a wider draw has the images."""
    n_max, n_classes = SIZES[table.draw.dataset]
    ratios = (table.aside_from, table.draw.imbalance)
    _, n = aside_counts(*(long_tailed_counts(n_max, n_classes, ratio) for ratio in ratios))
    # An accuracy of one half has the largest error.
    error = 50 / (n * n_classes) ** 0.5
    return (
        f"training images that imbalance {table.aside_from:g} keeps and "
        f"{table.draw.imbalance:g} leaves, {n} of every class and the same for all seeds (the "
        "largest classes leave fewer: there, as many as lack are not learned from)"
    ), (
        f"By chance of the images alone, a mean has a standard error of about {error:.1f} points, "
        "and so, roughly, has the difference of two trainings; that of two classifiers on the same "
        "features is smaller."
    )


def _one_of(table: Table) -> str:
    """Name what a table has one of for each seed."""
    return "seed" if table.aside_from else "split"


def _choice(table: Table, backbone: str, said: str, shown: _Ranked) -> Iterator[str]:
    yield from _about(table, backbone, said)
    # How hard a split is differs more than settings do: each stands for itself.
    splits = [f"{_one_of(table)} {seed}" for seed in table.seeds]
    yield from header("setting", *(["mean"] if len(splits) > 1 else []), *splits)
    for row, score in shown:
        values = [f"{value:.2f}" for value in score.values]
        yield line([row.label, *([f"{score.mean:.2f}"] if len(splits) > 1 else []), *values])
    yield ""


def _best_of_each_stage_1(ranked: _Ranked) -> _Ranked:
    best: dict[str, tuple[Row, Summary]] = {}
    for row, score in ranked:
        best.setdefault(stage_1_of(row), (row, score))
    return list(best.values())


def _outcome(best: Row, backbone: str, cells: Cells) -> str:
    """Say what the best setting gives on the test images, beside the paper's best."""
    table = TABLES["table1"]
    key = table.cell(best, backbone, 0).key
    same = [row for row in table.rows if table.cell(row, backbone, 0).key == key]
    known = f", which is *{same[0].label}* of Table 1 as it stands" if same else ""
    paper = paper_value(3, "WD", "PC (Ours)")
    score = summarize(table, best, backbone, cells, "mirrored").get("all")
    start = f"The best of them, *{best.label}*{known},"
    if score is None or paper is None:
        return f"{start} has not been run on the test images."
    missed = " The search does not close the gap." if score.mean < paper else ""
    return f"{start} gives {score} on the test images, mirrored; the paper's is {paper}.{missed}"

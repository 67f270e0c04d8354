"""The page of results: tables in Markdown, made from result files, never written by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from protail.data.images import long_tailed_counts
from protail.experiments import validation_counts
from protail.utils import counted
from protail_paper.page_methods import MISSING, MIXED, comparisons_section, header, line, numbers
from protail_paper.paper import GROUPS, TEXT, mean_of_groups, paper_table, paper_value, shown_all
from protail_paper.results import Results, Summary, summarize
from protail_paper.tables import BACKBONES, QUESTIONS, TABLES, Row, Table, rows_on
from protail_paper.tuning import CHOICES, ranked_rows, stage_1_of
from protail_paper.wanted import SIZES

# Rows of a table of choices that are shown; the results have the others.
_BEST_SHOWN = 10
# Classifiers, by the first words of their labels.
_KINDS = ("softmax", "post hoc", "PC")
_DIRTY = "-dirty"


def results_page(results: Results) -> str:
    """Write the page, with links to the figures and searches that lie beside the folder of results.

    Examples
    --------
    >>> import tempfile
    >>> from protail_paper.results import Results
    >>> from protail_paper.page import results_page
    >>> page = results_page(Results(tempfile.mkdtemp()))
    >>> page.splitlines()[0], "not run" in page
    ('# Results', True)
    """
    folder = results.folder.parent
    parts = [TEXT["introduction"], f"{_about_results(results)}\n", TEXT["note"]]
    for backbone in BACKBONES:
        parts += [f"## {backbone}\n", *(_section(t, backbone, results) for t in TABLES.values())]
    parts += filter(None, [comparisons_section(results)])
    parts += [_choices_section(results)]
    for title, lines in (("Figures", _figure_lines(folder)), ("Searches", _search_lines(folder))):
        found = list(lines)
        if found:
            parts += [f"## {title}\n", "\n".join(found) + "\n"]
    return "\n".join(parts).rstrip("\n") + "\n"


def _section(table: Table, backbone: str, results: Results) -> str:
    lines = [f"### {table.title} ({backbone})", ""]
    if table.paper is not None:
        lines[0] = f"### Table {table.paper} of the paper: {table.title} ({backbone})"
        lines += [
            *_beside_paper(table, table.paper, backbone, results),
            "",
            *header("plain", *GROUPS),
        ]
        for row in table.rows:
            found = results.of(table.experiments(backbone, [row]))
            lines.append(line([row.label, *numbers(found, len(table.seeds), "plain")]))
        return "\n".join([*lines, "", *_mixed(table, table.rows, backbone, results)])
    for question in QUESTIONS:
        rows = rows_on(backbone, question.rows)
        if any(experiment in results for experiment in table.experiments(backbone, rows)):
            lines += [f"#### {question.text}", "", *header("plain", *GROUPS, "all, mirrored")]
            for row in rows:
                found = results.of(table.experiments(backbone, [row]))
                plain = numbers(found, len(table.seeds), "plain")
                lines.append(line([row.label, *plain, *numbers(found, 1, groups=["all"])]))
            lines += ["", *_mixed(table, rows, backbone, results)]
    return "\n".join(lines)


def _beside_paper(table: Table, number: int, backbone: str, results: Results) -> Iterator[str]:
    yield from header("mirrored", *GROUPS, "ours - paper")
    for row in table.rows:
        found = results.of(table.experiments(backbone, [row]))
        yield line([row.label, *numbers(found, len(table.seeds)), ""])
        if row.paper is not None:
            scores, difference = summarize(found, "mirrored"), ""
            if scores:
                difference = f"{scores['all'].mean - mean_of_groups(number, row.paper):+.2f}"
            values = paper_table(number).row(row.paper)
            printed = [f"{values[group]:.2f}" for group in GROUPS if group != "all"]
            yield line(["*paper*", *printed, shown_all(number, row.paper), difference])


def _mixed(table: Table, rows: Iterable[Row], backbone: str, results: Results) -> list[str]:
    return [MIXED, ""] if results.are_mixed(table.experiments(backbone, rows)) else []


def _choices_section(results: Results) -> str:
    """Write what was tried on training images held back, and what became of the best."""
    first, second = (_Choice(name, results) for name in ("tuning-stage-1", "tuning-stage-2"))
    best = [*first.each_stage_1(), *second.listed(_BEST_SHOWN)]
    if second.ranked:
        best += [_outcome(second.ranked[0][0], second.backbone, results), ""]
    held_out = "on held-out training images"
    sections = {
        f"The best setting of the prototype classifier, {held_out}": best,
        f"The tau of normalised weights, {held_out}": [
            *_Choice("tuning-tau", results).listed(),
            *_Choice("tuning-tau-cifar10", results).listed(),
        ],
        f"The decay of weights under a limit, {held_out}": [
            *_Choice("tuning-max", results).listed(),
            *_Choice("tuning-max-cifar10", results).listed(),
        ],
        f"Prototypes on other methods, {held_out}": [
            *_Choice("tuning-ride", results).listed(_BEST_SHOWN),
            *_Choice("tuning-paco", results).listed(_BEST_SHOWN),
        ],
        "The strongest prototypes, on training images that the subset leaves": [
            text
            for name in CHOICES
            if name.startswith("strong-")
            for text in _Choice(name, results).beside_rivals()
        ],
    }
    return "\n".join(
        "\n".join([f"## {title}", "", *lines]) for title, lines in sections.items() if lines
    )


class _Choice:
    """A table that a choice was made by, as lines of Markdown: none where nothing has been run."""

    def __init__(self, name: str, results: Results) -> None:
        self.table = CHOICES[name]
        [self.backbone] = self.table.backbones
        self.ranked = ranked_rows(self.table, results)
        # What a table has one of for each seed.
        self._one = "seed" if self.table.aside_from else "split"

    def listed(self, most: int | None = None) -> list[str]:
        """List what was tried, the best first; only so many of them if it is too much."""
        return self._list("The best of them:" if most else "", self.ranked[:most])

    def each_stage_1(self) -> list[str]:
        """List what did best on each stage 1."""
        best: dict[str, tuple[Row, Summary]] = {}
        for row, score in self.ranked:
            best.setdefault(stage_1_of(row), (row, score))
        return self._list("Each stage 1 at its best:", best.values())

    def beside_rivals(self) -> list[str]:
        """Show each stage 1 with its softmax, and with other classifiers at their best."""
        if not self.ranked:
            return []
        first = stage_1_of(self.table.rows[0])  # the others have the same classifiers
        rows = [row for row in self.table.rows if stage_1_of(row) == first]
        n_tried = Counter(_classifier(row)[0] for row in rows)
        tried = " and ".join(f"{n_tried[kind]} of {kind}" for kind in _KINDS[1:])
        lines = self._about(
            "Each stage 1, with the best of every kind of classifier; the best of many is high by "
            f"chance alone, and there are {tried}; nor does one seed tell how far trainings of the "
            "same stage 1 differ:"
        )
        lines += header("stage 1", *_KINDS, "which PC")
        best: dict[str, dict[str, tuple[str, Summary]]] = {}
        for row, score in self.ranked:
            kind, setting = _classifier(row)
            best.setdefault(stage_1_of(row), {}).setdefault(kind, (setting, score))
        for name, kinds in best.items():
            scores = [f"{kinds[kind][1].mean:.2f}" if kind in kinds else MISSING for kind in _KINDS]
            lines.append(line([name, *scores, kinds["PC"][0] if "PC" in kinds else ""]))
        return [*lines, ""]

    def _list(self, which: str, shown: Iterable[tuple[Row, Summary]]) -> list[str]:
        if not self.ranked:
            return []
        # How hard a split is differs more than settings do: each is shown by itself.
        splits = [f"{self._one} {seed}" for seed in self.table.seeds]
        several = len(splits) > 1
        lines = self._about(which)
        lines += header("setting", *(["mean"] if several else []), *splits)
        for row, score in shown:
            values = [*([score.mean] if several else []), *score.values]
            lines.append(line([row.label, *(f"{value:.2f}" for value in values)]))
        return [*lines, ""]

    def _about(self, which: str) -> list[str]:
        table = self.table
        where, doubt = _aside(table) if table.aside_from else _held_out(table)
        said = (
            f"Mean accuracy of the classes, mirrored, on {where}, which neither stage has seen; no "
            f"test image was seen either. {counted(len(table.seeds), self._one)}. Which values "
            "were tried was informed by earlier results on test images; the choice among them was "
            f"not. {doubt} {len(self.ranked)} of {len(table.rows)} settings have been run. {which}"
        )
        return [f"### {table.title} ({self.backbone})", "", said.rstrip(), ""]


def _classifier(row: Row) -> tuple[str, str]:
    """Give the kind of a row's classifier, and how it is set."""
    kind, _, setting = row.label.removeprefix(f"{stage_1_of(row)} / ").partition(", ")
    return kind, setting


def _held_out(table: Table) -> tuple[str, str]:
    """Say which images a table is evaluated on, and how sure it is."""
    return f"{100 * table.held_out:g} % of each class's training images", (
        "With so few held-out images of rare classes, differences below about a point are noise."
    )


def _aside(table: Table) -> tuple[str, str]:
    """Say the same where a wider subset has the images."""
    n_max, n_classes = SIZES[table.subset.dataset]
    ratios = (table.aside_from, table.subset.imbalance)
    _, n = validation_counts(*(long_tailed_counts(n_max, n_classes, ratio) for ratio in ratios))
    # An accuracy of one half has the largest error.
    error = 50 / (n * n_classes) ** 0.5
    return (
        f"training images that imbalance {table.aside_from:g} keeps and "
        f"{table.subset.imbalance:g} leaves, {n} of every class and the same for all seeds (the "
        "largest classes leave fewer: there, as many as lack are not learned from)"
    ), (
        f"By chance of the images alone, a mean has a standard error of about {error:.1f} points, "
        "and so, roughly, has the difference of two trainings; that of two classifiers on the same "
        "features is smaller."
    )


def _outcome(best: Row, backbone: str, results: Results) -> str:
    """Say what the best setting gives on the test images, beside the paper's best."""
    table = TABLES["table1"]
    key = table.experiment(best, backbone, 0).key
    same = [row for row in table.rows if table.experiment(row, backbone, 0).key == key]
    known = f", which is *{same[0].label}* of Table 1 as it stands" if same else ""
    paper = paper_value(3, "WD", "PC (Ours)")
    score = summarize(results.of(table.experiments(backbone, [best])), "mirrored").get("all")
    start = f"The best of them, *{best.label}*{known},"
    if score is None or paper is None:
        return f"{start} has not been run on the test images."
    missed = " The search does not close the gap." if score.mean < paper else ""
    return f"{start} gives {score} on the test images, mirrored; the paper's is {paper}.{missed}"


def _short_commit(commit: str) -> str:
    """Shorten a commit; that the code had been changed after it stays to be seen."""
    return commit[:7] + (_DIRTY if commit.endswith(_DIRTY) else "")


def _about_results(results: Results) -> str:
    """Say how many results there are, and what ran them when; those of miniatures do not count."""
    records = [result.record for result in results if not result.record["data"].get("miniature")]
    abouts = [record.get("about", {}) for record in records]
    parts = {
        "hardware": _tally(abouts, lambda about: " and ".join(about["gpus"]) or about["cpu"]),
        "code": _tally(
            abouts, lambda about: f"protail {about['protail']} ({_short_commit(about['commit'])})"
        ),
        "software": _tally(
            abouts, lambda about: f"torch {about['torch']}, Python {about['python']}"
        ),
        "days": _tally(abouts, lambda about: str(about["started"])[:10]),
    }
    lines = [f"**{counted(len(abouts), 'result')}.**"]
    lines += [f"{part.capitalize()}: {said}." for part, said in parts.items() if said]
    dirty = sum(str(about.get("commit", "")).endswith(_DIRTY) for about in abouts)
    if dirty:
        lines.append(
            f"{counted(dirty, 'result was', 'results were')} run by code with changes that had not "
            f"been committed ({_DIRTY})."
        )
    return " ".join(lines)


def _tally(abouts: Iterable[Mapping[str, Any]], what: Callable[[Any], str]) -> str:
    """Count what results say, the most frequent first; results that say nothing are left out."""
    found: Counter[str] = Counter()
    for about in abouts:
        try:
            found[what(about)] += 1
        except (KeyError, TypeError):
            continue
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{name} × {n}" for name, n in found.most_common())


def _figure_lines(folder: Path) -> Iterator[str]:
    """Show the figures of a folder of results."""
    for file in sorted((folder / "figures").glob("*.png")):
        number, _, of = file.stem.partition("-")
        title = TEXT["figures"].get(number, number) + (f" ({of})" if of else "")
        yield f"**{title}**\n\n![{title}](figures/{file.name})\n"


def _search_lines(folder: Path) -> Iterator[str]:
    """List the searches of a folder of results, with what each of them chose."""
    for file in sorted((folder / "search").glob("*.json")):
        said = _search_in_words(json.loads(file.read_text(encoding="utf-8")))
        picture = file.with_suffix(".png")
        drawn = f" ([picture](search/{picture.name}))" if picture.exists() else ""
        yield f"- [{file.stem}](search/{file.name}){drawn}: {said}"


def _search_in_words(search: Mapping[str, Any]) -> str:
    best = search["best"]
    tried = ", ".join(f"{key} in {values}" for key, values in search["over"].items())
    chosen = ", ".join(f"{key} = {_short(value)}" for key, value in best["params"].items())
    return (
        f"{tried}; {counted(len(search['trials']), 'trial')}; chosen {chosen} "
        f"({search['score']} accuracy {100 * best['score']:.2f} on "
        f"{100 * search['held_out']:g} % of the training images, held out)."
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

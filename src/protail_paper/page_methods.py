"""Other methods on the page of results: Tables 3, 4, 9, 5 and 6, and what PC gains on each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from statistics import mean

from protail_paper.comparisons import COMPARISONS, OTHER_SETTINGS, Comparison, Entry
from protail_paper.groups import wanted_experiments
from protail_paper.large import LARGE
from protail_paper.paired import PairedDifference, group_images, paired_difference
from protail_paper.paper import GROUPS, TEXT, paper_table
from protail_paper.results import Result, Results, summarize
from protail_paper.tables import BACKBONES, TABLES, TWO_SETS
from protail_paper.wanted import Experiment

MISSING, DIVERGED = "not run", "diverged"
MIXED = (
    "**Mixed:** rows of this table use different trainings of one seed, so that differences "
    "between them hold the difference of the trainings too."
)
_DASH = "-"
_TITLE = "## Other methods"
_PAIRED_TITLE = "### What PC gains over each classifier on identical features"
_VIEW = "mirrored"
_WHERE = {"all": "Over all classes", "few": "On *few*"}
_VERDICTS = {
    "ahead": "is ahead of",
    "behind": "is behind",
    "cannot be told apart": "cannot be told apart from",
}


def header(*names: str) -> Iterable[str]:
    """Write the head of a table: a column of words, then columns of numbers."""
    yield line(names)
    yield "|---|" + "---:|" * (len(names) - 1)


def line(entries: Iterable[str]) -> str:
    """Write a line of a table."""
    return "| " + " | ".join(entries) + " |"


def numbers(
    found: list[Result], n_seeds: int, view: str = "mirrored", groups: Iterable[str] = GROUPS
) -> list[str]:
    """Write what results of one row come to, group by group."""
    scores = summarize(found, view)
    missing = DIVERGED if any(result.diverged for result in found) else MISSING
    if not scores:
        return [missing for _ in groups]
    n = scores["all"].n
    short = f" ({n} of {n_seeds} seeds)" if n < n_seeds else ""
    # Of small imbalances no class is in *few*.
    return [
        f"{scores[group]}{short if group == 'all' else ''}" if group in scores else _DASH
        for group in groups
    ]


def comparisons_section(results: Results) -> str:
    """Write the tables that have a result of their own, which no table above them has."""
    above = {experiment.key for experiment in wanted_experiments(TABLES, BACKBONES)}
    shown = [
        table
        for table in (COMPARISONS | LARGE).values()
        if any(
            experiment.key not in above and experiment in results
            for experiment in _all_experiments(table)
        )
    ]
    if not shown:
        return ""
    parts = [*(_section(table, results) for table in shown), _paired_section(results)]
    return "\n".join([_TITLE, "", TEXT["methods"], *filter(None, parts)])


def _all_experiments(table: Comparison) -> list[Experiment]:
    return [
        experiment for backbone in table.backbones for experiment in table.experiments(backbone)
    ]


def _section(table: Comparison, results: Results) -> str:
    lines = [f"### Table {table.paper} of the paper: {table.title}", ""]
    lines += [*_beside_paper(table, results), "", *_groups(table, results)]
    mixed = results.are_mixed(_all_experiments(table))
    return "\n".join([*lines, *([MIXED, ""] if mixed else [])])


def _beside_paper(table: Comparison, results: Results) -> Iterator[str]:
    """Write each row, the paper's and their difference; a column that a row lacks is empty."""
    paper = paper_table(table.paper)
    yield from header("mirrored", "backbone", *table.columns, "GFLOPs", "GPU s")
    rows: dict[str, dict[str, Entry]] = {}
    for entry in table.entries:
        rows.setdefault(entry.row, {})[entry.column] = entry
    for row, entries in rows.items():
        found = {column: _found(table, entry, results) for column, entry in entries.items()}
        printed = {
            column: paper.value(entry.paper, column)
            for column, entry in entries.items()
            if entry.paper is not None
        }
        ours, theirs, differences = ([""] * len(table.columns) for _ in range(3))
        for place, column in enumerate(table.columns):
            if column in entries:
                group, value = column if column in GROUPS else "all", printed.get(column)
                [ours[place]] = numbers(found[column], len(table.seeds), groups=[group])
                theirs[place] = _as_printed(value, paper.decimals)
                score = summarize(found[column], "mirrored").get(group)
                if score is not None and value is not None:
                    differences[place] = f"{score.mean - value:+.2f}"
        backbone = table.backbone_of(next(iter(entries.values())))
        yield line([row, backbone, *ours, *_costs(found.values())])
        if any(value is not None for value in printed.values()):
            yield line(["*paper*", "", *theirs, "", ""])
        if any(differences):
            yield line(["*ours - paper*", "", *differences, "", ""])


def _groups(table: Comparison, results: Results) -> Iterator[str]:
    """Show the groups of classes of all that has been run, where they are no columns already."""
    if set(GROUPS) <= set(table.columns):
        return
    parts: dict[str, list[str]] = {}
    for entry in table.entries:
        if found := _found(table, entry, results):
            is_ratio = entry.column.isdecimal()
            part = f"mirrored, imbalance {entry.column}" if is_ratio else "mirrored"
            row = line([_label(entry), *numbers(found, len(table.seeds))])
            parts.setdefault(part, []).append(row)
    for part, lines in parts.items():
        yield from (*header(part, *GROUPS), *lines, "")


def _label(entry: Entry) -> str:
    """Name an entry where its column is not seen: as its row, unless columns are classifiers."""
    if entry.column.isdecimal() or entry.column in GROUPS:
        return entry.row
    row = entry.row.removesuffix(OTHER_SETTINGS)
    return ", ".join(filter(None, (f"{row} / {entry.column}", entry.variant)))


def _found(table: Comparison, entry: Entry, results: Results) -> list[Result]:
    return results.of(entry.experiment(seed) for seed in table.seeds)


def _costs(columns: Iterable[list[Result]]) -> list[str]:
    results = next((found for found in columns if found), [])
    flops = [each.record["cost"]["gflops"] for each in results if "cost" in each.record]
    seconds = [took for each in results if (took := each.gpu_seconds) is not None]
    return [f"{mean(flops):.3f}" if flops else "", f"{mean(seconds):.0f}" if seconds else ""]


def _as_printed(value: float | None, decimals: int) -> str:
    if value is None:
        return _DASH
    usual = f"{value:.{decimals}f}"
    # Single entries have more digits.
    return usual if float(usual) == value else str(value)


@dataclass(frozen=True)
class _Classifier:
    """A classifier on a representation: its experiments by seed, and all that it is called."""

    experiments: dict[int, Experiment]
    names: list[str] = field(default_factory=list)

    @property
    def first(self) -> Experiment:
        return next(iter(self.experiments.values()))

    @property
    def name(self) -> str:
        alone = " alone" if self.first.recipe.classifier is None else ""
        return " = ".join(dict.fromkeys(self.names)) + alone

    @property
    def learns_prototypes(self) -> bool:
        stage = self.first.recipe.classifier
        return stage is not None and "prototype" in stage.head and stage.epochs > 0


@dataclass(frozen=True)
class _Pair:
    """Two classifiers, and their results on one backbone: those of PC first, one each a seed."""

    pc: str
    other: str
    results: tuple[tuple[Result, Result], ...]

    @property
    def diverged(self) -> bool:
        return any(result.diverged for both in self.results for result in both)

    @cached_property
    def differences(self) -> dict[str, PairedDifference]:
        """PC minus the other, by group: those that have classes, and test images we know."""
        if self.diverged:
            return {}
        pc, other = zip(*self.results, strict=True)
        found = {"all": paired_difference(other, pc, view=_VIEW)}
        few = group_images([*pc, *other], "few", _VIEW)
        if few is not None:
            found["few"] = paired_difference(other, pc, view=_VIEW, images=few)
        return found


def _paired_section(results: Results) -> str:
    """Write the differences of Tables 3, 4 and 9, a part for each representation and subset."""
    fractions = [(each, list(_pairs(each, results))) for each in _by_representation()]
    # Where most is compared stands first.
    ranked = sorted(fractions, key=lambda each: len(each[1]), reverse=True)
    parts = [_part(classifiers[0].first, pairs) for classifiers, pairs in ranked if pairs]
    return "\n".join([_PAIRED_TITLE, "", TEXT["paired"], *parts]) if parts else ""


def _by_representation() -> list[list[_Classifier]]:
    """List the classifiers of the tables by the representation they use, each once."""
    fractions: dict[str, dict[str, _Classifier]] = {}
    # Rows stand in the order of the longest table that has them.
    for table in sorted(COMPARISONS.values(), key=lambda each: len(each.entries), reverse=True):
        for entry in table.entries:
            row = _Classifier({seed: entry.experiment(seed) for seed in table.seeds})
            fraction = fractions.setdefault(row.first.representation_key, {})
            # By its recipe, whatever it is on.
            variant = f" ({entry.variant})" if entry.variant else ""
            name = f"`{entry.recipe.rpartition('/')[2]}`{variant}"
            fraction.setdefault(row.first.key, row).names.append(name)
    return [list(rows.values()) for rows in fractions.values()]


def _pairs(classifiers: list[_Classifier], results: Results) -> Iterator[_Pair]:
    for pc, other in product(classifiers, repeat=2):
        if pc.learns_prototypes and not other.learns_prototypes:
            seeds = sorted(pc.experiments.keys() & other.experiments.keys())
            both = (results.of([pc.experiments[seed], other.experiments[seed]]) for seed in seeds)
            compared = tuple((each[0], each[1]) for each in both if _can_be_compared(each))
            if compared:
                yield _Pair(pc.name, other.name, compared)


def _can_be_compared(results: list[Result]) -> bool:
    """Say whether two are there and of the same weights; those of earlier versions do not tell."""
    weights = {result.record.get("backbone") for result in results}
    known = all(result.diverged or "right" in result.record for result in results)
    return known and len(results) == 2 and len(weights) == 1 and None not in weights


def _part(first: Experiment, pairs: list[_Pair]) -> str:
    backbone = first.recipe.phases["representation"].backbone
    place = f"{first.subset.dataset}, imbalance {first.subset.imbalance:g}"
    if first.subset.selection == "author":
        place += f", {TWO_SETS}"
    lines = [f"#### On `{first.stage_1}` ({backbone}), {place}", ""]
    for pc in dict.fromkeys(pair.pc for pair in pairs):
        lines += _table([pair for pair in pairs if pair.pc == pc])
    return "\n".join(lines)


def _table(pairs: list[_Pair]) -> Iterator[str]:
    """Sum up where a classifier stands, then list each comparison."""
    yield " ".join(filter(None, (_summary(group, pairs) for group in _WHERE)))
    yield ""
    yield from header(f"{pairs[0].pc} minus", "seeds", *_WHERE, "in words")
    for pair in pairs:
        missing = DIVERGED if pair.diverged else _DASH
        intervals = [_interval(pair.differences.get(group), missing) for group in _WHERE]
        yield line([pair.other, str(len(pair.results)), *intervals, _in_words(pair)])
    yield ""


def _summary(group: str, pairs: list[_Pair]) -> str:
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if group in pair.differences:
            once = " (one seed)" if len(pair.results) == 1 else ""
            found.setdefault(pair.differences[group].verdict, []).append(pair.other + once)
    said = [
        f"{words} {' and '.join(filter(None, [', '.join(others[:-1]), others[-1]]))}"
        for verdict, words in _VERDICTS.items()
        if (others := found.get(verdict))
    ]
    return f"{_WHERE[group]} {pairs[0].pc} {'; it '.join(said)}." if said else ""


def _interval(found: PairedDifference | None, missing: str) -> str:
    if found is None:
        return missing
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.difference:+.2f} ({low:+.2f} to {high:+.2f})"


def _in_words(pair: _Pair) -> str:
    if pair.diverged:
        return ""
    verdicts = (found.verdict for found in pair.differences.values())
    over_all, *few = (f"is {each}" if each in ("ahead", "behind") else each for each in verdicts)
    words = f"PC {over_all}"
    if few:
        words += ", on *few* too" if few == [over_all] else f", on *few* it {few[0]}"
    return words + (" (one training)." if len(pair.results) == 1 else ".")

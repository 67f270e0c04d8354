"""What the page of results says about classifiers on identical features: PC minus each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from protail.bench._page_tables import DIVERGED, header, line
from protail.bench.cells import Cells, Result
from protail.bench.comparisons import COMPARISONS, Entry
from protail.bench.paired import PairedDifference, group_images, paired_difference
from protail.bench.rows import TWO_SETS
from protail.bench.wanted import Cell

_TITLE = "### What PC gains over each classifier on identical features"
_NOTE = """\
Learned prototypes minus another classifier, by the names of their recipes (*alone*: stage 1 with
the head it was trained with; in brackets what is set otherwise), on the very same frozen backbone:
cells of a seed are compared where the hashes of its weights are equal. In points of accuracy on the
test images, mirrored. In brackets an interval of 95 % over trainings and over test images: half its
width is the root of the sum of the squares of two half-widths, that of the t interval of the seeds'
differences (of three seeds: 2 degrees of freedom, 4.30 standard errors), and that of the t interval
of the images' differences, each its mean over seeds; rather too wide than too narrow. Of one seed
it is over test images alone, and about that one training. It is about other seeds and other test
images of the same classes: not about other draws of training images, nor about other classes.
The tau of `tau-norm` and the rate and decay of `wd-max` were chosen on WD, CIFAR-100-LT at 100 and
one set of images, but where it says *chosen on CIFAR-10-LT*: elsewhere others may be better, and
there they are. Prototypes learn from images with AutoAugment and Cutout, and so does
`ncm-augmented`; the other classifiers on WD do only where it says *images as PC*. *Ahead* and
*behind*: the interval excludes 0. Each interval stands for itself: where nothing differs, about one
in twenty says that something does.
"""
_VIEW = "mirrored"
_GROUPS = ("all", "few")
_WHERE = {"all": "Over all classes", "few": "On *few*"}
_ALONE = {
    "ahead": "is ahead",
    "behind": "is behind",
    "cannot be told apart": "cannot be told apart",
}
_STANDS = {
    "ahead": "is ahead of",
    "behind": "is behind",
    "cannot be told apart": "cannot be told apart from",
}
_DASH = "-"


@dataclass(frozen=True)
class _Row:
    """A classifier on a representation: its cells by seed, and all that it is called."""

    cells: dict[int, Cell]
    names: list[str] = field(default_factory=list)

    @property
    def first(self) -> Cell:
        return next(iter(self.cells.values()))

    @property
    def name(self) -> str:
        alone = " alone" if self.first.recipe.classifier is None else ""
        return " = ".join(dict.fromkeys(self.names)) + alone

    @property
    def learns_prototypes(self) -> bool:
        stage = self.first.recipe.classifier
        return stage is not None and "prototype" in stage.head and stage.epochs > 0


def paired_section(cells: Cells) -> str:
    """Write the differences of Tables 3, 4 and 9, a part for each representation and draw."""
    shares = [(share, list(_pairs(share, cells))) for share in _shared_representations()]
    # Where most is compared stands first.
    ranked = sorted(shares, key=lambda each: len(each[1]), reverse=True)
    parts = [_part(share, pairs) for share, pairs in ranked if pairs]
    return "\n".join([_TITLE, "", _NOTE, *parts]) if parts else ""


def _shared_representations() -> list[list[_Row]]:
    """List the rows of the tables by the representation they stand on, each once."""
    shares: dict[str, dict[str, _Row]] = {}
    # Rows stand in the order of the longest table that has them.
    for table in sorted(COMPARISONS.values(), key=lambda each: len(each.entries), reverse=True):
        for entry in table.entries:
            row = _Row({seed: entry.cell(seed) for seed in table.seeds})
            share = shares.setdefault(row.first.representation_key, {})
            share.setdefault(row.first.key, row).names.append(_name(entry))
    return [list(rows.values()) for rows in shares.values()]


def _name(entry: Entry) -> str:
    """Name a classifier by its recipe, whatever it stands on."""
    variant = f" ({entry.variant})" if entry.variant else ""
    return f"`{entry.recipe.rpartition('/')[2]}`{variant}"


@dataclass(frozen=True)
class _Pair:
    """Two classifiers, and their cells on one backbone: those of PC first, one each a seed."""

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


def _pairs(share: list[_Row], cells: Cells) -> Iterator[_Pair]:
    for pc in share:
        for other in share:
            if pc.learns_prototypes and not other.learns_prototypes:
                results = tuple(_on_one_backbone(pc, other, cells))
                if results:
                    yield _Pair(pc.name, other.name, results)


def _on_one_backbone(pc: _Row, other: _Row, cells: Cells) -> Iterator[tuple[Result, Result]]:
    for seed in sorted(pc.cells.keys() & other.cells.keys()):
        ours, theirs = cells.get(pc.cells[seed]), cells.get(other.cells[seed])
        if ours is not None and theirs is not None and _can_be_compared(ours, theirs):
            yield ours, theirs


def _can_be_compared(ours: Result, theirs: Result) -> bool:
    """Say whether cells stand on the same weights; those of earlier versions do not tell."""
    weights = [result.record.get("backbone") for result in (ours, theirs)]
    known = all(result.diverged or "right" in result.record for result in (ours, theirs))
    return known and weights[0] is not None and weights[0] == weights[1]


def _part(share: list[_Row], pairs: list[_Pair]) -> str:
    first = share[0].first
    backbone = first.recipe.phases["representation"].backbone
    place = f"{first.draw.dataset}, imbalance {first.draw.imbalance:g}"
    if first.draw.selection == "author":
        place += f", {TWO_SETS}"
    lines = [f"#### On `{first.stage_1}` ({backbone}), {place}", ""]
    for pc in dict.fromkeys(pair.pc for pair in pairs):
        lines += _table([pair for pair in pairs if pair.pc == pc])
    return "\n".join(lines)


def _table(pairs: list[_Pair]) -> Iterator[str]:
    """Sum up where a classifier stands, then list each comparison."""
    yield " ".join(_summary(group, pairs) for group in _GROUPS if _has(group, pairs))
    yield ""
    yield from header(f"{pairs[0].pc} minus", "seeds", *_GROUPS, "in words")
    for pair in pairs:
        missing = DIVERGED if pair.diverged else _DASH
        numbers = [_number(pair.differences.get(group), missing) for group in _GROUPS]
        yield line([pair.other, str(len(pair.results)), *numbers, _in_words(pair)])
    yield ""


def _has(group: str, pairs: list[_Pair]) -> bool:
    return any(group in pair.differences for pair in pairs)


def _summary(group: str, pairs: list[_Pair]) -> str:
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if group in pair.differences:
            once = " (one seed)" if len(pair.results) == 1 else ""
            found.setdefault(pair.differences[group].verdict, []).append(pair.other + once)
    said = [
        f"{words} {' and '.join(filter(None, [', '.join(others[:-1]), others[-1]]))}"
        for verdict, words in _STANDS.items()
        if (others := found.get(verdict))
    ]
    return f"{_WHERE[group]} {pairs[0].pc} {'; it '.join(said)}."


def _number(found: PairedDifference | None, missing: str) -> str:
    if found is None:
        return missing
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.difference:+.2f} ({low:+.2f} to {high:+.2f})"


def _in_words(pair: _Pair) -> str:
    if pair.diverged:
        return ""
    over_all, *few = (_ALONE[found.verdict] for found in pair.differences.values())
    words = f"PC {over_all}"
    if few:
        words += ", on *few* too" if few == [over_all] else f", on *few* it {few[0]}"
    return words + (" (one training)." if len(pair.results) == 1 else ".")

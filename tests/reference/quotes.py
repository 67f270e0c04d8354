"""Numbers that a page quotes, each with its address, and what the results say they are.

A quote is a number with an address in a comment behind it, as in
``50.61<!-- table1; PC + CDT + LA; all -->``. An address is:

- ``TABLE; ROW; GROUP``: a mean over seeds, of a table or a question of the bench, in per cent.
  ``mirrored`` and ``ResNet-32`` may follow (otherwise plain, ResNet-34). In the place of a group:
  ``balanced`` (the mean of the classes, for tuning), ``seeds`` (how many there are), ``diverged``
  (how many of them did), ``T`` (the median temperature). Seeds that diverged have no accuracy.
- ``table4; ROW; GROUP; at COLUMN``: the same of a table of other methods; ``mirrored`` may follow.
- ``paper1; ROW; GROUP``: the paper's; ``mean`` is the mean of its groups.
- ``figures; KEY; KEY...``: an entry of ``results/figures/figures.json``; ``percent`` may follow.
- two of them with ``minus`` between (a difference, over the seeds that both have), ``above`` (in
  how many seeds the first is above the second), or ``low over`` and ``high over`` (the ends of the
  interval of their difference, where both stand on the same backbones).

``python tests/reference/quotes.py PAGE`` puts the numbers right that are not (docs/paper.md and
README.md have some); the words around them are for you to read again.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from protail.bench import paper_table
from protail.bench.cells import Cells, Result
from protail.bench.comparisons import COMPARISONS
from protail.bench.paired import group_images, paired_difference
from protail.bench.paper import mean_of_groups
from protail.bench.questions import QUESTIONS
from protail.bench.tables import CHOICES, TABLES
from protail.bench.wanted import Cell

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = "not run yet"
QUOTE = re.compile(rf"({NOT_RUN}|[-+]?\d+(?:\.\d+)?)<!-- ([^>]*?) -->")


def corrected(text: str) -> tuple[str, list[str]]:
    """Put every quote of a text right; say which were wrong."""
    wrong = []

    def put_right(found: re.Match[str]) -> str:
        shown, address = found.groups()
        true = _written_like(shown, value_at(address))
        if true != shown:
            wrong.append(f"{shown} should be {true} ({address})")
        return f"{true}<!-- {address} -->"

    return QUOTE.sub(put_right, text), wrong


def unquoted(text: str) -> list[str]:
    """Find decimal numbers that say no address; sections, and settings in `code`, need none."""
    rest = re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`|section \d\.\d", "", text)
    rest = re.sub(r"<!--.*?-->", "", QUOTE.sub("", rest), flags=re.DOTALL)
    return re.findall(r"\d+\.\d+", rest)


def value_at(address: str) -> float | None:
    """Give the number at an address, None where no cell is there."""
    for word in (" minus ", " above ", " low over ", " high over "):
        if word in address:
            one, other = address.split(word)
            return _compared(one, other, word.strip())
    name, *keys = address.split("; ")
    if name == "figures":
        return _from_figures(keys)
    if name.startswith("paper"):
        return _from_paper(int(name.removeprefix("paper")), *keys)
    if keys[1] in ("seeds", "diverged"):
        found = _results(name, *keys)
        return len(found) if keys[1] == "seeds" else sum(result.diverged for result in found)
    of_seeds = _of_seeds(name, *keys)
    return mean(of_seeds) if of_seeds else None


def _compared(one: str, other: str, word: str) -> float | None:
    if word.endswith("over"):
        return _interval(one.split("; "), other.split("; "))[word == "high over"]
    if word == "above":
        pairs = zip(_of_seeds(*one.split("; ")), _of_seeds(*other.split("; ")), strict=True)
        return sum(first > second + 1e-9 for first, second in pairs)
    rows = [_by_seed(each) for each in (one, other)]
    if None not in rows:
        of_both = rows[0].keys() & rows[1].keys()
        return mean(rows[0][seed] - rows[1][seed] for seed in of_both) if of_both else None
    first, second = value_at(one), value_at(other)
    return None if first is None or second is None else first - second


def _by_seed(address: str) -> dict[int, float] | None:
    """Give the numbers of a row of ours by seed; None for any other address."""
    name, *keys = address.split("; ")
    if name == "figures" or name.startswith("paper") or keys[1] in ("seeds", "diverged"):
        return None
    view = "mirrored" if "mirrored" in keys else "plain"
    found = [each for each in _results(name, *keys) if not each.diverged]
    return {each.record["seed"]: _number(each, keys[1], view) for each in found}


def _interval(one: list[str], other: list[str]) -> tuple[float, float]:
    """Give both ends of the interval of a paired difference, in points, over their seeds."""
    first, second = _results(*one), _results(*other)
    pairs = [(a, b) for a in first for b in second if a.record["seed"] == b.record["seed"]]
    same = [a.record["backbone"] == b.record["backbone"] for a, b in pairs]
    assert pairs, "no seed has both"
    assert all(same), "they stand on different trainings"
    assert one[2] == other[2]
    assert ("mirrored" in one) == ("mirrored" in other)
    view = "mirrored" if "mirrored" in one else "plain"
    images = None
    if one[2] != "all":
        images = group_images([each for pair in pairs for each in pair], one[2], view)
        assert images is not None, "which images these are is not known"
    rows = zip(*pairs, strict=True)
    found = paired_difference(*reversed(list(rows)), view=view, images=images)
    return 100 * found.low, 100 * found.high


def _of_seeds(name: str, row: str, column: str, *words: str) -> list[float]:
    view = "mirrored" if "mirrored" in words else "plain"
    results = [each for each in _results(name, row, column, *words) if not each.diverged]
    return [_number(result, column, view) for result in results]


def _results(name: str, row: str, column: str, *words: str) -> list[Result]:
    [at, *_] = [word.removeprefix("at ") for word in words if word.startswith("at ")] or [None]
    where = f"at {at}" if name in COMPARISONS else "ResNet-32"
    assert set(words) <= {"mirrored", where}, words
    if name in COMPARISONS:
        wanted = _compared_cells(name, row, at)
        return [result for cell in wanted if (result := _cells().get(cell)) is not None]
    table = TABLES["questions"]
    rows = next((q.rows for q in QUESTIONS if q.name == name), None)
    if rows is None:
        table = (TABLES | CHOICES)[name]
        rows = table.rows
    [found] = [each for each in rows if each.label == row]
    backbone = "ResNet-32" if "ResNet-32" in words else "ResNet-34"
    wanted = table.cells(backbone, [found])
    return [result for cell in wanted if (result := _cells().get(cell)) is not None]


def _compared_cells(name: str, row: str, column: str | None) -> list[Cell]:
    table = COMPARISONS[name]
    [found] = [each for each in table.entries if (each.row, each.column) == (row, column)]
    return [found.cell(seed) for seed in table.seeds]


def _number(result: Result, column: str, view: str) -> float:
    if column == "T":
        return float(result.record["temperature_quantiles"][2])
    share = result.score(column, view)
    assert share is not None
    return 100 * share


def _from_paper(number: int, row: str, column: str) -> float | None:
    if column == "mean":
        return mean_of_groups(number, row)
    return paper_table(number).row(row)[column]


def _from_figures(keys: list[str]) -> float:
    found: Any = json.loads((ROOT / "results/figures/figures.json").read_text(encoding="utf-8"))
    for key in keys:
        if key != "percent":
            found = found[int(key)] if isinstance(found, list) else found[key]
    return float(found) * (100 if keys[-1] == "percent" else 1)


@cache
def _cells() -> Cells:
    return Cells(ROOT / "results/cells")


def _written_like(shown: str, value: float | None) -> str:
    if value is None:
        return NOT_RUN
    digits = 2 if shown == NOT_RUN else len(shown.partition(".")[2])
    sign = "+" if shown[0] in "+-" and shown != NOT_RUN else ""
    return f"{value + 0.0:{sign}.{digits}f}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        text, wrong = corrected(page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
        print("\n".join([f"{name}: {len(wrong)} numbers put right", *wrong]))

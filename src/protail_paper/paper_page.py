"""Pages from their templates: every number in them is looked up in the results.

A number in the template is an address in braces, as in ``{{ table1; PC + CDT + LA; all }}``:

- ``TABLE; ROW; GROUP``: a mean over seeds, of a table or a question of the bench, in per cent.
  ``mirrored`` and ``ResNet-32`` may follow (otherwise plain, ResNet-34). In the place of a group:
  ``balanced`` (the mean of the classes, for tuning), ``seeds`` (how many there are), ``diverged``
  (how many of them did), ``T`` (the median temperature). Seeds that diverged have no accuracy.
- ``table4; ROW; GROUP; at COLUMN``: the same of a table of other methods; ``mirrored`` may follow.
- ``paper1; ROW; COLUMN``: the paper's; ``mean`` is the mean of its groups.
- ``figures; KEY; KEY...``: an entry of ``results/figures/figures.json``; ``percent`` may follow.
- ``frozen; HEAD; SETS; SCORE``: a mean over sets of the leaderboard, as `Board.of` names them.
- ``frozen ranks``, ``frozen sets``: its tables.
- two of them with ``minus`` between (a difference, over the seeds that both have), ``above`` (in
  how many seeds the first is above the second), or ``low over`` and ``high over`` (the ends of the
  interval of their difference, where both are on the same backbones).

It is written with two digits, and a sign where it is a difference; a format such as ``; .1f`` or
``; +.2f`` at the end says otherwise.
"""

from __future__ import annotations

import json
import re
from statistics import mean
from typing import Any

from protail_paper.comparisons import COMPARISONS
from protail_paper.frozen import FOLDER, Board
from protail_paper.paired import group_images, paired_difference
from protail_paper.paper import mean_of_groups, paper_table
from protail_paper.results import Result, Results
from protail_paper.tables import QUESTIONS, TABLES
from protail_paper.tuning import CHOICES

NOT_RUN = "not run yet"
PLACE = re.compile(r"\{\{ (.+?)(?:; (\+?\.\df))? \}\}")


def fill(template: str, results: Results) -> str:
    """Write the numbers of a template; ``figures.json`` lies beside the folder of results."""
    numbers = Numbers(results)
    return PLACE.sub(lambda found: numbers.written(*found.groups()), template)


def numbers_without_address(template: str) -> list[str]:
    """Find decimal numbers that are written by hand; sections, and settings in `code`, may be."""
    rest = re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`|section \d\.\d", "", PLACE.sub("", template))
    return re.findall(r"\d+\.\d+", rest)


class Numbers:
    """What results, the paper and the figures say, by address."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._figures = results.folder.parent / "figures" / "figures.json"
        self._board = Board(results.folder.parent / FOLDER)

    def written(self, address: str, style: str | None = None) -> str:
        """Write the number, or the table, at an address."""
        if address in ("frozen ranks", "frozen sets"):
            return self._board.rank_table() if "ranks" in address else self._board.set_table()
        value = self.at(address)
        # No zero has a sign of its own.
        return NOT_RUN if value is None else f"{value + 0.0:{style or _usual_style(address)}}"

    def at(self, address: str) -> float | None:
        """Give the number at an address, None where no result is there."""
        for word in (" minus ", " above ", " low over ", " high over "):
            if word in address:
                one, other = address.split(word)
                return self._compared(one, other, word.strip())
        name, *keys = address.split("; ")
        if name == "figures":
            return self._of_figures(keys)
        if name.startswith("paper"):
            table, (row, column) = int(name.removeprefix("paper")), keys
            return (
                mean_of_groups(table, row)
                if column == "mean"
                else paper_table(table).row(row)[column]
            )
        found = [] if name == "frozen" else self._found(address)
        if keys[1] in ("seeds", "diverged"):
            return sum(keys[1] == "seeds" or result.diverged for result in found)
        of_seeds = self._by_seed(address)
        return mean(of_seeds.values()) if of_seeds else None

    def _compared(self, one: str, other: str, word: str) -> float | None:
        if word.endswith("over"):
            return self._interval(one, other)[word == "high over"]
        if one.startswith(("paper", "figures")) or other.startswith(("paper", "figures")):
            values = self.at(one), self.at(other)
            return None if values[0] is None or values[1] is None else values[0] - values[1]
        first, second = self._by_seed(one), self._by_seed(other)
        if word == "above":
            assert first.keys() == second.keys(), f"{one} and {other} have other seeds"
            return sum(first[seed] > second[seed] + 1e-9 for seed in first)
        both = first.keys() & second.keys()
        return mean(first[seed] - second[seed] for seed in both) if both else None

    def _interval(self, one: str, other: str) -> tuple[float, float]:
        """Give both ends of the interval of a paired difference, in points, over their seeds."""
        first, second = self._found(one), self._found(other)
        pairs = [(a, b) for a in first for b in second if a.record["seed"] == b.record["seed"]]
        assert pairs, f"no seed has both {one} and {other}"
        same = [a.record["backbone"] == b.record["backbone"] for a, b in pairs]
        assert all(same), f"{one} and {other} are of different trainings"
        (_, _, group, *_), view = one.split("; "), _view(one)
        assert (group, view) == (other.split("; ")[2], _view(other))
        images = None
        if group != "all":
            images = group_images([each for pair in pairs for each in pair], group, view)
            assert images is not None, "which images these are is not known"
        firsts, seconds = zip(*pairs, strict=True)
        found = paired_difference(seconds, firsts, view=view, images=images)
        return 100 * found.low, 100 * found.high

    def _by_seed(self, address: str) -> dict[Any, float]:
        if address.startswith("frozen"):
            return self._board.of(*address.split("; ")[1:])
        column, view = address.split("; ")[2], _view(address)
        found = {}
        for result in self._found(address):
            if column == "T":
                found[result.record["seed"]] = float(result.record["temperature_quantiles"][2])
            elif not result.diverged:
                score = result.score(column, view)
                assert score is not None, f"{address}: no class is in this group"
                found[result.record["seed"]] = 100 * score
        return found

    def _found(self, address: str) -> list[Result]:
        name, row, _, *words = address.split("; ")
        if name in COMPARISONS:
            comparison = COMPARISONS[name]
            [entry] = [
                each
                for each in comparison.entries
                if each.row == row and f"at {each.column}" in words
            ]
            expected = f"at {entry.column}"
            wanted = [entry.experiment(seed) for seed in comparison.seeds]
        else:
            rows = {question.name: question.rows for question in QUESTIONS}
            table = TABLES["questions"] if name in rows else (TABLES | CHOICES)[name]
            [found] = [each for each in rows.get(name, table.rows) if each.label == row]
            expected = "ResNet-32"
            backbone = expected if expected in words else "ResNet-34"
            wanted = table.experiments(backbone, [found])
        assert set(words) <= {"mirrored", expected}, f"{address}: not all of it is known"
        return self._results.of(wanted)

    def _of_figures(self, keys: list[str]) -> float:
        found: Any = json.loads(self._figures.read_text(encoding="utf-8"))
        for key in keys:
            if key != "percent":
                found = found[int(key)] if isinstance(found, list) else found[key]
        return float(found) * (100 if keys[-1] == "percent" else 1)


def _view(address: str) -> str:
    return "mirrored" if "mirrored" in address.split("; ") else "plain"


def _usual_style(address: str) -> str:
    name, *keys = address.split("; ")
    if " above " in address or keys[1] in ("seeds", "diverged"):
        return ".0f"
    if " minus " in address or " over " in address or keys[-1] == "rank_correlation":
        return "+.2f"
    if keys[-1] == "percent":
        return ".1f"
    printed = name.startswith("paper") and keys[-1] != "mean"
    return f".{paper_table(int(name.removeprefix('paper'))).decimals if printed else 2}f"

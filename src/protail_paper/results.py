"""Results of experiments, each kept as one small JSON file, and their means over seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from protail.recipes import Recipe
from protail.utils import new_file, regular
from protail_paper.paper import GROUPS
from protail_paper.wanted import Experiment, Subset, experiment_key

_FORMAT, _VERSION = "protail-cell", 1
VIEWS = ("plain", "mirrored")
# The fraction of its seconds that may be guessed where they are shown.
_MOST_GUESSED = 0.1
# Points of deviation from which on the single seeds are shown.
_WIDE = 3.0


class ResultError(ValueError):
    """A file that should hold a result does not."""


@dataclass(frozen=True)
class Result:
    """What came out of an experiment.

    Attributes
    ----------
    record : dict
        Everything its file says.

    Examples
    --------
    >>> from protail_paper.results import Result
    >>> Result({"scores": {"plain": {"all": 0.5}}}).score("all")
    0.5
    """

    record: dict[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether the loss became NaN, so that there is nothing to evaluate."""
        return bool(self.record.get("diverged", False))

    def score(self, group: str, view: str = "plain") -> float | None:
        """Give an accuracy, None where the data set has no such group."""
        value = self.record["scores"][view][group]
        return None if value is None else float(value)

    @property
    def gpu_seconds(self) -> float | None:
        """What stage 1 and the classifier took on a GPU; None where that is not known.

        Where much of it is guessed, as in all older results, one was charged like whatever was
        trained beside it.
        """
        took, gpus = self.record.get("seconds", {}), self.record.get("about", {}).get("gpus")
        learned = self.record["recipe"]["classifier"] is not None
        stages = ["representation", *(["classifier"] if learned else [])]
        if not gpus or not all(part in took for part in ("guessed", *stages)):
            return None
        if took["guessed"] > _MOST_GUESSED * took["representation"]:
            return None
        return float(sum(took[stage] for stage in stages))


@dataclass(frozen=True)
class Summary:
    """An accuracy over seeds, in per cent.

    Attributes
    ----------
    values : tuple of float
        One a seed.

    Examples
    --------
    >>> from protail_paper.results import Summary
    >>> str(Summary.of([0.5, 0.52, 0.54])), str(Summary.of([0.5]))
    ('52.00 ± 2.00', '50.00')
    >>> str(Summary.of([0.5, 0.1]))
    '30.00 ± 28.28 (50.00, 10.00)'
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, fractions: Iterable[float]) -> Summary:
        """Sum up fractions from 0 to 1."""
        return cls(tuple(100 * each for each in fractions))

    @property
    def mean(self) -> float:
        """Their mean."""
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """Their standard deviation (of a sample); None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.values)

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        spread = f"{self.mean:.2f} ± {self.deviation:.2f}"
        # A mean of seeds that have little in common says less than each of them.
        apart = self.deviation > _WIDE
        return f"{spread} ({', '.join(f'{v:.2f}' for v in self.values)})" if apart else spread


def summarize(results: Iterable[Result], view: str = "plain") -> dict[str, Summary]:
    """Sum up results of one row over seeds: by group; empty without any, or if one has diverged."""
    found = list(results)
    if any(result.diverged for result in found):
        return {}
    fractions = {
        group: [score for result in found if (score := result.score(group, view)) is not None]
        for group in GROUPS
    }
    return {group: Summary.of(each) for group, each in fractions.items() if each}


class Results:
    """The results in a folder.

    They are found by what they say, read as this version of the package reads recipes: a setting
    that was added later has its default in older results.

    Parameters
    ----------
    folder : path-like
        Where they are; made when the first one is added.

    Examples
    --------
    >>> import tempfile
    >>> from protail_paper.results import Results
    >>> from protail_paper.wanted import Experiment, Subset
    >>> results = Results(tempfile.mkdtemp())
    >>> Experiment("wd", Subset("cifar100-lt", 100), 0) in results, len(results)
    (False, 0)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._results: dict[str, Result] = {}
        self._files: dict[str, Path] = {}
        for file in sorted(self.folder.rglob("*.json")):
            record = read_result(file)
            key = _key_of(record, file)
            if key in self._files:
                raise _no_result(file, f"{self._files[key].name} beside it is the same one")
            self._results[key], self._files[key] = Result(record), file

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def __contains__(self, experiment: object) -> bool:
        return isinstance(experiment, Experiment) and experiment.key in self._results

    def get(self, experiment: Experiment) -> Result | None:
        """Give the result of an experiment, None where it has not been run."""
        return self._results.get(experiment.key)

    def of(self, wanted: Iterable[Experiment]) -> list[Result]:
        """Give the results of those experiments that have been run."""
        return [result for experiment in wanted if (result := self.get(experiment)) is not None]

    def are_mixed(self, compared: Iterable[Experiment]) -> bool:
        """Say whether results of one seed and one stage 1 used different trained backbones.

        Then differences between them are differences of the trainings too. Results that do not
        name their backbone count with any other.
        """
        trained: dict[str, set[str]] = {}
        for experiment in compared:
            result = self.get(experiment)
            if result is not None and "backbone" in result.record:
                hashes = trained.setdefault(experiment.representation_key, set())
                hashes.add(result.record["backbone"])
        return any(len(hashes) > 1 for hashes in trained.values())

    def add(self, experiment: Experiment, outcome: Mapping[str, Any]) -> Path:
        """Keep what came out of an experiment, as plain values; the file is whole or not there."""
        record = {
            "format": _FORMAT,
            "version": _VERSION,
            "command": experiment.command,
            "recipe": experiment.recipe.resolved(),
            "data": vars(experiment.subset),
            "seed": experiment.seed,
            **outcome,
        }
        name = experiment.recipe_name.replace("/", "+")
        file = f"{name}-seed{experiment.seed}-{experiment.key[:10]}.json"
        place = self.folder / experiment.subset.folder / file
        with new_file(place, overwrite=True) as temporary:
            temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
        self._put(experiment.key, Result(record), place)
        return place

    def _put(self, key: str, result: Result, place: Path) -> None:
        """Remember a result that has been written; the file of the one before it goes."""
        before = self._files.get(key, place)
        if before != place:
            before.unlink(missing_ok=True)
        self._results[key], self._files[key] = result, place

    def take(self, other: Results) -> int:
        """Copy the results of another folder that are not in this one, or newer; say how many."""
        taken = 0
        for key, result in other._results.items():
            here = self._results.get(key)
            if here is not None and _began(result) <= _began(here):
                continue
            file = other._files[key]
            place = self.folder / file.relative_to(other.folder)
            with new_file(place, overwrite=True) as temporary:
                temporary.write_bytes(file.read_bytes())
            self._put(key, result, place)
            taken += 1
        return taken


def _began(result: Result) -> str:
    return str(result.record.get("about", {}).get("started", ""))


def read_result(file: Path) -> dict[str, Any]:
    """Read the file of a result and check that it is one."""
    try:
        record = json.loads(regular(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _no_result(file, f"it cannot be read ({error})") from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise _no_result(file, f"its format is {found!r}; expected {_FORMAT!r}")
    if record.get("version") != _VERSION:
        raise _no_result(file, f"its version is {record.get('version')!r}; expected {_VERSION}")
    if record.get("diverged") is True:
        return record
    views = record.get("scores", {"plain": None})
    for view, scores in views.items() if isinstance(views, dict) else [("", None)]:
        if view not in VIEWS or not isinstance(scores, dict) or not _are_accuracies(scores):
            raise _no_result(file, f"its {view!r} scores are no accuracies from 0 to 1")
    return record


def _are_accuracies(scores: Mapping[str, Any]) -> bool:
    values = [scores.get(group, -1.0) for group in GROUPS]
    return all(v is None or (isinstance(v, int | float) and 0 <= v <= 1) for v in values)


def _key_of(record: Mapping[str, Any], file: Path) -> str:
    try:
        recipe = _read_once(json.dumps(record["recipe"]))
        return experiment_key(recipe, Subset(**record["data"]), record["seed"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise _no_result(file, f"its recipe, data or seed cannot be read ({error})") from error


@cache
def _read_once(resolved: str) -> Recipe:
    """Read a recipe that many results share, of this folder and of others."""
    return Recipe.from_resolved(json.loads(resolved))


def _no_result(file: Path, why: str) -> ResultError:
    return ResultError(f"{file} is no result: {why}. Remove it, or take it from where it came.")

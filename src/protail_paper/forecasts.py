"""How long a training will take, by the results that were run on such hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

from protail.data.images import long_tailed_counts
from protail.experiments import validation_counts
from protail_paper.groups import Group
from protail_paper.large import LARGE_SETS
from protail_paper.results import Results
from protail_paper.wanted import SIZES

# Stands for any other data set, of which only results of the same one tell the time.
_SOME_SIZE = (1000, 10)
# What a step of a method is thought to take where no result has it: contrasts and experts pass an
# image through more than once.
_STEPS_A_METHOD_STEP = 3.0

_Table = Mapping[str, Any]


def expected_seconds(
    group: Group, results: Results, gpus: Sequence[str] | None = None
) -> float | None:
    """Say how long a group takes, by the results of such hardware (by default of any).

    Seconds of one of several trained at once, its classifiers included. Results whose phases are
    the same but for their length tell it best. Without any, each phase is forecast alone: by
    results of nothing but such a phase, else by plain trainings of the backbone in batches of that
    size, or of any size, by the number of images, with a careful guess for other methods. None
    where no such result is there.

    Examples
    --------
    >>> import tempfile
    >>> from protail_paper.results import Results
    >>> from protail_paper.forecasts import expected_seconds
    >>> from protail_paper.groups import Group
    >>> from protail_paper.wanted import Experiment, Subset
    >>> results, subset = Results(tempfile.mkdtemp()), Subset("cifar100-lt", 100)
    >>> scores = {"plain": {"all": 0.4, "many": 0.6, "medium": 0.4, "few": 0.1}}
    >>> _ = results.add(
    ...     Experiment("wd", subset, 0), {"scores": scores, "seconds": {"representation": 60.0}}
    ... )
    >>> twice = Experiment("wd", subset, 1, {"representation.epochs": 400})
    >>> expected_seconds(Group((twice,)), results)
    120.0
    >>> expected_seconds(Group((Experiment("paco", subset, 0),)), results) is None
    True
    """
    data = vars(group.first.subset)
    records = [result.record for result in results]
    known = [each for each in records if _tells(each, data, gpus)]
    phases = _phases(group.first.recipe.resolved())
    training = _seconds_of(phases, data, known)
    if training is None:
        return None
    return training + _seconds_of_heads(group, known)


def _tells(record: _Table, data: _Table, gpus: Sequence[str] | None) -> bool:
    dataset, other = data["dataset"], record["data"]["dataset"]
    # A step takes as long on either CIFAR: images are as large.
    same_images = record["data"].get("miniature", 0) == data["miniature"]
    same_size = same_images and (other == dataset or {other, dataset} <= set(SIZES))
    same_place = gpus is None or record.get("about", {}).get("gpus") == list(gpus)
    return same_size and same_place and "seconds" in record


def _phases(recipe: _Table) -> list[_Table]:
    """List what is trained before stage 2; older results know no pretraining."""
    return [recipe[name] for name in ("pretraining", "representation") if recipe.get(name)]


def _seconds_of(phases: Sequence[_Table], data: _Table, known: Sequence[_Table]) -> float | None:
    alike = [_kind(phase) for phase in phases]
    an_image = _rate(each for each in known if list(map(_kind, _phases(each["recipe"]))) == alike)
    if an_image is not None:
        return an_image * _n_drawn(phases, data)
    if len(phases) > 1:
        each = [_seconds_of([phase], data, known) for phase in phases]
        return None if None in each else sum(seconds for seconds in each if seconds is not None)
    [phase] = phases
    plain = [each for each in known if all(_is_plain(p, phase) for p in _phases(each["recipe"]))]
    size = phase["batch_size"]
    an_image = _rate(
        each for each in plain if all(p["batch_size"] == size for p in _phases(each["recipe"]))
    )
    if an_image is None:
        an_image = _rate(plain)  # a step of larger batches takes rather less than that
    if an_image is None:
        return None
    factor = 1.0 if phase["method"] == "standard" else _STEPS_A_METHOD_STEP
    factor *= 2.0 if phase.get("sam", 0.0) else 1.0
    return factor * an_image * _n_drawn(phases, data)


def _kind(phase: _Table) -> tuple[Any, ...]:
    """Name what makes a phase's epochs as long as they are."""
    keys = ("backbone", "batch_size", "method", "sampler", "precision")
    twice = bool(phase.get("sam", 0.0))
    drawn = phase.get("partners", "batch") != "batch"
    return (*(phase[key] for key in keys), tuple(phase.get("second_view", ())), twice, drawn)


def _is_plain(phase: _Table, wanted: _Table) -> bool:
    same = phase["backbone"] == wanted["backbone"]
    return same and phase["method"] == "standard" and not phase.get("sam", 0.0)


def _rate(known: Iterable[_Table]) -> float | None:
    """Give the seconds that an image takes; None without any result that tells."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for record in known:
        took = record["seconds"]
        n = _n_drawn(_phases(record["recipe"]), record["data"])
        if n and "representation" in took:
            rates["step" in took].append(took["representation"] / n)
    # Older results do not know what steps take: they were charged like those beside them.
    best = rates[True] or rates[False]
    return median(best) if best else None


def _n_drawn(phases: Sequence[_Table], data: _Table) -> float:
    return float(sum(phase["epochs"] * _draws(phase, data) for phase in phases))


def _draws(stage: _Table, data: _Table) -> float:
    """Say how many images an epoch of a stage has."""
    large = LARGE_SETS.get(data["dataset"])
    if large is not None:
        n_max, n_classes, n_images = large.n_max, large.n_classes, large.n_images
    else:
        n_max, n_classes = SIZES.get(data["dataset"], _SOME_SIZE)
        ratios = data["imbalance"] or 1.0, data.get("aside_from", 0.0)
        n_max, n_images = _learned_from(n_max, n_classes, *ratios)
    images = n_max * n_classes if stage["sampler"] == "class-balanced" else n_images
    return images * float(1 - data.get("held_out", 0.0))


@cache
def _learned_from(
    n_max: int, n_classes: int, imbalance: float, aside_from: float
) -> tuple[int, int]:
    """Count the images of the largest class, and of all, that a subset gives to learn from."""
    counts = long_tailed_counts(n_max, n_classes, min(imbalance, n_max))
    if aside_from:
        counts, _ = validation_counts(long_tailed_counts(n_max, n_classes, aside_from), counts)
    return int(counts.max()), int(counts.sum())


def _seconds_of_heads(group: Group, known: Sequence[_Table]) -> float:
    """Say what the classifiers of a group take, by those on the same backbone; else nothing."""
    backbone = group.first.recipe.phases["representation"].backbone
    rates = [
        record["seconds"]["classifier"] / _draws_of_head(stage, record["data"])
        for record in known
        if (stage := record["recipe"]["classifier"]) is not None
        and record["recipe"]["representation"]["backbone"] == backbone
        and "classifier" in record["seconds"]
    ]
    if not rates:
        return 0.0
    data = vars(group.first.subset)
    resolved = [experiment.recipe.resolved() for experiment in group.experiments]
    heads = [recipe["classifier"] for recipe in resolved if recipe["classifier"] is not None]
    return float(median(rates) * sum(_draws_of_head(stage, data) for stage in heads))


def _draws_of_head(stage: _Table, data: _Table) -> float:
    # Means of classes, where nothing is learned, take a pass too.
    draws = float(max(1, stage["epochs"]) * _draws(stage, data))
    limit = stage.get("max_steps")
    return draws if limit is None else min(draws, float(limit * stage["batch_size"]))

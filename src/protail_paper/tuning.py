"""Tables that settings are chosen by, none of which knows a test image.

**On held-out training images.** Every stage 1 that is tried keeps the paper's plain augment. On a
first split each of them gets every stage 2; those not clearly behind there get them again on a
second split. The tau of tau-normalised weights, and how long and how strongly weights under a limit
decay, are chosen on both; these for CIFAR-10-LT, and prototypes on RIDE and on PaCo, on the first
split alone.

**On training images that a wider subset has** (``strong-...``): which stage 1 prototypes do best
on, with everything that helps one. What is tried comes from a map of probes that had seen test
images, and from what has helped others. Post-hoc logit adjustment of the same network is tried
beside prototypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from protail_paper.paper import read_data
from protail_paper.results import Results, Summary
from protail_paper.tables import (
    AS_PC,
    VARIANTS,
    Row,
    Table,
    grid,
    named,
    settings,
)
from protail_paper.wanted import CIFAR10

Changes = Mapping[str, Any]


def _stages(name: str) -> dict[str, Changes]:
    """Read stages 1 that are tried, each with what the one that it starts from has."""
    found: dict[str, Changes] = {}
    for stage, changes in _DATA[name].items():
        start = {**_STARTS, **found}[changes["start"]] if "start" in changes else {}
        own = {key: value for key, value in changes.items() if key != "start"}
        found[stage] = {**start, **settings("representation", **own)}
    return found


_DATA = read_data("stages.toml")
_STARTS: dict[str, Changes] = {}
_STARTS = _stages("starts")
STAGE_1 = _stages("tuning")
# The others were more than 2 points behind on the first split, each with its best stage 2.
STAGE_1_LEFT = {name: STAGE_1[name] for name in ("linear", "linear, 320 epochs")}


def _prototypes(
    cosine_rates: Iterable[float] = (),
    *,
    radii: Iterable[float] = (8.0, 16.0, 24.0, 32.0),
    taus: Iterable[float] = (0.25, 0.5, 0.75, 1.0),
    rates: Iterable[float] = (),
    middle: tuple[float, float] = (16.0, 0.5),
) -> dict[str, dict[str, Any]]:
    """Name settings of prototypes on features of one length, and by cosine at some rates.

    Each has the recipe's rate, and further ones; at the middle radius and tau the rate and the
    images are varied too.
    """
    variants: dict[str, dict[str, Any]] = {}
    for radius, tau in [*product(radii, taus), middle]:
        name, changes = f"radius {radius:g}, tau {tau:g}", {"normalize": radius, "tau": tau}
        variants[name] = changes
        for rate in rates:
            variants[f"{name}, rate {rate:g}"] = {**changes, "lr": rate}
    for rate in (1.0, 16.0):
        variants[f"{name}, rate {rate:g}"] = {**changes, "lr": rate}
    variants[f"{name}, crop and flip"] = {**changes, "augment": ["crop", "flip"]}
    for rate in cosine_rates:
        variants[f"cosine, rate {rate:g}"] = {"distance": "cosine", "lr": rate}
    return {name: settings("classifier", **changes) for name, changes in variants.items()}


_RAW = {f"raw, tau {tau:g}": {"classifier.tau": tau} for tau in (0.25, 0.5)}
STAGE_2 = tuple(
    Row(label, "pc-la", changes) for label, changes in (_RAW | _prototypes((2.0, 4.0, 8.0))).items()
)


def _with_rivals(prototypes: Mapping[str, Changes]) -> tuple[Row, ...]:
    taus = (0.5, 0.75, 1.0, 1.25, 1.5)
    post_hoc = grid("post hoc, tau {:g}", "logit-adjusted-post-hoc", tau=taus)
    learned = (Row(f"PC, {label}", "pc-la", changes) for label, changes in prototypes.items())
    return (Row("softmax", None), *post_hoc, *learned)


_STRONG_STAGE_2 = _with_rivals(
    _prototypes((4.0, 16.0), radii=(8.0, 16.0, 32.0), taus=(0.5, 0.75, 1.0))
)
# Prototypes were best at the largest radius and the smallest tau that were tried.
_CONSISTENT_STAGE_2 = _with_rivals(
    _prototypes(radii=(24.0, 32.0, 48.0, 64.0), taus=(0.25, 0.5, 0.75), middle=(32.0, 0.5))
)
_PARTNERS_STAGE_2 = _with_rivals(
    _prototypes(radii=(24.0, 32.0), taus=(0.25, 0.5, 0.75), rates=(16.0,), middle=(32.0, 0.5))
)

TAUS = grid("tau {:g}", "tau-norm", tau=(0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0))


def _decays(
    augments: Mapping[str, list[str]], decays: Mapping[float, tuple[float, ...]]
) -> tuple[Row, ...]:
    """Try stage 2 of Weight Balancing at its authors' rate and decay, shorter, and at others.

    At those of its authors it ends where decay has all but removed the weights, whatever they
    began as. The others, decays by rate, are for balances further up.
    """
    tried = [VARIANTS["as published"] | {"classifier.epochs": n} for n in (3, 4, 5, 6, 7, 10)]
    tried += [
        settings("classifier", lr=rate, weight_decay=decay, epochs=10)
        for rate, each in decays.items()
        for decay in each
    ]
    return tuple(
        Row(
            f"{images} / rate {each['classifier.lr']:g}, "
            f"decay {each['classifier.weight_decay']:g}, {each['classifier.epochs']} epochs",
            "wd-max",
            {"classifier.augment": augment, **each},
        )
        for (images, augment), each in product(augments.items(), tried)
    )


_IMAGES = {name: VARIANTS[name]["classifier.augment"] for name in ("crop and flip", AS_PC)}
_CROP_AND_FLIP = {"crop and flip": _IMAGES["crop and flip"]}
_DECAYS = _decays(
    _IMAGES,
    {0.1: (0.01, 5e-3, 3e-3, 2e-3, 1e-3), 1.0: (5e-3, 3e-3, 2e-3, 1e-3, 5e-4)},
)
# The loss is divided by images times classes: with a tenth of them it pulls ten times as hard.
_DECAYS_CIFAR10 = _decays(
    _CROP_AND_FLIP, {0.1: (0.1, 0.05, 0.02, 0.01, 5e-3), 1.0: (0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3)}
)


def _combined(recipe: str) -> tuple[Row, ...]:
    """Try prototypes on the features of another method, whose scale is another."""
    tried = _prototypes((1.0, 4.0, 16.0))
    images = {name: _IMAGES[name] for name in (AS_PC, "crop and flip")}
    return tuple(
        Row(
            f"{name} / {label}",
            recipe,
            {**VARIANTS["as on WD"], **changes, "classifier.augment": augment},
        )
        for (name, augment), (label, changes) in product(images.items(), tried.items())
        if "classifier.augment" not in changes
    )


def crossed(first: Mapping[str, Changes], second: Iterable[Row]) -> tuple[Row, ...]:
    """Cross stages 1, by name what each changes, with every stage 2.

    Examples
    --------
    >>> from protail_paper.tuning import STAGE_1, STAGE_2, crossed
    >>> rows = crossed({"linear": STAGE_1["linear"]}, STAGE_2)
    >>> len(rows), rows[0].label
    (24, 'linear / raw, tau 0.25')
    """
    return tuple(
        Row(f"{name} / {row.label}", row.classifier, {**changes, **row.overrides})
        for (name, changes), row in product(first.items(), list(second))
    )


def stage_1_of(row: Row) -> str:
    """Give the name of a row's stage 1, as `crossed` has put it into the label."""
    return row.label.partition(" / ")[0]


def _held_out(
    name: str, rows: tuple[Row, ...], seeds: tuple[int, ...] = (0,), **options: Any
) -> Table:
    on = {"backbones": {"ResNet-34": "wd"}, **options}
    return Table(name, _DATA["titles"][name], rows, seeds=seeds, held_out=0.2, **on)


def _aside(name: str, first: Mapping[str, Changes], second: Iterable[Row], on: str = "wd") -> Table:
    """Make a table of stages 1 that differ by less than a fifth of the subset can tell."""
    rows, on_it = crossed(first, second), {"ResNet-34": on}
    title = _DATA["titles"][name]
    return Table(name, title, rows, seeds=(0,), backbones=on_it, aside_from=10)


CHOICES: dict[str, Table] = named(
    (
        _held_out("tuning-stage-1", crossed(STAGE_1, STAGE_2)),
        _held_out("tuning-stage-2", crossed(STAGE_1_LEFT, STAGE_2), (0, 1)),
        _held_out("tuning-tau", TAUS, (0, 1)),
        _held_out("tuning-max", _DECAYS, (0, 1)),
        _held_out("tuning-tau-cifar10", TAUS, subset=CIFAR10),
        _held_out("tuning-max-cifar10", _DECAYS_CIFAR10, subset=CIFAR10),
        _held_out("tuning-ride", _combined("ride-pc"), backbones={"ResNet-32": "ride"}),
        _held_out("tuning-paco", _combined("paco-pc"), backbones={"ResNet-32": "paco"}),
        _aside("strong-stage-1", _stages("strong"), _STRONG_STAGE_2),
        _aside("strong-consistent", _stages("consistent"), _CONSISTENT_STAGE_2),
        _aside("strong-partners", _stages("partners"), _PARTNERS_STAGE_2),
        _aside("strong-taught", _stages("taught"), _PARTNERS_STAGE_2, on="mixture-distillation"),
    )
)


def ranked_rows(table: Table, results: Results) -> list[tuple[Row, Summary]]:
    """Rank the rows of a table of choices by the mean accuracy of the classes, mirrored.

    The best is first; only rows of which every seed is there, and none has diverged.
    """
    [backbone] = table.backbones
    ranked = []
    for row in table.rows:
        found = results.of(table.experiments(backbone, [row]))
        if not any(result.diverged for result in found):
            fractions = [each.score("balanced", "mirrored") for each in found]
            known = [fraction for fraction in fractions if fraction is not None]
            if len(known) == len(table.seeds):
                ranked.append((row, Summary.of(known)))
    return sorted(ranked, key=lambda each: each[1].mean, reverse=True)

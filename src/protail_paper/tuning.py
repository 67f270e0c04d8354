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

from protail_paper.results import Results, Summary
from protail_paper.tables import (
    AS_ON_WD,
    AS_PC,
    AUGMENT_OF_PROTOTYPES,
    PUBLISHED_DECAY,
    Row,
    Table,
    grid,
    named,
    settings,
)
from protail_paper.wanted import CIFAR10

Changes = Mapping[str, Any]


def _stage_1(start: Changes | None = None, **changes: Any) -> dict[str, Any]:
    return {**(start or {}), **settings("representation", **changes)}


_COSINE = _stage_1(head="cosine", scale=16.0)
STAGE_1: dict[str, Changes] = {
    "linear": {},
    "linear, 320 epochs": _stage_1(epochs=320),
    "linear, smoothed labels": _stage_1(label_smoothing=0.1),
    "cosine": _COSINE,
    "cosine, decay 3e-3": _stage_1(_COSINE, weight_decay=3e-3),
}
# The others were more than 2 points behind on the first split, each with its best stage 2.
STAGE_1_LEFT = {name: STAGE_1[name] for name in ("linear", "linear, 320 epochs")}

_BASE = _stage_1(
    augment=AUGMENT_OF_PROTOTYPES,
    head="cosine",
    scale=16.0,
    mixup=1.0,
    cutmix=1.0,
    batch_size=128,
    lr=0.1,
    weight_decay=1e-3,
    epochs=100,
)
_CONSISTENT = _stage_1(
    _BASE, method="mixture-consistency", second_view=AUGMENT_OF_PROTOTYPES, batch_size=64
)
# The second to the fourth have twice the epochs, passes or views of the base.
_STRONG: dict[str, Changes] = {
    "base": _BASE,
    "200 epochs": _stage_1(_BASE, epochs=200),
    "sharpness-aware": _stage_1(_BASE, sam=0.1),
    "consistent mixtures": _CONSISTENT,
    "decay 2e-3": _stage_1(_BASE, weight_decay=2e-3),
    "logit-adjusted loss": _stage_1(_BASE, loss="logit-adjusted", tau=1.0),
    "decay 5e-4": _stage_1(_BASE, weight_decay=5e-4),
    "cutmix alone": _stage_1(_BASE, mixup=0.0),
    "scale 32": _stage_1(_BASE, scale=32.0),
}
# The best of them, changed in one thing at a time.
_CONSISTENT_STAGES: dict[str, Changes] = {
    "200 epochs": _stage_1(_CONSISTENT, epochs=200),
    "scale 8": _stage_1(_CONSISTENT, scale=8.0),
    "rate 0.05": _stage_1(_CONSISTENT, lr=0.05),
    "weight 10": _stage_1(_CONSISTENT, weight=10.0),
}
# An average needs weights that still move: the rate ends at a fifth, not at nothing.
_AVERAGED: dict[str, Any] = {"schedule": "steps", "drops": [[0.6, 0.2]], "ema": 0.9995}
# None of these was clearly ahead of it. Here it is again, beside what it is compared with.
_PARTNERS: dict[str, Changes] = {
    "consistent mixtures": _CONSISTENT,
    "class-balanced partners": _stage_1(_CONSISTENT, partners="class-balanced"),
    "square-root partners": _stage_1(_CONSISTENT, partners="square-root"),
    "averaged weights": _stage_1(_CONSISTENT, **_AVERAGED),
    "class-balanced partners, averaged weights": _stage_1(
        _CONSISTENT, partners="class-balanced", **_AVERAGED
    ),
    "square-root sampler": _stage_1(_CONSISTENT, sampler="square-root"),
}
# Nor was any of these. Consistent mixtures as the teacher of another network, recipe
# mixture-distillation.
_TAUGHT: dict[str, Changes] = {
    "taught": _stage_1(taught=0.5, epochs=100),
    "taught, as if classes were equal": _stage_1(taught=0.5, epochs=100, tau=1.0),
    "taught, 160 epochs": _stage_1(taught=0.5, epochs=160),
    "taught to four fifths": _stage_1(taught=0.8, epochs=100),
}


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
    tried = [PUBLISHED_DECAY | {"classifier.epochs": n} for n in (3, 4, 5, 6, 7, 10)]
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


_CROP_AND_FLIP = {"crop and flip": ["crop", "flip"]}
_DECAYS = _decays(
    _CROP_AND_FLIP | {AS_PC: AUGMENT_OF_PROTOTYPES},
    {0.1: (0.01, 5e-3, 3e-3, 2e-3, 1e-3), 1.0: (5e-3, 3e-3, 2e-3, 1e-3, 5e-4)},
)
# The loss is divided by images times classes: with a tenth of them it pulls ten times as hard.
_DECAYS_CIFAR10 = _decays(
    _CROP_AND_FLIP, {0.1: (0.1, 0.05, 0.02, 0.01, 5e-3), 1.0: (0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3)}
)


def _combined(recipe: str) -> tuple[Row, ...]:
    """Try prototypes on the features of another method, whose scale is another."""
    tried = _prototypes((1.0, 4.0, 16.0))
    images = {AS_PC: AUGMENT_OF_PROTOTYPES} | _CROP_AND_FLIP
    return tuple(
        Row(f"{name} / {label}", recipe, {**AS_ON_WD, **changes, "classifier.augment": augment})
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
    name: str, title: str, rows: tuple[Row, ...], seeds: tuple[int, ...] = (0,), **options: Any
) -> Table:
    on = {"backbones": {"ResNet-34": "wd"}, **options}
    return Table(name, title, rows, seeds=seeds, held_out=0.2, **on)


def _aside(
    name: str, title: str, first: Mapping[str, Changes], second: Iterable[Row], on: str = "wd"
) -> Table:
    """Make a table of stages 1 that differ by less than a fifth of the subset can tell."""
    rows, backbones = crossed(first, second), {"ResNet-34": on}
    return Table(name, title, rows, seeds=(0,), backbones=backbones, aside_from=10)


_BY_TAU = "Which tau normalised weights do best with"
_BY_DECAY = "Which decay weights under a limit do best with"
_ON_CIFAR10 = " on CIFAR-10-LT"
CHOICES: dict[str, Table] = named(
    (
        _held_out(
            "tuning-stage-1",
            "Which stage 1 the prototype classifier does best on",
            crossed(STAGE_1, STAGE_2),
        ),
        _held_out(
            "tuning-stage-2",
            "Which setting of the prototype classifier does best",
            crossed(STAGE_1_LEFT, STAGE_2),
            (0, 1),
        ),
        _held_out("tuning-tau", _BY_TAU, TAUS, (0, 1)),
        _held_out("tuning-max", _BY_DECAY, _DECAYS, (0, 1)),
        _held_out("tuning-tau-cifar10", _BY_TAU + _ON_CIFAR10, TAUS, subset=CIFAR10),
        _held_out("tuning-max-cifar10", _BY_DECAY + _ON_CIFAR10, _DECAYS_CIFAR10, subset=CIFAR10),
        *(
            _held_out(
                f"tuning-{first}",
                f"Which prototypes do best on {what}",
                _combined(f"{first}-pc"),
                backbones={"ResNet-32": first},
            )
            for first, what in (("ride", "the experts of RIDE"), ("paco", "the features of PaCo"))
        ),
        _aside(
            "strong-stage-1",
            "Which stronger stage 1 prototypes do best on",
            _STRONG,
            _STRONG_STAGE_2,
        ),
        _aside(
            "strong-consistent",
            "Which consistent mixtures prototypes do best on",
            _CONSISTENT_STAGES,
            _CONSISTENT_STAGE_2,
        ),
        _aside(
            "strong-partners",
            "What else helps prototypes on consistent mixtures",
            _PARTNERS,
            _PARTNERS_STAGE_2,
        ),
        _aside(
            "strong-taught",
            "Whether a teacher helps prototypes on consistent mixtures",
            _TAUGHT,
            _PARTNERS_STAGE_2,
            on="mixture-distillation",
        ),
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

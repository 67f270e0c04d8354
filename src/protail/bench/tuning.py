"""Choosing the best setting of the prototype classifier, on images held out of training.

Every stage 1 that is tried keeps the paper's plain augment. On a first split each of them gets
every stage 2; those not clearly behind there get them again on a second split. The tau of
tau-normalised weights, and how long and how strongly weights under a limit decay, are chosen on
both; these for CIFAR-10-LT, and prototypes on RIDE and on PaCo, on the first split alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from protail.bench.rows import AS_ON_WD, AS_PC, AUGMENT_OF_PROTOTYPES, PUBLISHED_DECAY, Row

_COSINE: dict[str, Any] = {"representation.head": "cosine", "representation.scale": 16.0}
STAGE_1: dict[str, dict[str, Any]] = {
    "linear": {},
    "linear, 320 epochs": {"representation.epochs": 320},
    "linear, smoothed labels": {"representation.label_smoothing": 0.1},
    "cosine": _COSINE,
    "cosine, decay 3e-3": _COSINE | {"representation.weight_decay": 3e-3},
}


def prototypes_of_one_length(
    cosine_rates: Iterable[float],
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
    further = list(rates)
    for radius, tau in product(radii, taus):
        name = f"radius {radius:g}, tau {tau:g}"
        variants[name] = {"classifier.normalize": radius, "classifier.tau": tau}
        for rate in further:
            variants[f"{name}, rate {rate:g}"] = variants[name] | {"classifier.lr": rate}
    radius, tau = middle
    name = f"radius {radius:g}, tau {tau:g}"
    variants[f"{name}, rate 1"] = variants[name] | {"classifier.lr": 1.0}
    variants[f"{name}, rate 16"] = variants[name] | {"classifier.lr": 16.0}
    variants[f"{name}, crop and flip"] = variants[name] | {"classifier.augment": ["crop", "flip"]}
    for rate in cosine_rates:
        variants[f"cosine, rate {rate:g}"] = {
            "classifier.distance": "cosine",
            "classifier.lr": rate,
        }
    return variants


def _stage_2() -> tuple[Row, ...]:
    raw = {f"raw, tau {tau:g}": {"classifier.tau": tau} for tau in (0.25, 0.5)}
    variants = raw | prototypes_of_one_length((2.0, 4.0, 8.0))
    return tuple(Row(label, "pc-la", changes) for label, changes in variants.items())


STAGE_2 = _stage_2()
# The others were more than 2 points behind on the first split, each with its best stage 2.
STAGE_1_LEFT = {name: STAGE_1[name] for name in ("linear", "linear, 320 epochs")}
TAUS = tuple(
    Row(f"tau {tau:g}", "tau-norm", {"classifier.tau": tau})
    for tau in (0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)
)


def _decays(
    augments: Mapping[str, list[str]], decays: Mapping[float, tuple[float, ...]]
) -> tuple[Row, ...]:
    """Try stage 2 of Weight Balancing at its authors' rate and decay, shorter, and at others.

    At those of its authors it ends where decay has all but removed the weights, whatever they
    began as. The others, decays by rate, are for balances further up.
    """
    others = [
        {"classifier.lr": rate, "classifier.weight_decay": decay, "classifier.epochs": 10}
        for rate, each in decays.items()
        for decay in each
    ]
    tried = [PUBLISHED_DECAY | {"classifier.epochs": n} for n in (3, 4, 5, 6, 7, 10)] + others
    return tuple(
        Row(
            f"{images} / rate {each['classifier.lr']:g}, "
            f"decay {each['classifier.weight_decay']:g}, {each['classifier.epochs']} epochs",
            "wd-max",
            {"classifier.augment": augment, **each},
        )
        for images, augment in augments.items()
        for each in tried
    )


_CROP_AND_FLIP = {"crop and flip": ["crop", "flip"]}
DECAYS = _decays(
    _CROP_AND_FLIP | {AS_PC: AUGMENT_OF_PROTOTYPES},
    {0.1: (0.01, 5e-3, 3e-3, 2e-3, 1e-3), 1.0: (5e-3, 3e-3, 2e-3, 1e-3, 5e-4)},
)
# The loss is divided by images times classes: with a tenth of them it pulls ten times as hard.
DECAYS_CIFAR10 = _decays(
    _CROP_AND_FLIP,
    {0.1: (0.1, 0.05, 0.02, 0.01, 5e-3), 1.0: (0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3)},
)


def _combined(recipe: str) -> tuple[Row, ...]:
    """Try prototypes on the features of another method, whose scale is another."""
    settings = prototypes_of_one_length((1.0, 4.0, 16.0))
    plain = {name: each for name, each in settings.items() if "classifier.augment" not in each}
    images = {AS_PC: AUGMENT_OF_PROTOTYPES} | _CROP_AND_FLIP
    return tuple(
        Row(f"{name} / {label}", recipe, {**AS_ON_WD, **changes, "classifier.augment": augment})
        for name, augment in images.items()
        for label, changes in plain.items()
    )


ON_EXPERTS, ON_CONTRAST = _combined("ride-pc"), _combined("paco-pc")


def crossed(first: Mapping[str, Mapping[str, Any]], second: Iterable[Row]) -> tuple[Row, ...]:
    """Cross stages 1 with every stage 2.

    Parameters
    ----------
    first : mapping of str to mapping
        What each stage 1 changes, by its name.
    second : iterable of Row
        Every stage 2.

    Returns
    -------
    tuple of Row
        Labelled "stage 1 / stage 2".

    Examples
    --------
    >>> from protail.bench.tuning import STAGE_1, STAGE_2, crossed
    >>> rows = crossed({"linear": STAGE_1["linear"]}, STAGE_2)
    >>> len(rows), rows[0].label
    (24, 'linear / raw, tau 0.25')
    """
    rows = list(second)
    return tuple(
        Row(f"{name} / {row.label}", row.classifier, {**changes, **row.overrides})
        for name, changes in first.items()
        for row in rows
    )


def stage_1_of(row: Row) -> str:
    """Give the name of a row's stage 1.

    Examples
    --------
    >>> from protail.bench.tuning import STAGE_1, STAGE_2, crossed, stage_1_of
    >>> stage_1_of(crossed(STAGE_1, STAGE_2)[0])
    'linear'
    """
    return row.label.partition(" / ")[0]

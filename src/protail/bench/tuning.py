"""Choosing the best setting of the prototype classifier, on images held out of training.

Every stage 1 that is tried keeps the paper's plain augment. On a first split each of them gets
every stage 2; those not clearly behind there get them again on a second split.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protail.bench.rows import Row

_COSINE: dict[str, Any] = {"representation.head": "cosine", "representation.scale": 16.0}
STAGE_1: dict[str, dict[str, Any]] = {
    "linear": {},
    "linear, 320 epochs": {"representation.epochs": 320},
    "linear, smoothed labels": {"representation.label_smoothing": 0.1},
    "cosine": _COSINE,
    "cosine, decay 3e-3": _COSINE | {"representation.weight_decay": 3e-3},
}


def _stage_2() -> dict[str, dict[str, Any]]:
    variants: dict[str, dict[str, Any]] = {}
    for tau in (0.25, 0.5):
        variants[f"raw, tau {tau:g}"] = {"classifier.tau": tau}
    for radius in (8.0, 16.0, 24.0, 32.0):
        for tau in (0.25, 0.5, 0.75, 1.0):
            variants[f"radius {radius:g}, tau {tau:g}"] = {
                "classifier.normalize": radius,
                "classifier.tau": tau,
            }
    middle = {"classifier.normalize": 16.0, "classifier.tau": 0.5}
    variants["radius 16, tau 0.5, rate 1"] = middle | {"classifier.lr": 1.0}
    variants["radius 16, tau 0.5, rate 16"] = middle | {"classifier.lr": 16.0}
    variants["radius 16, tau 0.5, crop and flip"] = middle | {
        "classifier.augment": ["crop", "flip"]
    }
    for rate in (2.0, 4.0, 8.0):
        variants[f"cosine, rate {rate:g}"] = {
            "classifier.distance": "cosine",
            "classifier.lr": rate,
        }
    return variants


STAGE_2 = _stage_2()
# The others were more than 2 points behind on the first split, each with its best stage 2.
STAGE_1_LEFT = ("linear", "linear, 320 epochs")


def tuning_rows(first: Iterable[str]) -> tuple[Row, ...]:
    """Cross stages 1 with every stage 2.

    Parameters
    ----------
    first : iterable of str
        Names in ``STAGE_1``.

    Returns
    -------
    tuple of Row
        Labelled "stage 1 / stage 2".

    Examples
    --------
    >>> from protail.bench.tuning import tuning_rows
    >>> rows = tuning_rows(["linear"])
    >>> len(rows), rows[0].label
    (24, 'linear / raw, tau 0.25')
    """
    return tuple(
        Row(f"{one} / {other}", "pc-la", {**STAGE_1[one], **STAGE_2[other]})
        for one in first
        for other in STAGE_2
    )


def stage_1_of(row: Row) -> str:
    """Give the name of a row's stage 1.

    Examples
    --------
    >>> from protail.bench.tuning import stage_1_of, tuning_rows
    >>> stage_1_of(tuning_rows(["cosine"])[0])
    'cosine'
    """
    return row.label.partition(" / ")[0]

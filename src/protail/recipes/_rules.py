"""What settings must keep to: ranges, and what goes together."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import torch

from protail.backbones import check_backbone_name
from protail.data.augment._augment import NAMES
from protail.data.augment._loader import LOADER_NAMES
from protail.recipes._parts import PARTS
from protail.recipes._places import Place
from protail.training.settings import ClassifierSettings, RepresentationSettings

Settings = RepresentationSettings | ClassifierSettings


class Range(NamedTuple):
    """The numbers a setting may be."""

    low: float
    high: float = float("inf")
    low_belongs: bool = True

    def holds(self, value: float) -> bool:
        """Say whether a number lies in the range; the upper end never belongs to it."""
        return (value >= self.low if self.low_belongs else value > self.low) and value < self.high

    def __str__(self) -> str:
        low = f"a number {'>=' if self.low_belongs else '>'} {self.low:g}"
        return low if self.high == float("inf") else f"{low} and < {self.high:g}"


_RANGES = {
    "epochs": Range(0),
    "max_steps": Range(1),
    "batch_size": Range(1),
    "lr": Range(0, low_belongs=False),
    "temperature_lr": Range(0),
    "momentum": Range(0, 1),
    "weight_decay": Range(0),
    "temperature_weight_decay": Range(0),
    "warm_up_epochs": Range(0),
    "mixup": Range(0),
    "cutmix": Range(0),
    "max_norm": Range(0),
    "ema": Range(0, 1),
}
# Which of them suit small images on the device and which large ones, the data set knows.
_AUGMENTS = tuple(dict.fromkeys((*NAMES, *LOADER_NAMES)))


def check_rules(settings: Settings, place: Place) -> None:
    """Raise unless the settings of a stage are in range and go together.

    Parameters
    ----------
    settings : RepresentationSettings or ClassifierSettings
        Of the right types.
    place : Place
        The stage.

    Examples
    --------
    >>> from protail.recipes._places import Place
    >>> from protail.recipes._rules import check_rules
    >>> from protail.training.settings import ClassifierSettings
    >>> check_rules(ClassifierSettings(), Place("a.toml", "classifier"))
    """
    for field in fields(settings):
        value, allowed = getattr(settings, field.name), _RANGES.get(field.name)
        if allowed is not None and value is not None and not allowed.holds(value):
            raise place.at(field.name).unexpected(value, str(allowed))
    _check_augment(settings.augment, place.at("augment"))
    _check_schedule(settings, place)
    if settings.nesterov and settings.momentum == 0:
        raise place.at("nesterov").unexpected(True, "a momentum above 0 with it")
    _check_max_norm(settings, place)
    _check_reweighting(settings, place)
    if isinstance(settings, ClassifierSettings):
        _check_start(settings, place)
    else:
        _check_backbone(settings.backbone, place)


def _check_backbone(name: str, place: Place) -> None:
    try:
        check_backbone_name(name)
    except ValueError as error:
        raise place.error(f"{place.key}.backbone: {error}") from None


def _check_augment(names: tuple[str, ...], place: Place) -> None:
    for name in names:
        if name not in _AUGMENTS:
            raise place.unknown(name, _AUGMENTS)
    if len(set(names)) < len(names):
        raise place.unexpected(names, "each name once")


def _check_schedule(settings: Settings, place: Place) -> None:
    drops: tuple[tuple[float, float], ...] = settings.drops
    if settings.schedule != "steps" and drops:
        raise place.at("drops").unexpected(
            drops, f'an empty list: schedule = "{settings.schedule}" has no drops, "steps" has'
        )
    if settings.schedule == "steps" and not drops:
        raise place.at("drops").unexpected(
            drops, 'drops for schedule = "steps", such as [[0.8, 0.01], [0.9, 0.0001]]'
        )
    parts = [part for part, _ in drops]
    if any(not 0 < part <= 1 for part in parts) or parts != sorted(set(parts)):
        raise place.at("drops").unexpected(drops, "rising parts of the training, above 0, up to 1")
    if any(factor < 0 for _, factor in drops):
        raise place.at("drops").unexpected(drops, "factors >= 0")
    warm_up: Any = getattr(settings, "warm_up_epochs", 0.0)
    if warm_up > 0 and warm_up >= settings.epochs:
        raise place.at("warm_up_epochs").unexpected(
            warm_up, f"fewer than epochs, which is {settings.epochs}"
        )


def _check_max_norm(settings: Settings, place: Place) -> None:
    if settings.max_norm == 0:
        return
    registry, smallest = PARTS["head"]
    with torch.random.fork_rng(devices=[]):
        head = registry.make(settings.head, *smallest, **settings.head_options)
    if not isinstance(getattr(head, "weight", None), torch.Tensor):
        raise place.at("max_norm").unexpected(
            settings.max_norm, f"0: head {settings.head!r} has no rows of weights to keep short"
        )


def _check_reweighting(settings: Settings, place: Place) -> None:
    first = settings.loss_options.get("reweight_from")
    if first is not None and 0 < settings.epochs <= first:
        raise place.at("reweight_from").unexpected(
            first, f"fewer than epochs, which is {settings.epochs}: the first one has number 0"
        )


def _check_start(settings: ClassifierSettings, place: Place) -> None:
    """Let a head with prototypes start at centroids, and no other."""
    has_prototypes = hasattr(PARTS["head"].registry.factory(settings.head), "set_prototypes")
    if has_prototypes and settings.centroids is None:
        raise place.at("centroids").unexpected(
            None, f'"clean" or "augmented", where the prototypes of head {settings.head!r} start'
        )
    if not has_prototypes and settings.centroids is not None:
        raise place.at("centroids").unexpected(
            settings.centroids, f'"none": head {settings.head!r} has no prototypes to start there'
        )

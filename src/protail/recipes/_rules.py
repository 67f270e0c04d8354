"""What settings must keep to: ranges, and what goes together."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn

from protail.data.augment import LOADER_NAMES, NAMES
from protail.losses import LOSSES
from protail.methods import METHODS
from protail.models.backbones import check_backbone_name, make_backbone
from protail.models.heads import HEADS
from protail.recipes._parts import PARTS, small_width
from protail.recipes._places import Place
from protail.training import ClassifierSettings, RepresentationSettings, check_experts

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
    "max_norm_part": Range(0),
    "sam": Range(0),
    "ema": Range(0, 1),
}
# What a part needs is registered under these words.
_PLURAL = {"head": "heads", "loss": "losses"}
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
    _check_parts(settings, place)
    _check_schedule(settings, place)
    if settings.nesterov and settings.momentum == 0:
        raise place.at("nesterov").unexpected(True, "a momentum above 0 with it")
    _check_max_norm(settings, place)
    _check_reweighting(settings, place)
    if isinstance(settings, ClassifierSettings):
        _check_start(settings, place)
    else:
        _check_backbone(settings.backbone, place)
        _check_views(settings, place)
        _check_method(settings, place)
        if settings.sam and settings.method != "standard":
            raise place.at("sam").unexpected(
                settings.sam, f'0: method = "{settings.method}" takes one pass a step, and sam two'
            )


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
    warm_up = settings.warm_up_epochs
    if 0 < settings.epochs <= warm_up:
        raise place.at("warm_up_epochs").unexpected(
            warm_up, f"fewer than epochs, which is {settings.epochs}"
        )


def _check_parts(settings: Settings, place: Place) -> None:
    """Let each part come together with those it was made for, and no others."""
    for part, about in (("loss", "head"), ("head", "loss"), ("method", "head"), ("method", "loss")):
        name = getattr(settings, part, None)
        if name is None:
            continue
        fitting = PARTS[part].registry.needs(name).get(_PLURAL[about], ())
        other = getattr(settings, about)
        if fitting and other not in fitting:
            listed = " or ".join(map(repr, fitting))
            raise place.at(about).unexpected(other, f"{listed} with {part} {name!r}")
    both = (settings.head_options, settings.loss_options)
    scales = [options["scale"] for options in both if "scale" in options]
    if len(set(scales)) > 1:
        raise place.at("loss_options.scale").unexpected(
            scales[1], f"{scales[0]:g}, the scale of head {settings.head!r}"
        )


def _check_views(settings: RepresentationSettings, place: Place) -> None:
    needs = METHODS.needs(settings.method)
    views = needs.get("views", 1)
    _check_augment(settings.second_view, place.at("second_view"))
    if views == 2 and not settings.second_view:
        raise place.at("second_view").unexpected(
            [], f'what makes the second view that method {settings.method!r} needs, as ["simclr"]'
        )
    if views == 1 and settings.second_view:
        raise place.at("second_view").unexpected(
            list(settings.second_view), f"none: method {settings.method!r} looks at one view"
        )
    _check_mixing(settings, place, needs.get("mixes", True), views)


def _check_mixing(
    settings: RepresentationSettings, place: Place, mixes: bool | str, views: int
) -> None:
    method, mixup, cutmix = settings.method, settings.mixup, settings.cutmix
    if not mixes and (mixup or cutmix):
        raise place.at("mixup" if mixup else "cutmix").unexpected(
            mixup or cutmix, f"0: method {method!r} cannot learn from mixtures of images"
        )
    if mixes == "always" and not (mixup or cutmix):
        raise place.at("mixup").unexpected(
            mixup, f"mixup, cutmix or both above 0: method {method!r} learns from mixtures alone"
        )
    if settings.partners != "batch" and not (mixup or cutmix):
        raise place.at("partners").unexpected(
            settings.partners, '"batch", or mixup, cutmix or both above 0: nothing is mixed'
        )
    if views == 2 and mixup and cutmix and mixup != cutmix:
        raise place.at("cutmix").unexpected(
            cutmix, f"{mixup}, as mixup has: one share serves both views of method {method!r}"
        )


def _check_method(settings: RepresentationSettings, place: Place) -> None:
    """Make a small one of the stage's own head and loss: it knows best what it can work with."""
    if HEADS.needs(settings.head).get("builds_on", ()):
        raise place.at("head").unexpected(
            settings.head, "a head that begins anew: there is none to build it on in stage 1"
        )
    backbone = nn.Flatten()
    backbone.n_features = small_width(settings.head_options)  # type: ignore[assignment]
    try:
        with torch.random.fork_rng(devices=[]):
            head = _small_head(settings)
            loss = LOSSES.make(settings.loss, [2, 1], **settings.loss_options)
            METHODS.make(settings.method, backbone, head, loss, [2, 1], **settings.method_options)
    except (TypeError, ValueError) as error:
        raise place.error(f"{place.key}.method: {error}") from None
    if hasattr(head, "n_experts"):
        try:
            check_experts(settings, _backbone_of_experts(settings.backbone), head)
        except ValueError as error:
            raise place.error(f"{place.key}.backbone: {error}") from None


# Hundreds of recipes stand on one, and it is only looked at.
@lru_cache(maxsize=4)
def _backbone_of_experts(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return make_backbone(name)


def _small_head(settings: Settings) -> nn.Module:
    options = settings.head_options
    with torch.random.fork_rng(devices=[]):
        head: nn.Module = HEADS.make(settings.head, 2, small_width(options), **options)
    return head


def _check_max_norm(settings: Settings, place: Place) -> None:
    part = getattr(settings, "max_norm_part", None)
    if settings.max_norm == 0 and part is None:
        return
    key, value = ("max_norm", settings.max_norm) if part is None else ("max_norm_part", part)
    if settings.max_norm and part is not None:
        raise place.at(key).unexpected(value, "one of max_norm and max_norm_part, not both")
    if not isinstance(getattr(_small_head(settings), "weight", None), torch.Tensor):
        nothing = 0 if part is None else '"none"'
        raise place.at(key).unexpected(
            value, f"{nothing}: head {settings.head!r} has no rows of weights to keep short"
        )


def _check_reweighting(settings: Settings, place: Place) -> None:
    first = settings.loss_options.get("reweight_from")
    of_method = getattr(settings, "method_options", {}).get("reweight_from")
    for key, epoch in (("loss_options", first), ("method_options", of_method)):
        if epoch is not None and 0 < settings.epochs <= epoch:
            raise place.at(f"{key}.reweight_from").unexpected(
                epoch, f"fewer than epochs, which is {settings.epochs}: the first one has number 0"
            )
    if None not in (first, of_method) and first != of_method:
        raise place.at("method_options.reweight_from").unexpected(
            of_method, f"{first}, from which on the loss has its weights"
        )


def _check_start(settings: ClassifierSettings, place: Place) -> None:
    """Let a head start where it can: at centroids, at the head of stage 1, or anew."""
    name, factory = settings.head, HEADS.factory(settings.head)
    builds_on = HEADS.needs(name).get("builds_on", ())
    if settings.start == "new" and builds_on:
        raise place.at("start").unexpected(
            "new", f'"representation": head {name!r} is built on the one of stage 1'
        )
    if settings.start == "representation" and not hasattr(factory, "build_on"):
        raise place.at("start").unexpected(
            "representation", f'"new": head {name!r} cannot begin with the one of stage 1'
        )
    if settings.epochs and not any(True for _ in _small_head(settings).parameters()):
        raise place.at("epochs").unexpected(settings.epochs, f"0: head {name!r} learns nothing")
    has_prototypes = hasattr(factory, "set_prototypes")
    if has_prototypes and settings.centroids is None:
        raise place.at("centroids").unexpected(
            None, f'"clean" or "augmented", where the prototypes of head {name!r} start'
        )
    if not has_prototypes and settings.centroids is not None:
        raise place.at("centroids").unexpected(
            settings.centroids, f'"none": head {name!r} has no prototypes to start there'
        )

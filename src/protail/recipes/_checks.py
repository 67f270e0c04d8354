"""What a recipe must keep to beside types and ranges: parts that exist, and that go together.

Nothing is made to find out. Parts declare what they take in their signatures, and what they need
where they are registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from protail._registry import Registry
from protail.data import SAMPLERS
from protail.data.augment import AUGMENTS, LOADER_AUGMENTS
from protail.losses import LOSSES
from protail.methods import METHODS
from protail.models.backbones import BACKBONES, check_backbone_name
from protail.models.heads import HEADS
from protail.recipes._values import Place, toml_text
from protail.training import ClassifierSettings, RepresentationSettings, check_experts

Settings = RepresentationSettings | ClassifierSettings
# Keys that do not fit the others, and what was expected of each.
Misfits = Iterator[tuple[str, str]]

PARTS: dict[str, Registry[Any]] = {
    registry.what: registry for registry in (METHODS, HEADS, LOSSES, SAMPLERS)
}
# Which of them suit small images on the device and which large ones, the data set knows.
_AUGMENTS = tuple(dict.fromkeys((*AUGMENTS, *LOADER_AUGMENTS)))


def check_settings(settings: Settings, place: Place) -> None:
    """Raise unless the settings of a stage go together; each is in its range."""
    _check_augment(settings.augment, place.at("augment"))
    if isinstance(settings, RepresentationSettings):
        _check_augment(settings.second_view, place.at("second_view"))
        _check_backbone(settings, place.at("backbone"))
    _raise_first(_misfits(settings), settings, place)


def check_stages(stages: Mapping[str, Any], place: Place) -> None:
    """Raise unless each stage of a recipe can go on from the one before."""
    first = stages.get("representation")
    if "pretraining" in stages:
        if first is None:
            raise place.error("it has pretraining and no representation stage; expected both.")
        _raise_first(_pretraining(stages["pretraining"], first), stages, place)
    elif first is not None and (needs := _needs_trained(first)):
        verb, example = "goes on", "dro-lt"
        if needs == "teacher":
            verb, example = "learns", "mixture-distillation"
        raise place.error(
            f"representation.method = {first.method!r} {verb} from a backbone and a head that "
            "have been trained before, and there is no pretraining stage; expected one, as in "
            f"recipe {example!r}."
        )
    if first is not None and "classifier" in stages:
        _raise_first(_classifier(first, stages["classifier"]), stages, place)


def _raise_first(misfits: Misfits, where: Any, place: Place) -> None:
    for key, expected in misfits:
        value = where
        for part in key.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        raise place.at(key).unexpected(value, expected)


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))


def _check_augment(names: tuple[str, ...], place: Place) -> None:
    for name in names:
        if name not in _AUGMENTS:
            raise place.unknown(name, _AUGMENTS)
    if len(set(names)) < len(names):
        raise place.unexpected(names, "each name once")


def _check_backbone(settings: RepresentationSettings, place: Place) -> None:
    """Raise unless there is such a backbone, with as many experts as the head is for."""
    name, experts = settings.backbone, settings.head_options.get("experts")
    try:
        if not (ours := name in BACKBONES.names()):
            check_backbone_name(name)
        if experts is not None:
            check_experts(settings, BACKBONES.needs(name)["experts"] if ours else None, experts)
    except ValueError as error:
        raise place.error(f"{place.key}: {error}") from None


def _misfits(settings: Settings) -> Misfits:
    yield from _parts(settings)
    yield from _schedule(settings)
    if settings.nesterov and settings.momentum == 0:
        yield "nesterov", "a momentum above 0 with it"
    yield from _max_norm(settings)
    yield from _reweighting(settings)
    if isinstance(settings, ClassifierSettings):
        yield from _start(settings)
    else:
        yield from _method(settings)


def _parts(settings: Settings) -> Misfits:
    """Let each part come together with those it was made for, and no others."""
    for part, other, others in (
        ("loss", "head", "heads"),
        ("head", "loss", "losses"),
        ("method", "head", "heads"),
        ("method", "loss", "losses"),
    ):
        name = getattr(settings, part, None)
        fitting = PARTS[part].needs(name)[others] if name else ()
        if fitting and getattr(settings, other) not in fitting:
            yield other, f"{_either(fitting)} with {part} {name!r}"
    scale = settings.head_options.get("scale")
    if scale is not None and settings.loss_options.get("scale", scale) != scale:
        yield "loss_options.scale", f"{scale:g}, the scale of head {settings.head!r}"


def _schedule(settings: Settings) -> Misfits:
    drops: tuple[tuple[float, float], ...] = settings.drops
    parts = [part for part, _ in drops]
    if settings.schedule != "steps" and drops:
        yield "drops", f'an empty list: schedule = "{settings.schedule}" has no drops, "steps" has'
    if settings.schedule == "steps" and not drops:
        yield "drops", 'drops for schedule = "steps", such as [[0.8, 0.01], [0.9, 0.0001]]'
    if any(not 0 < part <= 1 for part in parts) or parts != sorted(set(parts)):
        yield "drops", "rising parts of the training, above 0, up to 1"
    if any(factor < 0 for _, factor in drops):
        yield "drops", "factors >= 0"
    if 0 < settings.epochs <= settings.warm_up_epochs:
        yield "warm_up_epochs", f"fewer than epochs, which is {settings.epochs}"


def _max_norm(settings: Settings) -> Misfits:
    limits = {"max_norm": settings.max_norm or None}
    limits["max_norm_part"] = getattr(settings, "max_norm_part", None)
    for key in (key for key, limit in limits.items() if limit is not None):
        if None not in limits.values():
            yield key, "one of max_norm and max_norm_part, not both"
        if not HEADS.needs(settings.head)["has_weight"]:
            nothing = "0" if key == "max_norm" else '"none"'
            yield key, f"{nothing}: head {settings.head!r} has no rows of weights to keep short"


def _reweighting(settings: Settings) -> Misfits:
    first = settings.loss_options.get("reweight_from")
    of_method = getattr(settings, "method_options", {}).get("reweight_from")
    for part, epoch in (("loss", first), ("method", of_method)):
        if epoch is not None and 0 < settings.epochs <= epoch:
            fewer = f"fewer than epochs, which is {settings.epochs}: the first one has number 0"
            yield f"{part}_options.reweight_from", fewer
    if None not in (first, of_method) and first != of_method:
        yield "method_options.reweight_from", f"{first}, from which on the loss has its weights"


def _method(settings: RepresentationSettings) -> Misfits:
    """Give a method the views, the mixtures, the head and the loss that it can work with."""
    method, mixes = settings.method, bool(settings.mixup or settings.cutmix)
    needs = METHODS.needs(method)
    if needs["views"] == 2 and not settings.second_view:
        yield "second_view", f'what makes the second view of method {method!r}, as ["simclr"]'
    if needs["views"] == 1 and settings.second_view:
        yield "second_view", f"none: method {method!r} looks at one view"
    if mixes and not needs["mixes"]:
        key = "mixup" if settings.mixup else "cutmix"
        yield key, f"0: method {method!r} cannot learn from mixtures of images"
    if not mixes and needs["mixes"] == "always":
        yield "mixup", f"mixup, cutmix or both above 0: method {method!r} learns only from mixtures"
    if not mixes and settings.partners != "batch":
        yield "partners", '"batch", or mixup, cutmix or both above 0: nothing is mixed'
    mixup, cutmix = settings.mixup, settings.cutmix
    if needs["views"] == 2 and mixup and cutmix and mixup != cutmix:
        yield "cutmix", f"{mixup}, as mixup has: method {method!r} mixes both views alike"
    if HEADS.needs(settings.head)["builds_on"]:
        yield "head", "a head that starts from scratch: stage 1 has none to build it on"
    if needs["plain_loss"]:
        for key, option in LOSSES.options(settings.loss).items():
            if settings.loss_options[key] != option.default:
                usual = toml_text(option.default)
                yield f"loss_options.{key}", f"{usual}: method {method!r} has a loss of its own"
    if settings.sam and method != "standard":
        yield "sam", f'0: method = "{method}" takes one pass a step, and sam two'


def _start(settings: ClassifierSettings) -> Misfits:
    """Let a head start where it can: at class means, at the head of stage 1, or from scratch."""
    name, needs, factory = settings.head, HEADS.needs(settings.head), HEADS.factory(settings.head)
    if settings.start == "new" and needs["builds_on"]:
        yield "start", f'"representation": head {name!r} is built on the one of stage 1'
    if settings.start == "representation" and not hasattr(factory, "build_on"):
        yield "start", f'"new": head {name!r} cannot begin with the one of stage 1'
    if settings.epochs and not needs["learns"]:
        yield "epochs", f"0: head {name!r} learns nothing"
    has_prototypes = hasattr(factory, "set_prototypes")
    if has_prototypes and settings.centroids is None:
        yield "centroids", f'"clean" or "augmented", where prototypes of head {name!r} start'
    if not has_prototypes and settings.centroids is not None:
        yield "centroids", f'"none": head {name!r} has no prototypes to start there'


def _needs_trained(representation: RepresentationSettings) -> bool | str:
    """Say what its method does with what has been trained before: nothing, goes on, is taught."""
    needs: bool | str = METHODS.needs(representation.method)["pretrained"]
    return needs


def _pretraining(pretraining: RepresentationSettings, first: RepresentationSettings) -> Misfits:
    needs = _needs_trained(first)
    is_taught = needs == "teacher"
    if pretraining.backbone != first.backbone:
        yield "pretraining.backbone", f"{first.backbone!r}, that of the representation"
    if _needs_trained(pretraining):
        yield "pretraining.method", "a method that starts from scratch: no stage is before it"
    if needs and not pretraining.epochs and not (pretraining.weights or pretraining.pretrained):
        yield "pretraining.epochs", f"more: method {first.method!r} needs what has been trained"
    if needs and pretraining.head != first.head:
        purpose = "with which the representation goes on"
        if is_taught:
            purpose = "that of the representation, which learns from it"
        yield "pretraining.head", f"{first.head!r}, {purpose}"
    if pretraining.head == first.head and pretraining.head_options != first.head_options:
        options = toml_text(first.head_options)
        yield "pretraining.head_options", f"{options}, those of the representation"
    begins = "it in the pretraining, with which the representation begins"
    if is_taught:
        begins = "nothing: the representation starts from scratch, and learns from the pretraining"
    for key in ("pretrained", "weights"):
        if getattr(first, key):
            yield f"representation.{key}", begins


def _classifier(first: RepresentationSettings, classifier: ClassifierSettings) -> Misfits:
    """Let the head of the classifier meet the one of stage 1 that it needs."""
    head, goes_on = classifier.head, classifier.start == "representation"
    fitting = HEADS.needs(head)["builds_on"]
    if "experts" in classifier.head_options and not fitting:
        fitting = ("experts",)
    elif goes_on and not fitting:
        fitting = (head,)
    if fitting and first.head not in fitting:
        needed = f"which the classifier's head {head!r} needs there"
        yield "representation.head", f"{_either(fitting)}, {needed}"
    shared: tuple[str, ...] = ("experts", "scale") if "experts" in fitting else ()
    if goes_on and head == first.head:
        shared = tuple(classifier.head_options)
    for option in shared:
        theirs, ours = (stage.head_options.get(option) for stage in (first, classifier))
        if ours is not None and theirs != ours:
            as_there = f"{toml_text(theirs)}, as the head of the representation has"
            yield f"classifier.head_options.{option}", as_there

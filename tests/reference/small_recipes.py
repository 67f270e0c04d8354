"""Every recipe, small enough to be run in seconds: other numbers, the same parts."""

from dataclasses import replace

from protail.models.backbones import ExpertResNet, backbone_names, register_backbone
from protail.recipes import load_recipe
from reference.small_images import TINY

_SMALL = {"batch_size": 16, "lr": 0.05, "warm_up_epochs": 1, "precision": "float32"}
# What only some recipes have.
_SMALLER_OPTIONS = {
    "representation.method_options.queue": 64,
    "representation.method_options.projection": 8,
}
TINY_EXPERTS = "tiny-{}-experts-for-tests"


def _tiny_experts(n_experts):
    return lambda in_channels: ExpertResNet(n_experts, in_channels, n_blocks=1, widths=(8, 8, 16))


for _n in (2, 3, 4):
    # Collected for its examples too, this file may be imported under two names.
    if TINY_EXPERTS.format(_n) not in backbone_names():
        register_backbone(TINY_EXPERTS.format(_n), experts=_n)(_tiny_experts(_n))


def small_recipe(name, epochs=7):
    """Read a recipe and make its networks and its trainings small; from 2 epochs on."""
    recipe = load_recipe(name)
    changes, later = {}, {"loss_options.reweight_from", "method_options.reweight_from"}
    options = _SMALLER_OPTIONS | {f"representation.{key}": (epochs + 1) // 2 for key in later}
    for stage in recipe.phases:
        settings = getattr(recipe, stage)
        small = _SMALL | {"epochs": epochs}
        changes |= {f"{stage}.{key}": value for key, value in small.items()}
        experts = settings.head_options.get("experts")
        changes[f"{stage}.backbone"] = TINY_EXPERTS.format(experts) if experts else TINY
        if not settings.warm_up_epochs:
            del changes[f"{stage}.warm_up_epochs"]
    if recipe.classifier is not None:
        changes["classifier.precision"] = "float32"
        changes["classifier.batch_size"] = 32
        if recipe.classifier.epochs:
            changes["classifier.epochs"] = 2
            if recipe.classifier.warm_up_epochs:
                changes["classifier.warm_up_epochs"] = 1
    for key, value in options.items():
        stage, part, option = key.split(".")
        settings = getattr(recipe, stage)
        if settings is not None and getattr(settings, part).get(option) is not None:
            changes[key] = value
    return recipe.with_overrides(changes)


def small_distillation(**options):
    """Make a recipe whose representation learns from its pretraining."""
    recipe = small_recipe("mixture-consistency")
    first = recipe.representation
    taught = replace(first, method="mixture-distillation")
    recipe = replace(recipe, pretraining=first, representation=taught)
    return recipe.with_overrides({f"representation.{key}": v for key, v in options.items()})

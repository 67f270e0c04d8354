"""What the stages of a recipe must keep to, so that each can go on from the one before."""

from __future__ import annotations

from typing import Literal

from protail.methods import METHODS
from protail.models.heads import HEADS
from protail.recipes._places import Place
from protail.recipes._toml import toml_text
from protail.training import ClassifierSettings, RepresentationSettings


def check_stages(
    pretraining: RepresentationSettings | None,
    representation: RepresentationSettings | None,
    classifier: ClassifierSettings | None,
    place: Place,
) -> None:
    """Raise unless the stages of a recipe go together.

    Parameters
    ----------
    pretraining, representation, classifier
        Settings of the stages that there are.
    place : Place
        The recipe.

    Examples
    --------
    >>> from protail.recipes._places import Place
    >>> from protail.recipes._stage_rules import check_stages
    >>> from protail.training.settings import ClassifierSettings
    >>> check_stages(None, None, ClassifierSettings(), Place("a.toml"))
    """
    if pretraining is not None:
        if representation is None:
            raise place.error("it has pretraining and no representation stage; expected both.")
        _check_pretraining(pretraining, representation, place)
    elif representation is not None and (needs := _pretrained(representation)):
        verb, example = "goes on", "dro-lt"
        if needs == "teacher":
            verb, example = "learns", "mixture-distillation"
        raise place.error(
            f"representation.method = {representation.method!r} {verb} from a backbone and a head "
            "that have been trained before, and there is no pretraining stage; expected one, as in "
            f"recipe {example!r}."
        )
    if classifier is None or representation is None:
        return
    head = classifier.head
    fitting = HEADS.needs(head).get("builds_on", ())
    if "experts" in classifier.head_options and not fitting:
        fitting = ("experts",)
    elif classifier.start == "representation" and not fitting:
        fitting = (head,)
    if fitting and representation.head not in fitting:
        raise place.at("representation.head").unexpected(
            representation.head,
            f"{' or '.join(map(repr, fitting))}, which the classifier's head {head!r} needs there",
        )
    shared: tuple[str, ...] = ("experts", "scale") if "experts" in fitting else ()
    if classifier.start == "representation" and head == representation.head:
        shared = tuple(classifier.head_options)
    for option in shared:
        first, second = (stage.head_options.get(option) for stage in (representation, classifier))
        if second is not None and first != second:
            raise place.at(f"classifier.{option}").unexpected(
                second, f"{toml_text(first)}, as the head of the representation has"
            )


def _check_pretraining(
    pretraining: RepresentationSettings, representation: RepresentationSettings, place: Place
) -> None:
    recipe, place = place, place.at("pretraining")
    if pretraining.backbone != representation.backbone:
        raise place.at("backbone").unexpected(
            pretraining.backbone, f"{representation.backbone!r}, that of the representation"
        )
    if _pretrained(pretraining):
        raise place.at("method").unexpected(
            pretraining.method, "a method that begins with nothing: no stage comes before it"
        )
    needs = _pretrained(representation)
    if needs and not pretraining.epochs and not (pretraining.weights or pretraining.pretrained):
        raise place.at("epochs").unexpected(
            0, f"more: method {representation.method!r} needs what has been trained before"
        )
    if needs and pretraining.head != representation.head:
        purpose = "that of the representation, which learns from it"
        if needs != "teacher":
            purpose = "with which the representation goes on"
        raise place.at("head").unexpected(pretraining.head, f"{representation.head!r}, {purpose}")
    same = pretraining.head == representation.head
    if same and pretraining.head_options != representation.head_options:
        raise place.at("head_options").unexpected(
            pretraining.head_options,
            f"{toml_text(representation.head_options)}, those of the representation",
        )
    begins = "it in the pretraining, with which the representation begins"
    if needs == "teacher":
        begins = "nothing: the representation begins anew, and learns from the pretraining"
    for key in ("pretrained", "weights"):
        if getattr(representation, key):
            raise recipe.at(f"representation.{key}").unexpected(
                getattr(representation, key), begins
            )


def _pretrained(representation: RepresentationSettings) -> bool | Literal["teacher"]:
    """Say what its method does with what has been trained before, as it was registered."""
    needs: bool | Literal["teacher"] = METHODS.needs(representation.method).get("pretrained", False)
    return needs

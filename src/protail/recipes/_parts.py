"""The parts that a stage names: what there is of each, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from protail._messages import unknown_part
from protail._registry import Option, Registry
from protail.data import SAMPLERS
from protail.losses import LOSSES
from protail.methods import METHODS
from protail.models.heads import HEADS
from protail.recipes._places import Place
from protail.recipes._types import conform


class Part(NamedTuple):
    """A registry, and what to give it to see whether options make anything, if that is needed."""

    registry: Registry[Any]
    smallest: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None


def small_width(options: Mapping[str, Any]) -> int:
    """Give a number of features that a head with these options can take."""
    experts = options.get("experts", 1)
    return 12 * experts if isinstance(experts, int) and experts > 0 else 12


# Heads, losses and methods declare what their options may be; a sampler is tried.
PARTS = {
    "method": Part(METHODS, None),
    "head": Part(HEADS, None),
    "loss": Part(LOSSES, None),
    "sampler": Part(SAMPLERS, lambda options: ([0, 1],)),
}


def options_taken(part: str, name: str) -> dict[str, Option]:
    """Say what the part of this name takes.

    Parameters
    ----------
    part : str
        "head", "loss", "sampler" or "method".
    name : str
        Which one.

    Returns
    -------
    dict of str to Option
        By name.

    Examples
    --------
    >>> from protail.recipes._parts import options_taken
    >>> list(options_taken("head", "prototype"))
    ['distance', 'temperature', 'temperature_form', 'initial_temperature', 'normalize']
    """
    return PARTS[part].registry.options(name)


def check_name(part: str, name: str, place: Place) -> None:
    """Raise unless there is a ``part`` of this name."""
    names = PARTS[part].registry.names()
    if name not in names:
        raise place.error(unknown_part(place.key, name, names))


def complete_options(
    part: str, name: str, options: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """Check the options of a part and spell out its defaults.

    Parameters
    ----------
    part, name : str
        Which part, and which one of its kind.
    options : mapping of str to object
        What it is to take.
    place : Place
        The stage.

    Returns
    -------
    dict of str to object
        Every option, in the order of the signature.

    Examples
    --------
    >>> from protail.recipes._parts import complete_options
    >>> from protail.recipes._places import Place
    >>> complete_options("loss", "logit-adjusted", {"tau": 1}, Place("a.toml", "classifier"))
    {'tau': 1.0}
    """
    registry, smallest = PARTS[part]
    try:
        registry.check(name, options)
    except ValueError as error:
        raise place.error(f"{place.key}.{part}_options: {error}") from None
    complete = {
        key: conform(options[key], option.hint, place.at(key)) if key in options else option.default
        for key, option in registry.options(name).items()
    }
    try:
        registry.check_values(name, complete)
        if smallest is not None:
            with torch.random.fork_rng(devices=[]):
                registry.make(name, *smallest(complete), **complete)
    except (TypeError, ValueError) as error:
        raise place.error(f"{place.key}.{error}") from None
    return complete


def owners(option: str) -> list[str]:
    """List every part that takes this option, in words."""
    return [
        f"{part} {name!r}"
        for part, (registry, _) in PARTS.items()
        for name in registry.names()
        if option in registry.options(name)
    ]

"""A stage as a table, and as checked settings."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from protail.recipes._parts import check_name, complete_options, options_taken, owners
from protail.recipes._places import Place
from protail.recipes._rules import Settings, check_rules
from protail.recipes._types import conform
from protail.training import ClassifierSettings, RepresentationSettings

STAGES: dict[str, type[Settings]] = {
    "pretraining": RepresentationSettings,
    "representation": RepresentationSettings,
    "classifier": ClassifierSettings,
}
_OPTIONS = "_options"

Table = Mapping[str, Any]


def read_stage(stage: str, given: Table, place: Place, base: Settings | None = None) -> Settings:
    """Make settings of what is given; what is not comes from ``base``, or is a default.

    Parameters
    ----------
    stage : {"pretraining", "representation", "classifier"}
        Which stage.
    given : mapping of str to object
        Settings, options of the parts (``loss_options``), and short forms of them (``tau``).
    place : Place
        The stage's.
    base : RepresentationSettings or ClassifierSettings, optional
        What to start from.

    Returns
    -------
    RepresentationSettings or ClassifierSettings
        Checked, every option spelled out.

    Examples
    --------
    >>> from protail.recipes._places import Place
    >>> from protail.recipes._stages import read_stage
    >>> read_stage("classifier", {"tau": 1}, Place("a.toml", "classifier")).loss_options
    {'tau': 1.0}
    """
    kind = STAGES[stage]
    table = _merge(stage_table(base or kind()), given, place)
    hints = _hints(stage)
    values = {key: conform(value, hints[key], place.at(key)) for key, value in table.items()}
    for part in _parts(table):
        options = values[part + _OPTIONS]
        values[part + _OPTIONS] = complete_options(part, values[part], options, place)
    settings = kind(**values)
    check_rules(settings, place)
    return settings


def stage_table(settings: Settings) -> dict[str, Any]:
    """Write settings as a table, in the order of the fields.

    Parameters
    ----------
    settings : RepresentationSettings or ClassifierSettings
        A stage's.

    Returns
    -------
    dict of str to object
        A copy.

    Examples
    --------
    >>> from protail.recipes._stages import stage_table
    >>> from protail.training.settings import ClassifierSettings
    >>> stage_table(ClassifierSettings())["lr"]
    4.0
    """
    table = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}


@functools.cache
def _hints(stage: str) -> dict[str, Any]:
    return get_type_hints(STAGES[stage])


def _parts(table: Table) -> list[str]:
    return [key.removesuffix(_OPTIONS) for key in table if key.endswith(_OPTIONS)]


def _merge(table: dict[str, Any], given: Table, place: Place) -> dict[str, Any]:
    """Lay what is given over a table. Another part starts without the last one's options."""
    for part in _parts(table):
        name = conform(given.get(part, table[part]), str, place.at(part))
        check_name(part, name, place.at(part))
        if name != table[part]:
            table[part], table[part + _OPTIONS] = name, {}
    for key, value in given.items():
        if key.endswith(_OPTIONS) and key in table:
            table[key] |= conform(value, dict[str, Any], place.at(key))
        elif key in table:
            table[key] = value
    for key in [key for key in given if key not in table]:
        owner = _owner(key, table, place) + _OPTIONS
        if key in given.get(owner, {}):
            raise place.at(key).unexpected(given[key], f"it once; {owner}.{key} is there too")
        table[owner][key] = given[key]
    return table


def _owner(key: str, table: Table, place: Place) -> str:
    """Find the part of this stage that takes an option."""
    taken = {part: options_taken(part, table[part]) for part in _parts(table)}
    takers = [part for part, options in taken.items() if key in options]
    if len(takers) == 1:
        return takers[0]
    if takers:
        longer = " or ".join(f"{part}{_OPTIONS}.{key}" for part in takers)
        raise place.error(f"{place.key}.{key} may be several things; write {longer} instead.")
    elsewhere = owners(key)
    if elsewhere:
        own = ", ".join(f"{part} {table[part]!r}" for part in taken)
        raise place.error(
            f"{place.key}.{key} is an option of {', '.join(elsewhere)}; this stage has {own}."
        )
    raise place.unknown_key(
        key, [*table, *(name for options in taken.values() for name in options)]
    )

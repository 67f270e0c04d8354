"""The recipe: a method's stages, checked and complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from protail._messages import unknown_part
from protail.options import Option, read_options
from protail.recipes._checks import PARTS, Settings, check_settings, check_stages
from protail.recipes._values import Place, conform, parse_value, plain, toml_text
from protail.training import ClassifierSettings, RepresentationSettings

STAGES: dict[str, type[Settings]] = {
    "pretraining": RepresentationSettings,
    "representation": RepresentationSettings,
    "classifier": ClassifierSettings,
}
_OPTIONS = "_options"
_CHECKED = "_checked"

# Settings that came after recipes had been hashed, with the value that changes nothing.
_LATER: list[tuple[str, Any]] = [("partners", "batch")]

# What is said about a recipe; nothing that is computed depends on it.
WORDS = ("title", "reference", "paper")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A method's stages, written down.

    Every recipe there is has been checked: names, types, ranges, and what goes together.

    Parameters
    ----------
    name : str
        What it is called by.
    title : str
        One line on what it does.
    reference : str
        The paper and section it comes from.
    paper : str
        Where the paper of the prototype classifiers reports it; empty where it does not.
    pretraining : RepresentationSettings, optional
        What stage 1 starts with, where it does not start from scratch.
    representation : RepresentationSettings, optional
        Stage 1.
    classifier : ClassifierSettings, optional
        Stage 2. A recipe has at least one stage.

    Examples
    --------
    >>> from protail.recipes import load_recipe
    >>> recipe = load_recipe("pc-la")
    >>> recipe.classifier.head, recipe.classifier.loss_options
    ('prototype', {'tau': 0.25})
    """

    name: str
    title: str
    reference: str = ""
    paper: str = ""
    pretraining: RepresentationSettings | None = None
    representation: RepresentationSettings | None = None
    classifier: ClassifierSettings | None = None

    def __post_init__(self) -> None:
        place = Place(f"recipe {self.name!r}")
        _check_words({key: getattr(self, key) for key in ("name", *WORDS)}, place)
        for stage in STAGES:
            settings = getattr(self, stage)
            # What `read_stage` has made is checked: recipes are made of it again and again.
            if settings is not None and _CHECKED not in vars(settings):
                checked = read_stage(stage, stage_table(settings), place.at(stage), settings)
                object.__setattr__(self, stage, checked)
        if not self.stages:
            raise place.error("it has no stage; expected representation or classifier, or both.")
        check_stages({stage: getattr(self, stage) for stage in self.stages}, place)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages it has, in their order."""
        return tuple(stage for stage in STAGES if getattr(self, stage) is not None)

    @property
    def phases(self) -> dict[str, RepresentationSettings]:
        """Stage 1, after what it starts with where it does not start from scratch."""
        return {stage: getattr(self, stage) for stage in self.stages if stage != "classifier"}

    @property
    def n_epochs(self) -> int:
        """Epochs of all that comes before stage 2."""
        return sum(settings.epochs for settings in self.phases.values())

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Change settings of stages that are there.

        Parameters
        ----------
        overrides : mapping of str to object
            By keys with dots: ``classifier.lr``, ``classifier.loss_options.tau``, and for options
            also the short form that recipes have, ``classifier.tau``. Text is read as a TOML
            value; text that is none is taken as it is.

        Returns
        -------
        Recipe
            Of the same name.

        Examples
        --------
        >>> from protail.recipes import load_recipe
        >>> changed = load_recipe("pc-la").with_overrides({"classifier.tau": "0.5"})
        >>> changed.classifier.loss_options
        {'tau': 0.5}
        """
        given: dict[str, dict[str, Any]] = {}
        for key, value in overrides.items():
            *above, last = self._key_parts(key)
            table = given
            for part in above:
                table = table.setdefault(part, {})
            table[last] = parse_value(value) if isinstance(value, str) else value
        place = Place(f"recipe {self.name!r}")
        changed: dict[str, Any] = {
            stage: read_stage(stage, table, place.at(stage), getattr(self, stage))
            for stage, table in given.items()
        }
        return replace(self, **changed)

    def _key_parts(self, key: str) -> list[str]:
        place = Place(f"recipe {self.name!r}")
        stage, *others = parts = key.split(".")
        if key.endswith(_OPTIONS):
            raise place.error(f"{key!r} is a table; set what is in it, as in {key}.name=value.")
        is_long = len(others) == 2 and others[0].endswith(_OPTIONS)
        if stage not in STAGES or not all(parts) or not (len(others) == 1 or is_long):
            raise place.error(
                f"{key!r} is no key to set; expected a stage and a setting, such as "
                "representation.lr, classifier.tau or classifier.loss_options.tau."
            )
        if stage not in self.stages:
            raise place.error(f"{key!r} cannot be set: this recipe has no {stage} stage.")
        return parts

    def resolved(self) -> dict[str, Any]:
        """Spell out everything the recipe says, defaults included.

        Returns
        -------
        dict of str to object
            What JSON can hold; `from_resolved` reads it back.

        Examples
        --------
        >>> from protail.recipes import load_recipe
        >>> resolved = load_recipe("wd").resolved()
        >>> resolved["representation"]["weight_decay"], resolved["classifier"]
        (0.005, None)
        """
        words = {key: getattr(self, key) for key in ("name", *WORDS)}
        stages = {
            stage: plain(stage_table(getattr(self, stage))) if stage in self.stages else None
            for stage in STAGES
            # Recipes without one have the hash they had before there were any.
            if stage != "pretraining" or self.pretraining is not None
        }
        return words | stages

    @classmethod
    def from_resolved(cls, resolved: Mapping[str, Any]) -> Self:
        """Make the recipe that was spelled out.

        Parameters
        ----------
        resolved : mapping of str to object
            What `resolved` gave.

        Returns
        -------
        Recipe
            The same again.

        Examples
        --------
        >>> from protail.recipes import Recipe, load_recipe
        >>> Recipe.from_resolved(load_recipe("pc").resolved()) == load_recipe("pc")
        True
        """
        return cls(**read_table(resolved, Place(f"recipe {resolved.get('name')!r}")))

    def to_toml(self) -> str:
        """Write the recipe, defaults included, as a file that `load_recipe` reads.

        Returns
        -------
        str
            The text. A recipe file is called by its name, so the name is only a comment in it.

        Examples
        --------
        >>> from protail.recipes import load_recipe
        >>> print(load_recipe("ncm").to_toml().splitlines()[0])
        # ncm
        """
        resolved = self.resolved()
        lines = [f"# {self.name}", *(f"{key} = {toml_text(resolved[key])}" for key in WORDS)]
        for stage in self.stages:
            lines += ["", f"[{stage}]"]
            lines += [f"{key} = {toml_text(value)}" for key, value in resolved[stage].items()]
        return "\n".join(lines) + "\n"


def read_table(
    table: Mapping[str, Any], place: Place, bases: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read the arguments of `Recipe`: name, words, and stages, which may start from others."""
    known = ["name", *WORDS, *STAGES]
    for key in table:
        if key not in known:
            raise place.unknown_key(key, known)
    values = {key: table[key] for key in ("name", *WORDS) if key in table}
    _check_words(values, place)
    for stage in STAGES:
        given = table.get(stage)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise place.at(stage).unexpected(given, "a table")
        values[stage] = read_stage(stage, given, place.at(stage), (bases or {}).get(stage))
    return values


def _check_words(words: Mapping[str, Any], place: Place) -> None:
    for key in ("name", "title"):
        if key not in words:
            raise place.error(f"{key} is missing; expected text of one line.")
    for key, text in words.items():
        needed = key in ("name", "title")
        if not isinstance(text, str) or "\n" in text or (needed and not text.strip()):
            raise place.at(key).unexpected(text, "text of one line")


def read_stage(
    stage: str, given: Mapping[str, Any], place: Place, base: Settings | None = None
) -> Settings:
    """Make settings of what is given; what is not comes from ``base``, or is a default."""
    kind = STAGES[stage]
    known = read_options(kind)
    table = _merge(stage_table(base or kind()), given, known, place)
    values = {key: conform(value, known[key], place.at(key)) for key, value in table.items()}
    for part in _parts(table):
        options = values[part + _OPTIONS]
        values[part + _OPTIONS] = _complete(part, values[part], options, place)
    settings = kind(**values)
    check_settings(settings, place)
    vars(settings)[_CHECKED] = True
    return settings


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
    >>> from protail.recipes import options_taken
    >>> list(options_taken("head", "prototype"))
    ['distance', 'temperature', 'temperature_form', 'initial_temperature', 'normalize']
    """
    return PARTS[part].options(name)


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
    >>> from protail.recipes import stage_table
    >>> from protail.training import ClassifierSettings
    >>> stage_table(ClassifierSettings())["lr"]
    4.0
    """
    table = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}


def _complete(part: str, name: str, options: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Check the options of a part of a stage, and spell out its defaults."""
    registry = PARTS[part]
    try:
        registry.taking(name, options)
    except ValueError as error:
        raise place.error(f"{place.key}.{part}_options: {error}") from None
    complete = {
        key: conform(options[key], option, place.at(key)) if key in options else option.default
        for key, option in registry.options(name).items()
    }
    try:
        registry.check_values(name, complete)
    except (TypeError, ValueError) as error:
        raise place.error(f"{place.key}.{error}") from None
    return complete


def _parts(table: Mapping[str, Any]) -> list[str]:
    return [key.removesuffix(_OPTIONS) for key in table if key.endswith(_OPTIONS)]


def _merge(
    table: dict[str, Any], given: Mapping[str, Any], known: Mapping[str, Option], place: Place
) -> dict[str, Any]:
    """Lay what is given over a table. Another part starts without the last one's options."""
    for part in _parts(table):
        name = conform(given.get(part, table[part]), known[part], place.at(part))
        if name not in (names := PARTS[part].names()):
            raise place.error(unknown_part(f"{place.key}.{part}", name, names))
        if name != table[part]:
            table[part], table[part + _OPTIONS] = name, {}
    for key, value in given.items():
        if key.endswith(_OPTIONS) and key in table:
            table[key] |= conform(value, known[key], place.at(key))
        elif key in table:
            table[key] = value
    for key in [key for key in given if key not in table]:
        owner = _owner(key, table, place) + _OPTIONS
        if key in given.get(owner, {}):
            raise place.at(key).unexpected(given[key], f"it once; {owner}.{key} is there too")
        table[owner][key] = given[key]
    return table


def _owner(key: str, table: Mapping[str, Any], place: Place) -> str:
    """Find the part of this stage that takes an option."""
    taken = {part: options_taken(part, table[part]) for part in _parts(table)}
    takers = [part for part, options in taken.items() if key in options]
    if len(takers) == 1:
        return takers[0]
    if takers:
        longer = " or ".join(f"{part}{_OPTIONS}.{key}" for part in takers)
        raise place.error(f"{place.key}.{key} may be several things; write {longer} instead.")
    elsewhere = [
        f"{part} {name!r}"
        for part, registry in PARTS.items()
        for name in registry.names()
        if key in registry.options(name)
    ]
    if elsewhere:
        own = ", ".join(f"{part} {table[part]!r}" for part in taken)
        raise place.error(
            f"{place.key}.{key} is an option of {', '.join(elsewhere)}; this stage has {own}."
        )
    raise place.unknown_key(
        key, [*table, *(name for options in taken.values() for name in options)]
    )


def recipe_hash(resolved: Mapping[str, Any]) -> str:
    """Name what a recipe computes: its stages, whatever it is called.

    Parameters
    ----------
    resolved : mapping of str to object
        What `Recipe.resolved` gave.

    Returns
    -------
    str
        SHA-256 of the stages as canonical JSON; 4 and 4.0 are the same number.

    Examples
    --------
    >>> from protail.recipes import load_recipe, recipe_hash
    >>> pc, pc_la = (load_recipe(name) for name in ("pc", "pc-la"))
    >>> recipe_hash(pc.resolved()) == recipe_hash(pc_la.resolved())
    False
    >>> same = pc.with_overrides({"classifier.tau": "0.25"})
    >>> recipe_hash(same.resolved()) == recipe_hash(pc_la.resolved())
    True
    """
    stages = {stage: _named(resolved[stage]) for stage in STAGES if stage in resolved}
    text = json.dumps(stages, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _named(stage: Mapping[str, Any] | None) -> Any:
    """Leave out settings that came later, where they change nothing, so that hashes stay."""
    if stage is None:
        return None
    return _canonical({key: value for key, value in stage.items() if (key, value) not in _LATER})


def _canonical(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_canonical(item) for item in value]
        case dict():
            return {key: _canonical(item) for key, item in value.items()}
    return value

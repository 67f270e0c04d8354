"""The settings that a search varies, and what each of them may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from protail._messages import unknown_name
from protail.recipes._recipe import Recipe
from protail.recipes._stages import STAGES, stage_table
from protail.recipes._toml import parse_value, toml_text

# What is tried where a key is named without a range, wider where the recipe's own value is not
# in it.
_USUAL = {
    "representation.weight_decay": "1e-4:1e-2:log",
    "representation.lr": "3e-3:0.3:log",
    "representation.tau": "0:1",
    "representation.mixup": "0:1",
    "classifier.weight_decay": "1e-6:1e-2:log",
    "classifier.lr": "0.1:10:log",
    "classifier.temperature_lr": "1e-4:1:log",
    "classifier.tau": "0:1",
    "classifier.normalize": "choice:none,10,20,40",
}
_CHOICE, _LOG = "choice:", ":log"
_FORMS = "LOW:HIGH, LOW:HIGH:log or choice:A,B,C"


@dataclass(frozen=True)
class SearchedKey:
    """A setting that a search varies.

    Made by `read_searched_key`.

    Attributes
    ----------
    key : str
        With dots, as in ``classifier.tau``.
    low, high : float
        The ends of its range, both whole numbers where the setting is one.
    is_log : bool
        Whether equal factors, not equal differences, are equally likely.
    choices : tuple of str, int, float or bool
        What it may be, where it has no range; else empty.
    """

    key: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    choices: tuple[str | int | float | bool, ...] = ()

    @property
    def stage(self) -> str:
        """The stage that it belongs to."""
        return self.key.partition(".")[0]

    @property
    def text(self) -> str:
        """What it may be, as users write it."""
        if self.choices:
            return _CHOICE + ",".join(_shown(choice) for choice in self.choices)
        return f"{self.low!r}:{self.high!r}" + (_LOG if self.is_log else "")

    def holds(self, value: Any) -> bool:
        """Say whether a value is one that the search may try."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


def read_searched_keys(texts: Iterable[str], recipe: Recipe) -> tuple[SearchedKey, ...]:
    """Read which settings a search varies.

    Parameters
    ----------
    texts : iterable of str
        Each ``KEY=LOW:HIGH``, ``KEY=LOW:HIGH:log``, ``KEY=choice:A,B,C``, or a ``KEY`` that has a
        usual range, which is widened where it does not hold the recipe's own value.
    recipe : Recipe
        Whose settings they are; each value is tried on it.

    Returns
    -------
    tuple of SearchedKey
        In the same order.

    Examples
    --------
    >>> from protail.recipes import load_recipe
    >>> from protail.recipes.search import read_searched_keys
    >>> texts = ["classifier.tau=0:1", "classifier.lr", "classifier.normalize=choice:none,10"]
    >>> for one in read_searched_keys(texts, load_recipe("pc-la")):
    ...     print(one.key, one.text)
    classifier.tau 0.0:1.0
    classifier.lr 0.1:10.0:log
    classifier.normalize choice:none,10
    """
    keys = tuple(_read(text, recipe) for text in texts)
    if not keys:
        raise ValueError(
            "--over is missing; expected at least one setting to vary, as in "
            "--over classifier.tau=0:1."
        )
    names = [one.key for one in keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"--over names {twice!r} twice; expected it once.")
    return keys


def value_of(recipe: Recipe, key: str) -> Any:
    """Give what a recipe says under a key with dots.

    Parameters
    ----------
    recipe : Recipe
        What to read.
    key : str
        As `Recipe.with_overrides` takes it, the short form of options included.

    Returns
    -------
    object
        The value; "none" for nothing, as recipes write it.

    Examples
    --------
    >>> from protail.recipes import load_recipe
    >>> from protail.recipes._search_keys import value_of
    >>> value_of(load_recipe("pc-la"), "classifier.tau")
    0.25
    """
    value = next(table[last] for table, last in _tables(recipe, key))
    return "none" if value is None else value


def _tables(recipe: Recipe, key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Find the tables of a recipe that have a key, and what it is called there."""
    stage, *path = key.split(".")
    settings = getattr(recipe, stage)
    if settings is None or not path:
        return
    table = stage_table(settings)
    options = {name: part for name, part in table.items() if name.endswith("_options")}
    tables = [table, *options.values()] if len(path) == 1 else [options.get(path[0], {})]
    yield from ((one, path[-1]) for one in tables if path[-1] in one)


def _read(text: str, recipe: Recipe) -> SearchedKey:
    key, equals, wanted = (part.strip() for part in text.partition("="))
    stage = key.partition(".")[0]
    if stage not in STAGES:
        raise ValueError(f"--over {text!r}: {unknown_name('stage', stage, STAGES)}")
    if not equals:
        if not any(_tables(recipe, key)):
            recipe.with_overrides({key: 0})  # says what is wrong with the key
        if key not in _USUAL:
            raise ValueError(
                f"--over {text!r} has no range, and {key} has no usual one; expected {key}= and "
                f"{_FORMS}."
            )
        usual = _read_wanted(key, _USUAL[key], recipe)
        wanted = _around(usual, value_of(recipe, key)).text
    return _read_wanted(key, wanted, recipe)


def _around(usual: SearchedKey, own: Any) -> SearchedKey:
    """Widen a usual range until it holds the recipe's own value, with room beyond it."""
    if usual.holds(own):
        return usual
    if usual.choices:
        return replace(usual, choices=(own, *usual.choices))
    if not isinstance(own, int | float):
        return usual
    if usual.is_log and own == 0:
        # No factor leads to 0: beside it stand the powers of ten.
        first, last = math.ceil(math.log10(usual.low)), math.floor(math.log10(usual.high))
        return SearchedKey(usual.key, choices=(own, *(10.0**n for n in range(first, last + 1))))
    factor = 10 if usual.is_log else 2
    if own < usual.low:
        return replace(usual, low=own / factor)
    return replace(usual, high=own * factor)


def _read_wanted(key: str, wanted: str, recipe: Recipe) -> SearchedKey:
    if wanted.startswith(_CHOICE):
        return _read_choices(key, wanted, recipe)
    return _read_range(key, wanted, recipe)


def _read_choices(key: str, wanted: str, recipe: Recipe) -> SearchedKey:
    choices = tuple(parse_value(word.strip()) for word in wanted.removeprefix(_CHOICE).split(","))
    plain = all(isinstance(choice, str | int | float) and choice != "" for choice in choices)
    if len(choices) < 2 or len(set(choices)) < len(choices) or not plain:
        raise _bad_range(key, wanted, "two or more different choices, as in choice:none,10,20")
    for choice in choices:
        recipe.with_overrides({key: choice})
    return SearchedKey(key, choices=choices)


def _read_range(key: str, wanted: str, recipe: Recipe) -> SearchedKey:
    is_log = wanted.endswith(_LOG)
    ends = [_number(word) for word in wanted.removesuffix(_LOG).split(":")]
    if len(ends) != 2 or None in ends:
        raise _bad_range(key, wanted, _FORMS)
    low, high = (value_of(recipe.with_overrides({key: end}), key) for end in ends)
    if not low < high:
        raise _bad_range(key, wanted, "a low end below the high one")
    if is_log and not low > 0:
        raise _bad_range(key, wanted, "a low end above 0 with log")
    return SearchedKey(key, low, high, is_log)


def _number(word: str) -> float | int | None:
    """Read a number; whole ones stay whole, because some settings take no other."""
    try:
        number = float(word)
    except ValueError:
        return None
    whole = word.strip().lstrip("+-").isdigit()
    return int(word) if whole else number if math.isfinite(number) else None


def _bad_range(key: str, wanted: str, expected: str) -> ValueError:
    return ValueError(f"--over {key}={wanted}: this is no range; expected {expected}.")


def _shown(choice: Any) -> str:
    return choice if isinstance(choice, str) else toml_text(choice)

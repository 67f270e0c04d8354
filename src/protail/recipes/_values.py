"""The values of a recipe: written as TOML, read as their annotations want them, and complained of.

Python reads TOML but does not write it.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from protail._messages import unknown_name
from protail.options import OneOf, Option

NONE = "none"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a table",
}


def toml_text(value: Any) -> str:
    """Write a value in TOML.

    Parameters
    ----------
    value : object
        None, which becomes ``"none"``; text, numbers, booleans, lists and tables of them.
        Anything else is shown as Python shows it.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> from protail.recipes import toml_text
    >>> print(toml_text({"tau": 0.25, "distance": None, "on": [True, 1]}))
    {tau = 0.25, distance = "none", on = [true, 1]}
    """
    match value:
        case None:
            return f'"{NONE}"'
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are TOML's, but for one character that TOML wants escaped too.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
        case dict():
            pairs = (f"{_key(key)} = {toml_text(part)}" for key, part in value.items())
            return "{" + ", ".join(pairs) + "}"
    return repr(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_text(key)


def parse_value(text: str) -> Any:
    """Read a value as TOML; what is no TOML value is text that needs no quotes.

    Parameters
    ----------
    text : str
        What stands behind the equals sign.

    Returns
    -------
    object
        The value.

    Examples
    --------
    >>> from protail.recipes import parse_value
    >>> [parse_value(text) for text in ("0.5", "cosine", "true", '["crop", "flip"]')]
    [0.5, 'cosine', True, ['crop', 'flip']]
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if list(table) == ["value"] else text


class RecipeError(ValueError):
    """Say what is wrong in a recipe, where, and what was expected.

    Examples
    --------
    >>> from protail.recipes import RecipeError, load_recipe
    >>> try:
    ...     load_recipe("pc-la").with_overrides({"classifier.lr": "fast"})
    ... except RecipeError as error:
    ...     print(error)
    recipe 'pc-la': classifier.lr = "fast"; expected a number.
    """


class Place(NamedTuple):
    """A key, with dots, of a recipe or its file; the whole recipe where the key is empty."""

    source: str
    key: str = ""

    def at(self, key: str) -> Place:
        """Go to a key below this one."""
        return Place(self.source, f"{self.key}.{key}" if self.key else key)

    def error(self, text: object) -> RecipeError:
        """Make an error out of a sentence that names the key itself."""
        return RecipeError(f"{self.source}: {text}")

    def unexpected(self, value: Any, expected: object) -> RecipeError:
        """Make an error that says what came here and what was expected."""
        return self.error(f"{self.key} = {toml_text(value)}; expected {expected}.")

    def unknown(self, name: str, valid: Iterable[str]) -> RecipeError:
        """Make an error about a name that is none of ``valid``."""
        return self.error(unknown_name(self.key, name, valid))

    def unknown_key(self, key: str, valid: Iterable[str]) -> RecipeError:
        """Make an error about a key that this table does not have."""
        return self.error(unknown_name(f"{self.key} key".strip(), key, valid))


class _MisfitError(Exception):
    """A value is of another type than its annotation."""


def conform(value: Any, option: Option, place: Place) -> Any:
    """Give a value in the type and the range of an option: 4 as 4.0, a list as a tuple."""
    allowed, expected = option.allowed, None
    try:
        fitted = _fit(value, option.hint)
        if fitted is None or allowed is None or fitted in allowed:
            return fitted
        expected = allowed
    except _MisfitError:
        fitted = value
    names = list(allowed.names) if isinstance(allowed, OneOf) else _names(option.hint)
    if names and (expected or isinstance(fitted, str)):
        raise place.unknown(fitted, [*names, NONE] if option.may_be_none else names)
    raise place.unexpected(fitted, expected or _describe(option.hint))


def _fit(value: Any, hint: Any) -> Any:
    """Give a value in the type of an annotation; where there is none it may be what JSON holds."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in (Union, UnionType):
        return _fit_any(value, arguments)
    if kind is tuple:
        if isinstance(value, list | tuple):
            hints = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
            if len(hints) == len(value):
                return tuple(map(_fit, value, hints))
    elif kind is Literal:
        if isinstance(value, str) and value in arguments:
            return value
    elif kind is float:
        if is_number and abs(value) <= sys.float_info.max:
            return float(value)
    elif kind is int:
        if is_number and isinstance(value, int):
            return value
    elif kind is str:
        if isinstance(value, str) and value.strip():
            return value
    elif kind not in (bool, dict) or isinstance(value, kind):
        return plain(value)
    raise _MisfitError


def _fit_any(value: Any, hints: tuple[Any, ...]) -> Any:
    if NoneType in hints and (value is None or value == NONE):
        return None
    for hint in (one for one in hints if one is not NoneType):
        with suppress(_MisfitError):
            return _fit(value, hint)
    raise _MisfitError


def plain(value: Any) -> Any:
    """Copy what JSON can hold, tuples as lists; anything else does not fit."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return list(map(plain, value))
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
    raise _MisfitError


def _names(hint: Any) -> list[str]:
    """List the names that an annotation allows, if it allows names only."""
    if get_origin(hint) in (Union, UnionType):
        return [name for one in get_args(hint) for name in _names(one)]
    return list(get_args(hint)) if get_origin(hint) is Literal else []


def _describe(hint: Any) -> str:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        words = [_describe(one) for one in arguments if one is not NoneType]
        return " or ".join([*words, f'"{NONE}"'] if NoneType in arguments else words)
    if kind is Literal:
        return "one of " + ", ".join(f'"{name}"' for name in arguments)
    if kind is tuple and arguments[-1] is Ellipsis:
        return f"a list, each item {_describe(arguments[0])}"
    if kind is tuple:
        return f"a list of {' and '.join(map(_describe, arguments))}"
    return _WORDS.get(kind, "text, a number, true, false, or a list or table of them")

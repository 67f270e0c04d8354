"""Values as their annotations want them."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from protail.recipes._places import Place
from protail.recipes._toml import NONE

_MISFIT = object()
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a table",
}


def conform(value: Any, hint: Any, place: Place) -> Any:
    """Give the value in the type its annotation says, or say what is wrong with it.

    Parameters
    ----------
    value : object
        As read from TOML or JSON.
    hint : type
        ``int``, ``float``, ``bool``, ``str``, ``Literal``, ``tuple``, ``dict``, and unions of
        them with None. Anything else takes what JSON can hold.
    place : Place
        Where it stands.

    Returns
    -------
    object
        A whole number became a float where one is wanted, a list a tuple, "none" None.

    Examples
    --------
    >>> from protail.recipes._places import Place
    >>> from protail.recipes._types import conform
    >>> conform(4, float, Place("a.toml", "classifier.lr"))
    4.0
    >>> conform("none", int | None, Place("a.toml", "classifier.max_steps"))
    """
    fitted = _fit(value, hint)
    if fitted is not _MISFIT:
        return fitted
    choices = _choices(hint)
    if choices and isinstance(value, str):
        raise place.unknown(value, choices)
    raise place.unexpected(value, _describe(hint))


def _fit(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _fit_any(value, arguments)
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else _MISFIT
    if origin is tuple:
        return _fit_tuple(value, arguments)
    if hint is bool:
        return value if isinstance(value, bool) else _MISFIT
    if hint in (int, float):
        return _fit_number(value, hint)
    if hint is str:
        return value if isinstance(value, str) and value.strip() else _MISFIT
    if origin is dict and not isinstance(value, dict):
        return _MISFIT
    return plain(value)


def _fit_any(value: Any, alternatives: tuple[Any, ...]) -> Any:
    if NoneType in alternatives and (value is None or value == NONE):
        return None
    fits = (_fit(value, one) for one in alternatives if one is not NoneType)
    return next((fitted for fitted in fits if fitted is not _MISFIT), _MISFIT)


def _fit_tuple(value: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, (list, tuple)):
        return _MISFIT
    hints = (arguments[0],) * len(value) if arguments[-1] is Ellipsis else arguments
    if len(hints) != len(value):
        return _MISFIT
    fitted = tuple(map(_fit, value, hints))
    return _MISFIT if any(one is _MISFIT for one in fitted) else fitted


def _fit_number(value: Any, hint: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _MISFIT
    if hint is int:
        return value if isinstance(value, int) else _MISFIT
    try:
        number = float(value)
    except OverflowError:
        return _MISFIT
    return number if math.isfinite(number) else _MISFIT


def plain(value: Any) -> Any:
    """Copy what JSON can hold, tuples as lists; anything else does not fit."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _MISFIT
        case list() | tuple():
            items = [plain(item) for item in value]
            return _MISFIT if any(item is _MISFIT for item in items) else items
        case dict():
            table = {str(key): plain(item) for key, item in value.items()}
            return _MISFIT if any(item is _MISFIT for item in table.values()) else table
    return _MISFIT


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        named = [name for one in get_args(hint) for name in _choices(one)]
        return [*named, NONE] if named and NoneType in get_args(hint) else named
    return []


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        words = [_describe(one) for one in arguments if one is not NoneType]
        return " or ".join([*words, f'"{NONE}"'] if NoneType in arguments else words)
    if origin is Literal:
        return "one of " + ", ".join(f'"{name}"' for name in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a list, each item {_describe(arguments[0])}"
    if origin is tuple:
        return f"a list of {' and '.join(map(_describe, arguments))}"
    return _WORDS.get(origin or hint, "text, a number, true, false, or a list or table of them")

"""Values as TOML writes them; Python reads TOML but does not write it."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

NONE = "none"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


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
    >>> from protail.recipes._toml import toml_text
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
    >>> from protail.recipes._toml import parse_value
    >>> [parse_value(text) for text in ("0.5", "cosine", "true", '["crop", "flip"]')]
    [0.5, 'cosine', True, ['crop', 'flip']]
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if list(table) == ["value"] else text

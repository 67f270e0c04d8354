"""Strict JSON: what is read back is what was written, or it is refused when it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def as_json(value: object, where: str) -> Any:
    """Give ``value`` as JSON will give it back; raise where it cannot.

    Mappings become dicts, tuples become lists. Keys that are no text, numbers that are not
    finite and everything JSON has no word for are refused.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {float(value)}; expected a finite number.")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [as_json(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; expected text as keys.")
        return {key: as_json(item, f"{where}.{key}") for key, item in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__name__}; expected text, a number, true or false, nothing, "
        "or a list or mapping of these."
    )


def read_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; whatever is wrong with the text is a ValueError."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def differing_keys(there: object, now: object, where: str = "") -> list[str]:
    """Say, with dotted keys, where two JSON values differ."""
    if isinstance(there, dict) and isinstance(now, dict):
        dot = f"{where}." if where else ""
        return [
            line
            for key in sorted({*there, *now})
            for line in differing_keys(there.get(key, _ABSENT), now.get(key, _ABSENT), dot + key)
        ]
    return [] if there == now else [f"{where} ({_shown(there)} there, {_shown(now)} now)"]


_ABSENT = object()


def _shown(value: object) -> str:
    if value is _ABSENT:
        return "absent"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no finite number")

"""The values of a model's JSON, checked as they are taken out."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Collection
from typing import Any


class FlawError(Exception):
    """Something in a model that cannot be right.

    Parameters
    ----------
    file : str
        Name of the file it is in.
    problem : str
        What came and what was expected.
    advice : str
        What to do about it.
    """

    def __init__(self, file: str, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.file = file
        self.problem = problem
        self.advice = advice or (
            "The model is damaged or was changed by hand: get a fresh copy, or save it again."
        )


class Fields:
    """A JSON object whose keys are known.

    Parameters
    ----------
    found : object
        What came.
    names : collection of str
        The keys it must have; it may have no others.
    file, where : str
        The file it is in, and its own key there.
    """

    def __init__(self, found: object, names: Collection[str], file: str, where: str = "") -> None:
        self._file = file
        self._where = where
        if not isinstance(found, dict):
            raise FlawError(file, f"{where or 'it'} is {_shown(found)}; expected a JSON object.")
        strange, missing = sorted(set(found) - set(names)), sorted(set(names) - set(found))
        for kind, keys in (("unknown", strange), ("missing", missing)):
            if keys:
                raise FlawError(
                    file, f"{kind} {self._path(keys[0])}; expected the keys {', '.join(names)}."
                )
        self._found: dict[str, Any] = found

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def wrong(self, name: str, expected: str) -> FlawError:
        """Make the error for a value that is not what was expected."""
        return FlawError(
            self._file, f"{self._path(name)} is {_shown(self[name])}; expected {expected}."
        )

    def number(
        self,
        name: str,
        *,
        least: float | None = None,
        above: float | None = None,
        most: float = sys.float_info.max,
    ) -> float:
        """Take a finite number."""
        value = self[name]
        if (
            type(value) in (int, float)
            and -sys.float_info.max <= value <= most
            and (least is None or value >= least)
            and (above is None or value > above)
        ):
            return float(value)
        limits = [] if most == sys.float_info.max else [f"at most {most:g}"]
        limits += [] if least is None else [f"at least {least:g}"]
        limits += [] if above is None else [f"above {above:g}"]
        raise self.wrong(name, " ".join(["a finite number", " and ".join(limits)]).strip())

    def number_or_none(self, name: str, **limits: float) -> float | None:
        """Take a finite number or null."""
        return None if self[name] is None else self.number(name, **limits)

    def whole(self, name: str, *, least: int = 0) -> int:
        """Take a whole number that 64 bits can hold."""
        value = self[name]
        if type(value) is int and least <= value < 2**63:
            return value
        raise self.wrong(name, f"a whole number of at least {least}")

    def truth(self, name: str) -> bool:
        """Take true or false."""
        if isinstance(self[name], bool):
            return bool(self[name])
        raise self.wrong(name, "true or false")

    def text(self, name: str) -> str:
        """Take a string."""
        if isinstance(self[name], str):
            return str(self[name])
        raise self.wrong(name, "a string")

    def one_of(self, name: str, valid: Collection[str | None]) -> Any:
        """Take one of a few values."""
        # A list or an object could not be looked up in a set.
        if isinstance(self[name], (str, type(None))) and self[name] in valid:
            return self[name]
        raise self.wrong(name, "one of " + ", ".join(map(repr, valid)))

    def list_of(self, name: str, kind: type) -> list[Any]:
        """Take a list whose entries are all of one type."""
        value = self[name]
        if isinstance(value, list) and all(type(entry) is kind for entry in value):
            return value
        raise self.wrong(name, f"a list of {kind.__name__} only")

    def _path(self, name: str) -> str:
        return repr(f"{self._where}.{name}" if self._where else name)


def _shown(value: object) -> str:
    return reprlib.repr(value)

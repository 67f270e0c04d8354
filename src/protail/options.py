"""What an option may be: ranges and names that stand in the annotation of a parameter.

``tau: NonNegative = 1.0`` in the signature of a loss, head, method or sampler says that tau is a
finite number of at least 0. Recipes are checked against it without making the part, and
`checked` lets the function itself refuse any other value.

- `NonNegative`, `Positive`: a finite number >= 0, or > 0.
- `BelowOne`, `Fraction`: a number from 0 to 1, with 1 or without.
- `Count`, `Epoch`: a whole number >= 1, or >= 0.
- ``Annotated[float, Range(2, 8)]``, ``Annotated[str, OneOf(("mean", "sum"))]``: anything else.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from protail._messages import unknown_name

__all__ = [
    "BelowOne", "Count", "Epoch", "Fraction", "NonNegative", "OneOf", "Option", "Positive", "Range",
    "checked", "read_options",
]  # fmt: skip

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Range:
    """The numbers that an option may be.

    Parameters
    ----------
    low, high : float
        The ends.
    closed : {"left", "both", "neither"}
        Which of the ends belong to it.
    kind : type
        int for whole numbers, otherwise float.

    Examples
    --------
    >>> from protail.options import Range
    >>> 2.0 in Range(high=2), 2.0 in Range(high=2, closed="both"), str(Range(1, kind=int))
    (False, True, 'a whole number >= 1')
    """

    low: float = 0
    high: float = math.inf
    closed: Literal["left", "both", "neither"] = "left"
    kind: type = float

    def __contains__(self, value: Any) -> bool:
        kind = Integral if self.kind is int else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        number: Any = value
        above = self.low < number or (self.closed != "neither" and number == self.low)
        below = number < self.high or (self.closed == "both" and number == self.high)
        return bool(above and below)

    def __str__(self) -> str:
        kind = "whole " if self.kind is int else "finite " if self.high == math.inf else ""
        words = f"a {kind}number {'>' if self.closed == 'neither' else '>='} {self.low:g}"
        if self.high < math.inf:
            words += f" and {'<=' if self.closed == 'both' else '<'} {self.high:g}"
        return words

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless a value is in the range."""
        if value not in self:
            raise ValueError(f"{name}={value!r}; expected {self}.")


@dataclass(frozen=True)
class OneOf:
    """The names, or other values, that an option may be.

    Parameters
    ----------
    names : tuple
        All of them.

    Examples
    --------
    >>> from protail.options import OneOf
    >>> OneOf(("mean", "sum")).check("reduction", "men")
    Traceback (most recent call last):
    ValueError: reduction='men' is unknown; expected one of 'mean', 'sum'. Did you mean 'mean'?
    """

    names: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.names

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless a value is one of the names."""
        if value not in self:
            raise ValueError(unknown_name(name, value, self.names))


NonNegative = Annotated[float, Range()]
"""A finite number >= 0."""
Positive = Annotated[float, Range(closed="neither")]
"""A finite number > 0."""
BelowOne = Annotated[float, Range(high=1)]
"""A number from 0 to 1, without 1."""
Fraction = Annotated[float, Range(high=1, closed="both")]
"""A number from 0 to 1."""
Count = Annotated[int, Range(1, kind=int)]
"""A whole number >= 1."""
Epoch = Annotated[int, Range(kind=int)]
"""A whole number >= 0."""


@dataclass(frozen=True)
class Option:
    """What a signature says of a parameter.

    Parameters
    ----------
    hint : type
        Its annotation, without what it says of values.
    default : object
        What it is when nobody says; ``inspect.Parameter.empty`` where somebody must.
    allowed : Range, OneOf or None
        What its annotation says of values.
    """

    hint: Any
    default: Any
    allowed: Range | OneOf | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is allowed; types are not checked."""
        if self.allowed is not None and not (value is None and self.may_be_none):
            self.allowed.check(name, value)

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def may_be_none(self) -> bool:
        """Whether None is one of its types."""
        return NoneType in get_args(self.hint)


def read_options(function: Callable[..., Any], given: Iterable[str] = ()) -> dict[str, Option]:
    """Read the options of a function or class out of its signature.

    Parameters
    ----------
    function : callable
        Function or class.
    given : iterable of str
        Parameters that are no options, because whoever calls it fills them in.

    Returns
    -------
    dict of str to Option
        By name, in the order of the signature.

    Examples
    --------
    >>> from protail.options import NonNegative, read_options
    >>> def pulled(counts, *, pull: NonNegative = 0.1): ...
    >>> options = read_options(pulled, given=["counts"])
    >>> options["pull"].default, str(options["pull"].allowed)
    (0.1, 'a finite number >= 0')
    """
    return dict(_read(function, frozenset(given)))


def checked(function: Function) -> Function:
    """Let a function raise ValueError unless its arguments are in the ranges it declares.

    Parameters
    ----------
    function : callable
        Function or ``__init__`` of a class.

    Returns
    -------
    callable
        The same, with the check in front.

    Examples
    --------
    >>> from protail.options import NonNegative, checked
    >>> @checked
    ... def pulled(pull: NonNegative = 0.1): ...
    >>> pulled(-1.0)
    Traceback (most recent call last):
    ValueError: pull=-1.0; expected a finite number >= 0.
    """

    @functools.wraps(function)
    def with_check(*arguments: Any, **options: Any) -> Any:
        bound = inspect.signature(function).bind(*arguments, **options)
        bound.apply_defaults()
        for name, option in _read(function, frozenset()).items():
            option.check(name, bound.arguments[name])
        return function(*arguments, **options)

    return cast(Function, with_check)


@functools.cache
def _read(function: Callable[..., Any], given: frozenset[str]) -> dict[str, Option]:
    signature = inspect.signature(function, eval_str=True)
    return {
        parameter.name: _option(parameter.annotation, parameter.default)
        for parameter in signature.parameters.values()
        if parameter.name not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _option(hint: Any, default: Any) -> Option:
    """Take out of an annotation what it says of values."""
    if get_origin(hint) is Annotated:
        kind, *others = get_args(hint)
        allowed = [each for each in others if isinstance(each, Range | OneOf)]
        return Option(kind, default, allowed[0] if allowed else None)
    if get_origin(hint) in (Union, UnionType):
        # Files hold no objects of classes: those are for whoever writes Python.
        kinds = [kind for kind in get_args(hint) if not _is_class(kind)]
        parts = [_option(part, default) for part in kinds]
        whole = functools.reduce(operator.or_, (part.hint for part in parts))
        return Option(whole, default, next((part.allowed for part in parts if part.allowed), None))
    return Option(hint, default)


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__ != "builtins"

"""Things made by name: each registers itself, and its signature says what it takes."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

from protail._messages import unknown_name, unknown_part

Made = TypeVar("Made")
Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True)
class Range:
    """The numbers that an option may be; part of its annotation, as in ``tau: NonNegative``.

    Attributes
    ----------
    low, high : float
        The ends.
    closed : {"left", "both", "neither"}
        Which of the ends belong to it.
    kind : type
        int for whole numbers, otherwise float.
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
        """Raise unless a value is in the range."""
        if value not in self:
            raise ValueError(f"{name}={value!r}; expected {self}.")


@dataclass(frozen=True)
class OneOf:
    """The names, or other values, that an option may be; part of its annotation."""

    names: tuple[Any, ...]

    def check(self, name: str, value: Any) -> None:
        """Raise unless a value is one of the names."""
        if value not in self.names:
            raise ValueError(unknown_name(name, value, self.names))


NonNegative = Annotated[float, Range()]
Positive = Annotated[float, Range(closed="neither")]
BelowOne = Annotated[float, Range(high=1)]
Fraction = Annotated[float, Range(high=1, closed="both")]
Count = Annotated[int, Range(1, kind=int)]
Epoch = Annotated[int, Range(kind=int)]


@dataclass(frozen=True)
class Option:
    """Say what an option may be.

    Attributes
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
        """Raise unless the value is allowed; types are not looked at."""
        if self.allowed is not None and not (value is None and NoneType in get_args(self.hint)):
            self.allowed.check(name, value)

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty


class Registry(Generic[Made]):
    """Know functions and classes by name, and make what they make.

    Parameters
    ----------
    what : str
        What is made, in one word.
    given : iterable of str
        Parameters that whoever makes it fills in. All others are options.
    package : str, optional
        Imported, with every module in it, before a name is looked up: a file in it that
        registers something is all that a new thing needs.

    Examples
    --------
    >>> from protail._registry import Registry
    >>> shapes = Registry("shape", given=["side"])
    >>> @shapes.register("box")
    ... def make_box(side: float, height: float = 1.0) -> float:
    ...     return side * side * height
    >>> shapes.names(), list(shapes.options("box")), shapes.make("box", 2, height=3)
    (['box'], ['height'], 12)
    """

    def __init__(self, what: str, given: Iterable[str], package: str | None = None) -> None:
        self.what = what
        self._given = frozenset(given)
        self._package = package
        self._factories: dict[str, Callable[..., Made]] = {}
        self._needs: dict[str, dict[str, Any]] = {}

    def register(self, name: str, **needs: Any) -> Callable[[Factory], Factory]:
        """Give a function or class a name.

        Parameters
        ----------
        name : str
            What users will write. It must be free.
        **needs
            What it must come together with, for whoever puts things together.

        Returns
        -------
        callable
            A decorator.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"name={name!r} is no name for a {self.what}; expected text.")

        def remember(factory: Factory) -> Factory:
            known = self._factories.get(name)
            if known is not None and _origin(known) != _origin(factory):
                raise ValueError(
                    f"name={name!r} is already a {self.what}. Choose another name for "
                    f"{factory.__qualname__}."
                )
            self._factories[name] = factory
            self._needs[name] = needs
            return factory

        return remember

    def names(self) -> list[str]:
        """List every name, in the order of the alphabet."""
        return sorted(self._known())

    def factory(self, name: str) -> Callable[..., Made]:
        """Find what ``name`` stands for."""
        if name not in self._known():
            raise ValueError(unknown_part(self.what, name, self.names()))
        return self._factories[name]

    def needs(self, name: str) -> dict[str, Any]:
        """Give what ``name`` must come together with, as it was registered."""
        self.factory(name)
        return dict(self._needs[name])

    def options(self, name: str) -> dict[str, Option]:
        """Read out of its signature what ``name`` takes beside what is given."""
        return dict(_options(self.factory(name), self._given))

    def check(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise unless ``name`` takes these options and lacks none."""
        taken = self.options(name)
        listed = ", ".join(map(repr, taken)) or "none"
        for option in options:
            if option not in taken:
                raise ValueError(
                    f"{self.what} {name!r} takes no option {option!r}; options it takes: {listed}."
                )
        for option, about in taken.items():
            if about.is_required and option not in options:
                raise ValueError(f"{self.what} {name!r} needs the option {option!r}.")

    def check_values(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise unless the values of the options can be, without making anything.

        Options keep to the `Range` or `OneOf` in their annotations. What several must keep to
        together, a class says in a static method ``check_options``, which takes all of them.
        """
        taken = self.options(name)
        values = {option: about.default for option, about in taken.items()} | dict(options)
        for option, about in taken.items():
            about.check(option, values[option])
        check = getattr(self.factory(name), "check_options", None)
        if check is not None:
            check(**values)

    def make(self, name: str, /, *given: Any, **options: Any) -> Made:
        """Make what ``name`` stands for."""
        self.check(name, options)
        return self.factory(name)(*given, **options)

    def _known(self) -> dict[str, Callable[..., Made]]:
        if self._package is not None:
            package, self._package = import_module(self._package), None
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                import_module(module.name)
        return self._factories


def checked(function: Factory) -> Factory:
    """Let a function raise unless its arguments keep to the `Range` or `OneOf` they have."""

    @functools.wraps(function)
    def with_check(*arguments: Any, **options: Any) -> Any:
        bound = inspect.signature(function).bind(*arguments, **options)
        bound.apply_defaults()
        for name, option in _options(function, frozenset()).items():
            option.check(name, bound.arguments[name])
        return function(*arguments, **options)

    return cast(Factory, with_check)


@functools.cache
def _options(factory: Callable[..., Any], given: frozenset[str]) -> dict[str, Option]:
    signature = inspect.signature(factory, eval_str=True)
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


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    return factory.__module__, factory.__qualname__

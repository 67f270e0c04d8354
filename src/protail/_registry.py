"""Things made by name: each registers itself, and its signature says what it takes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from protail._messages import unknown_part
from protail.options import Option, read_options

Made = TypeVar("Made")
Factory = TypeVar("Factory", bound=Callable[..., Any])


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
        registers something is all that a new part needs.

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
        # Each with what it needs.
        self._factories: dict[str, tuple[Callable[..., Made], dict[str, Any]]] = {}

    def register(self, name: str, **needs: Any) -> Callable[[Factory], Factory]:
        """Give a function or class a free name, and say what it must come together with."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"name={name!r} is no name for a {self.what}; expected text.")

        def remember(factory: Factory) -> Factory:
            known, _ = self._factories.get(name, (factory, None))
            if _origin(known) != _origin(factory):
                raise ValueError(
                    f"name={name!r} is already a {self.what}. Choose another name for "
                    f"{factory.__qualname__}."
                )
            self._factories[name] = factory, needs
            return factory

        return remember

    def names(self) -> list[str]:
        """List every name, in alphabetical order."""
        if self._package is not None:
            package, self._package = import_module(self._package), None
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                import_module(module.name)
        return sorted(self._factories)

    def factory(self, name: str) -> Callable[..., Made]:
        """Find what ``name`` stands for."""
        return self._find(name)[0]

    def needs(self, name: str) -> dict[str, Any]:
        """Give what ``name`` must come together with, as it was registered."""
        return dict(self._find(name)[1])

    def options(self, name: str) -> dict[str, Option]:
        """Read out of its signature what ``name`` takes beside what is given."""
        return read_options(self.factory(name), self._given)

    def taking(self, name: str, options: Mapping[str, Any]) -> Callable[..., Made]:
        """Find what ``name`` stands for; raise unless it takes these options and lacks none."""
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
        return self.factory(name)

    def check_values(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise unless options are in their ranges and pass the class's ``check_options``."""
        taken = self.options(name)
        values = {option: about.default for option, about in taken.items()} | dict(options)
        for option, about in taken.items():
            about.check(option, values[option])
        check = getattr(self.factory(name), "check_options", None)
        if check is not None:
            check(**values)

    def make(self, name: str, /, *given: Any, **options: Any) -> Made:
        """Make what ``name`` stands for."""
        return self.taking(name, options)(*given, **options)

    def _find(self, name: str) -> tuple[Callable[..., Made], dict[str, Any]]:
        names = self.names()
        if name not in names:
            raise ValueError(unknown_part(self.what, name, names))
        return self._factories[name]


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    return factory.__module__, factory.__qualname__

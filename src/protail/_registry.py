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
        return read_options(self.factory(name), self._given)

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


def _origin(factory: Callable[..., Any]) -> tuple[str, str]:
    return factory.__module__, factory.__qualname__

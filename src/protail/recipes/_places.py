"""Where in a recipe something is wrong, and the error that says so."""

from __future__ import annotations

from typing import Any, NamedTuple

from protail._messages import unknown_name
from protail.recipes._toml import toml_text


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
    """A key of a recipe; the whole recipe where the key is empty.

    Attributes
    ----------
    source : str
        The file, or the recipe's name.
    key : str
        With dots, as in ``classifier.lr``.
    """

    source: str
    key: str = ""

    def at(self, key: str) -> Place:
        """Go to a key below this one."""
        return Place(self.source, f"{self.key}.{key}" if self.key else key)

    def error(self, text: str) -> RecipeError:
        """Make an error out of a sentence that names the key itself."""
        return RecipeError(f"{self.source}: {text}")

    def unexpected(self, value: Any, expected: str) -> RecipeError:
        """Make an error that says what came here and what was expected."""
        return self.error(f"{self.key} = {toml_text(value)}; expected {expected}.")

    def unknown(self, name: str, valid: Any) -> RecipeError:
        """Make an error about a name that is none of ``valid``."""
        return self.error(unknown_name(self.key, name, valid))

    def unknown_key(self, key: str, valid: Any) -> RecipeError:
        """Make an error about a key that this table does not have."""
        return self.error(unknown_name(f"{self.key} key".strip(), key, valid))

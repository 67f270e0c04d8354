"""Recipes from files: those that come with the package, and anybody's own."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from protail._files import regular
from protail._messages import unknown_name
from protail.recipes._checks import Settings
from protail.recipes._values import Place, RecipeError
from protail.recipes.recipe import STAGES, Recipe, read_table

_FOLDER = Path(__file__).parent / "library"
_SUFFIX = ".toml"
# Of files that extend each other; Python would give up at some hundreds.
_MOST_FILES = 64
# What was read of them, by their places; None while one is being read.
_Known = dict[Path, Recipe | None]


def recipe_names() -> list[str]:
    """List the recipes that come with the package.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.recipes import recipe_names
    >>> "pc-cdt-la" in recipe_names()
    True
    """
    return sorted(file.stem for file in _FOLDER.glob(f"*{_SUFFIX}"))


def load_recipe(name_or_path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    name_or_path : str or path-like
        One of `recipe_names`; two of them with a slash, for stage 1 of the first and stage 2 of
        the second; or the path of a file that ends in .toml.

    Returns
    -------
    Recipe
        Checked, every default spelled out.

    Examples
    --------
    >>> from protail.recipes import load_recipe
    >>> recipe = load_recipe("ce/pc-la")
    >>> recipe.representation.weight_decay, recipe.classifier.loss_options["tau"]
    (0.0005, 0.25)
    """
    return _load(os.fspath(name_or_path), {})


def _load(name: str, known: _Known) -> Recipe:
    """Read a recipe that files ask for, unless one of them has done so before."""
    if name.endswith(_SUFFIX):
        return _read(Path(name), name, known)
    first, slash, second = name.partition("/")
    if "/" in second:
        raise RecipeError(
            f"recipe {name!r} has two slashes; expected one at most, as in 'dro-lt/pc-la'."
        )
    if slash:
        return _combine(_load(first, known), _load(second, known))
    if name not in recipe_names():
        raise RecipeError(
            f"{unknown_name('recipe', name, recipe_names())} A recipe of your own is a path "
            f"that ends in {_SUFFIX}."
        )
    return _read(_FOLDER / f"{name}{_SUFFIX}", f"recipe {name!r}", known)


def _combine(first: Recipe, second: Recipe) -> Recipe:
    for recipe, stage in ((first, "representation"), (second, "classifier")):
        if stage not in recipe.stages:
            raise RecipeError(
                f"recipe '{first.name}/{second.name}': {recipe.name!r} has no {stage} stage. "
                "Write representation/classifier, as in wd/pc."
            )
    return Recipe(
        name=f"{first.name}/{second.name}",
        title=f"Stage 1 of {first.name}; {second.title}",
        reference="; ".join(dict.fromkeys(filter(None, (first.reference, second.reference)))),
        pretraining=first.pretraining,
        representation=first.representation,
        classifier=second.classifier,
    )


def _read(file: Path, source: str, known: _Known) -> Recipe:
    place = Place(source)
    try:
        found = file.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, links in a circle
        raise place.error(f"it cannot be read: {error}.") from None
    if (read := known.get(found)) is not None:
        return replace(read, name=file.stem)
    if found in known:
        raise place.error("it extends itself. Take one extends out of the circle.")
    if len(known) >= _MOST_FILES:
        raise place.error(f"it is one of more than {_MOST_FILES} files that extend each other.")
    known[found] = None
    known[found] = recipe = _read_new(file, place, known)
    return recipe


def _read_new(file: Path, place: Place, known: _Known) -> Recipe:
    table = _read_toml(file, place)
    if "name" in table:
        raise place.at("name").unexpected(table["name"], "no name: the file's name is it")
    bases: dict[str, Settings] = {}
    for stage in STAGES:
        given = table.get(stage)
        if isinstance(given, dict) and "extends" in given:
            # What comes before a stage 1 is the whole stage 1 of another recipe.
            taken = "representation" if stage == "pretraining" else stage
            asking = place.at(f"{stage}.extends")
            recipe = _extended(given.pop("extends"), taken, file, asking, known)
            bases[stage] = getattr(recipe, taken)
            if stage == "representation" and recipe.pretraining and "pretraining" not in table:
                # What it goes on from belongs to it.
                bases["pretraining"] = recipe.pretraining
                table["pretraining"] = {}
    return Recipe(**read_table({"name": file.stem, **table}, place, bases))


def _read_toml(file: Path, place: Place) -> dict[str, Any]:
    try:
        return tomllib.loads(regular(file).read_text("utf-8"))
    except FileNotFoundError:
        raise place.error("there is no such file. Check the path.") from None
    except OSError as error:
        raise place.error(f"it cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise place.error(f"this is not valid TOML: {error}.") from None


def _extended(extended: Any, stage: str, file: Path, place: Place, known: _Known) -> Recipe:
    """Read the recipe that a stage of a file extends."""
    if not isinstance(extended, str):
        raise place.unexpected(extended, "the name of a recipe, or a path that ends in .toml")
    near = str(file.parent / extended) if extended.endswith(_SUFFIX) else extended
    try:
        recipe = _load(near, known)
    except RecipeError as error:
        raise place.error(f"{place.key} = {extended!r}: {error}") from None
    if stage not in recipe.stages:
        raise place.unexpected(extended, f"a recipe that has a {stage} stage")
    return recipe

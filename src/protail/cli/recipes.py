"""``protail recipes``: which recipes there are, and everything one of them says."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from protail.cli import _completion as completion
from protail.cli.command import Debug, Json, Voice
from protail.cli.command import command as _command

recipes_app = typer.Typer(
    help="List the recipes that come with protail, or show one.",
    epilog="Example: protail recipes show pc-la --set classifier.tau=0.5",
    rich_markup_mode=None,
)


def _recipe_argument(metavar: str) -> Any:
    return typer.Argument(
        metavar=metavar,
        help="A recipe, two as in ce/pc-la, or a .toml file.",
        show_default=False,
        autocompletion=completion.recipes,
    )


Recipe = Annotated[str, _recipe_argument("RECIPE")]
Name = Annotated[str, _recipe_argument("NAME")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; can be repeated."),
]


@recipes_app.callback(invoke_without_command=True)
@_command
def recipes(context: typer.Context, as_json: Json = False, debug: Debug = False) -> None:
    """List the recipes that come with protail, or show one."""
    if context.invoked_subcommand is not None:
        return
    from protail.recipes import load_recipe, recipe_names

    voice = Voice(as_json)
    listed = [
        {
            "name": recipe.name,
            "title": recipe.title,
            "reference": recipe.reference,
            "stages": list(recipe.stages),
            "paper": recipe.paper,
        }
        for recipe in map(load_recipe, recipe_names())
    ]
    voice.show(_table(listed))
    voice.finish({"recipes": listed})


@recipes_app.command("show", epilog="Example: protail recipes show pc-la --set classifier.tau=0.5")
@_command
def recipes_show(
    name: Name, changes: Set = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Print a recipe with every default spelled out.

    The text is a recipe file itself: save it as .toml and change it.
    """
    from protail.recipes import load_recipe, recipe_hash

    voice = Voice(as_json)
    recipe = load_recipe(name).with_overrides(read_changes(changes or []))
    resolved = recipe.resolved()
    if not as_json:
        print(recipe.to_toml(), end="")
    voice.finish({"hash": recipe_hash(resolved), "recipe": resolved})


def read_changes(changes: list[str]) -> dict[str, str]:
    """Split what stands behind ``--set``.

    Parameters
    ----------
    changes : list of str
        Each ``key=value``.

    Returns
    -------
    dict of str to str
        For `Recipe.with_overrides`; of the same key the last.

    Examples
    --------
    >>> from protail.cli.recipes import read_changes
    >>> read_changes(["classifier.tau=0.5", "classifier.distance=cosine"])
    {'classifier.tau': '0.5', 'classifier.distance': 'cosine'}
    """
    pairs = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"--set {change!r} is not valid; expected KEY=VALUE, as in classifier.tau=0.5."
            )
        pairs[key.strip()] = value.strip()
    return pairs


def _table(listed: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table

    from protail.recipes import STAGES

    numbers = {stage: str(number) for number, stage in enumerate(STAGES)}
    caption = ", ".join(f"{number} {stage}" for stage, number in numbers.items())
    table = Table(box=box.SIMPLE, caption=f"stages: {caption}")
    for heading in ("recipe", "what it does", "from", "stages", "in the paper"):
        table.add_column(heading, no_wrap=heading == "recipe")
    for recipe in listed:
        stages = " + ".join(numbers[stage] for stage in recipe["stages"])
        table.add_row(recipe["name"], recipe["title"], recipe["reference"], stages, recipe["paper"])
    return table

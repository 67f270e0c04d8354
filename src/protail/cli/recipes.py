"""``protail recipes``: which recipes there are, and everything one of them says."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from protail.cli.command import Voice, command
from protail.cli.options import Set, read_changes, recipe_argument
from protail.cli.tables import make_table

_EXAMPLE = "Example: protail recipes show pc-la --set classifier.tau=0.5"

app = typer.Typer(
    help="List the recipes that come with protail, or show one.",
    epilog=_EXAMPLE,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Name = Annotated[str, recipe_argument("NAME")]


@app.callback(invoke_without_command=True)
@command
def recipes(voice: Voice, context: typer.Context) -> None:
    """List the recipes that come with protail, or show one."""
    if context.invoked_subcommand is not None:
        return
    from protail.recipes import load_recipe, recipe_names

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


@app.command("show", epilog=_EXAMPLE)
@command
def recipes_show(voice: Voice, name: Name, changes: Set = None) -> None:
    """Print a recipe with every default spelled out.

    The text is a recipe file itself: save it as .toml and change it.
    """
    from protail.recipes import load_recipe, recipe_hash

    recipe = load_recipe(name).with_overrides(read_changes(changes))
    resolved = recipe.resolved()
    if not voice.as_json:
        print(recipe.to_toml(), end="")
    voice.finish({"hash": recipe_hash(resolved), "recipe": resolved})


def _table(listed: list[dict[str, Any]]) -> Any:
    from protail.recipes import STAGES

    numbers = {stage: str(number) for number, stage in enumerate(STAGES)}
    caption = ", ".join(f"{number} {stage}" for stage, number in numbers.items())
    rows = [
        (
            each["name"],
            each["title"],
            each["reference"],
            " + ".join(numbers[stage] for stage in each["stages"]),
            each["paper"],
        )
        for each in listed
    ]
    headings = ["recipe", "what it does", "from", "stages", "in the paper"]
    table = make_table(headings, rows, caption=f"stages: {caption}")
    table.columns[0].no_wrap = True
    return table

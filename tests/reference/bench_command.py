"""The tables' command, as its tests type it."""

from typer.testing import CliRunner

from protail.cli import app

# What a result that nobody ran may say.
SCORES = {"plain": {"all": 0.5, "many": 0.7, "medium": 0.5, "few": 0.1}}


def run(*words, folder):
    """Type the command, with its results in a folder."""
    return CliRunner().invoke(app, ["bench", *map(str, words), "--results", str(folder)])

"""The commands, put together."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from protail import __version__
from protail.cli.add_class import add_class
from protail.cli.command import BAD_INPUT, tell_end
from protail.cli.compare import compare
from protail.cli.data import data_app
from protail.cli.doctor import doctor
from protail.cli.evaluate import evaluate
from protail.cli.fit import fit
from protail.cli.predict import predict
from protail.cli.recipes import recipes_app
from protail.cli.search import search
from protail.cli.train import train
from protail.cli.weights import weights


@functools.cache
def _plugged_in() -> dict[str, EntryPoint]:
    """Commands of other packages: each entry point of the group is a `typer.Typer`."""
    return {entry.name: entry for entry in entry_points(group="protail.commands")}


class _Commands(TyperGroup):
    """The commands; with --json also words that typer does not understand end in an object."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_plugged_in()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _plugged_in():
            return own
        command = typer.main.get_command(_plugged_in()[cmd_name].load())
        command.name = cmd_name
        return command

    def main(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        words = sys.argv[1:] if args is None else args
        if "--json" not in words or options.get("standalone_mode") is False:
            return super().main(args, *rest, **options)
        try:
            code = super().main(args, *rest, **{**options, "standalone_mode": False})
        except Exception as error:
            # What click raises for such words; its class lies elsewhere in every version of typer.
            if not hasattr(error, "format_message"):
                raise
            context = getattr(error, "ctx", None)
            name = "protail" if context is None else context.command_path
            tell_end(f"{name}: {error.format_message()}", BAD_INPUT, as_json=True)
            code = BAD_INPUT
        sys.exit(code)


app = typer.Typer(
    name="protail",
    cls=_Commands,
    help="Classifiers that are fair to rare classes: learn, judge and use prototypes.",
    epilog="Start with: protail quickstart",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXAMPLES: dict[Callable[..., None], str] = {
    fit: "protail fit features.npz -o model",
    predict: "protail predict model new.npz -o predictions.csv --top-k 3",
    evaluate: "protail evaluate model test.npz",
    compare: "protail compare model-a model-b test.npz",
    add_class: "protail add-class model lynx lynx.npz --check test.npz",
    doctor: "protail doctor",
    train: "protail train pc-la --dataset cifar100-lt --imbalance 100",
    search: "protail search pc-la --dataset cifar100-lt --over classifier.tau",
    weights: "protail weights runs/pc-la-cifar100-lt-100-seed0 -o backbone",
}
for _function, _example in _EXAMPLES.items():
    app.command(epilog=f"Example: {_example}")(_function)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data", short_help="List, count, fetch, check or export data sets.")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"protail {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options that stand before any command."""


def main() -> None:
    """Run the command line.

    Examples
    --------
    >>> import sys
    >>> from protail.cli import main
    >>> sys.argv = ["protail", "--version"]
    >>> try:
    ...     main()
    ... except SystemExit as end:
    ...     print("exit code", end.code)
    protail 0.1.0
    exit code 0
    """
    try:
        app(prog_name="protail")
    except KeyboardInterrupt:  # between the commands' own guards
        print("stopped.", file=sys.stderr)
        sys.exit(130)
    finally:
        # CPython remembers Ctrl-C that came while code given as text was run, as libraries do while
        # they are imported, and would end by the signal in place of the exit code. This forgets it.
        exec("")

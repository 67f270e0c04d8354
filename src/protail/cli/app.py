"""The commands, put together; each is imported when it is asked for."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from protail import __version__
from protail.cli.command import BAD_INPUT, INTERRUPTED, tell_end
from protail.cli.options import current_flags

_GROUP = "protail.commands"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_USUAL = (signal.SIG_DFL, signal.default_int_handler)
_MODULES = {
    **{name: name for name in ("fit", "predict", "evaluate", "compare", "report")},
    "add-class": "add_class",
    **{name: name for name in ("export", "serve", "demo", "embed")},
    **{name: name for name in ("doctor", "train", "search", "weights", "recipes", "data")},
}


class _Commands(Mapping[str, Any]):
    """Commands by name, those of other packages last: each is a `typer.Typer` called ``app``."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made = made
        own = {name: f"protail.cli.{module}:app" for name, module in _MODULES.items()}
        self._found = {name: EntryPoint(name, place, _GROUP) for name, place in own.items()}
        for entry in entry_points(group=_GROUP):
            self._found.setdefault(entry.name, entry)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._found, **self._made})

    def __len__(self) -> int:
        return len({**self._found, **self._made})

    def __getitem__(self, name: str) -> Any:
        if name in self._made:
            return self._made[name]
        command = typer.main.get_command(self._found[name].load())
        command.name = name
        return command


class _Group(TyperGroup):
    """The commands; with --json also words that typer does not understand end in an object."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.commands)  # type: ignore[assignment]

    def main(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        words = current_flags(sys.argv[1:] if args is None else args)
        if "--json" not in words or options.get("standalone_mode") is False:
            return super().main(words, *rest, **options)
        try:
            code = super().main(words, *rest, **{**options, "standalone_mode": False})
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
    cls=_Group,
    help="Classifiers that are fair to rare classes: learn, evaluate and use prototypes.",
    epilog="Start with: protail quickstart",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


class _StoppedError(BaseException):
    """A stop before a command listens: typer would end in silence for a KeyboardInterrupt."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _StoppedError


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
    heard = [number for number in _SIGNALS if signal.getsignal(number) in _USUAL]
    before = {number: signal.signal(number, _stop) for number in heard}
    try:
        app(prog_name="protail")
    except (_StoppedError, KeyboardInterrupt):  # outside of the commands' own guards
        tell_end("stopped.", INTERRUPTED, as_json="--json" in sys.argv)
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # CPython remembers Ctrl-C that came while code given as text was run, as libraries do while
        # they are imported, and would end by the signal in place of the exit code. This forgets it.
        exec("")

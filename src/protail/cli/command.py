"""What every command has in common: how it speaks, and how it ends."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from protail._stopping import stoppable
from protail.cli.plugins import hint_at_plugins, load_plugins

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Exit codes, and what programs call them. 2 is also what typer gives for options it does not know.
UNEXPECTED, BAD_INPUT, NOT_WRITTEN, INTERRUPTED = 1, 2, 3, 130
_KINDS = {
    UNEXPECTED: "unexpected",
    BAD_INPUT: "bad_input",
    NOT_WRITTEN: "not_written",
    INTERRUPTED: "stopped",
}
# Of what --json prints: raised when a key changes its meaning or goes, not when one is added.
_SCHEMA_VERSION = 1

# Wider than any table.
_ONE_LINE = 100_000

# The name under which typer gives a command the context it runs in.
_CONTEXT = "protail_context"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


class Voice:
    """Say things to people, or one JSON object to a program.

    Parameters
    ----------
    as_json : bool
        Whether a program listens.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # Of the processes that torchrun starts only the first one speaks.
        self._is_silent = os.environ.get("RANK", "0") != "0"

    @property
    def is_watched(self) -> bool:
        """Whether a person sees progress: a terminal, and no JSON asked for."""
        return not (self.as_json or self._is_silent) and _is_terminal(sys.stderr)

    def say(self, text: str) -> None:
        """Tell what is going on, on standard error."""
        if not (self.as_json or self._is_silent):
            shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
            console(stderr=True).print(shown, markup=False, highlight=False, soft_wrap=True)

    def show(self, thing: RenderableType, *, to_copy: bool = False) -> None:
        """Show a result, on standard output; tables as Markdown where there is no terminal.

        What is ``to_copy`` stays one line, however long.
        """
        from rich import box
        from rich.table import Table

        from protail.cli.tables import fitted

        if self.as_json or self._is_silent:
            return
        output = console()
        if isinstance(thing, Table):
            if _is_terminal(sys.stdout):
                thing = fitted(thing, output.width)
            else:
                thing.box = box.MARKDOWN
                output = console(width=_ONE_LINE)  # a row of Markdown is a line
        output.print(thing, markup=False, highlight=False, soft_wrap=to_copy)

    def finish(self, result: dict[str, Any]) -> None:
        """Give the result as JSON where that was asked for."""
        if self.as_json and not self._is_silent:
            _print_object(result)


def console(*, stderr: bool = False, width: int = 200) -> Console:
    """Make a console that fits a terminal, or is so wide and plain where there is none."""
    from rich.console import Console

    class Plain(Console):
        """A console that tells of a closed pipe as everything else does."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return Plain(stderr=stderr, width=None if _is_terminal(stream) else width)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command: errors become one line and an exit code.

    The function gets a `Voice` as ``voice``; the command takes ``--json`` and ``--debug`` for it.
    """
    # typer reads the options out of the annotations, which are text until evaluated.
    signature = inspect.signature(function, eval_str=True)
    parameters = [each for each in signature.parameters.values() if each.name != "voice"]
    own = next((each.name for each in parameters if each.annotation is typer.Context), None)

    @functools.wraps(function)
    def guarded(*, as_json: bool, debug: bool, **arguments: Any) -> None:
        context = arguments[own] if own else arguments.pop(_CONTEXT, None)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            with stoppable(), warnings.catch_warnings():
                warnings.showwarning = _show_warning
                load_plugins()
                function(voice=Voice(as_json), **arguments)
        except typer.Exit:
            raise
        except KeyboardInterrupt as end:
            _stop(f"stopped. {end}", INTERRUPTED, as_json)
        except BrokenPipeError:
            # Whoever read our output has gone (as with `| head`): nobody is left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if debug:
                traceback.print_exc()
            _stop(*_in_words(error, _full_name(context)), as_json)

    more: list[tuple[str, Any, Any]] = [("as_json", Json, False), ("debug", Debug, False)]
    if own is None:
        more.append((_CONTEXT, typer.Context, inspect.Parameter.empty))
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters += [
        inspect.Parameter(name, kind, annotation=annotation, default=default)
        for name, annotation, default in more
    ]
    guarded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return guarded


def make_app(function: Callable[..., None], example: str) -> typer.Typer:
    """Make an app of one command, as an entry point of ``protail.commands`` gives it.

    Parameters
    ----------
    function : callable
        What `command` has made.
    example : str
        Shown below its help.

    Returns
    -------
    typer.Typer
        With this command only.
    """
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command(epilog=f"Example: {example}")(function)
    return app


def _full_name(context: typer.Context | None) -> str:
    """Name a command as it is typed, as in ``protail recipes show``."""
    names: list[str] = []
    # The outermost is the program, which may have been started by another name.
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent  # type: ignore[assignment]
    return " ".join(["protail", *names])


def _in_words(error: Exception, name: str) -> tuple[str, int]:
    from protail._files import OutputError

    if isinstance(error, OutputError):
        return f"{name}: {error.strerror}", NOT_WRITTEN
    if isinstance(error, UnicodeError):
        return f"{name}: a name or a text is not valid Unicode: {error}. Rename it.", BAD_INPUT
    if isinstance(error, (ValueError, ImportError, FileNotFoundError)):
        return f"{name}: {hint_at_plugins(_own_words(error))}", BAD_INPUT
    if isinstance(error, RuntimeError) and (told := _told_by_training(error)):
        return f"{name}: {told[0]}", told[1]
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return f"{name}: out of memory. Use a smaller file, or a machine with more.", UNEXPECTED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG):
        return f"{name}: the output cannot be written: {error.strerror}.", NOT_WRITTEN
    return (
        f"{name}: unexpected {type(error).__name__}: {error}. This is a fault of protail: please "
        "report it with the output of the same command and --debug.",
        UNEXPECTED,
    )


def _own_words(error: Exception) -> str:
    """Give what an error says; one out of a loader's worker says it behind a whole traceback."""
    text = str(error)
    if "in DataLoader worker process" not in text:
        return text
    _, _, words = text.strip().splitlines()[-1].partition(f"{type(error).__name__}: ")
    return words or text


def _told_by_training(error: RuntimeError) -> tuple[str, int] | None:
    """Give the words and the exit code for what ends a training, if it is that."""
    import torch

    from protail.training import DivergenceError

    if isinstance(error, DivergenceError):
        return str(error), BAD_INPUT
    if isinstance(error, torch.OutOfMemoryError):
        words = "the memory of the GPU is full. Train fewer seeds at once, or in smaller batches."
        return words, UNEXPECTED
    return None


def _stop(text: str, code: int, as_json: bool) -> NoReturn:
    tell_end(text, code, as_json=as_json)
    raise typer.Exit(code) from None


def tell_end(text: str, code: int, *, as_json: bool) -> None:
    """Say why a command ends: to people on standard error, to a program as its one object."""
    line = " ".join(text.split())
    # Of several processes only the first one has standard output.
    if as_json and os.environ.get("RANK", "0") == "0":
        _print_object({"error": {"kind": _KINDS[code], "exit_code": code, "message": line}})
    else:
        print(line, file=sys.stderr)


def _print_object(result: dict[str, Any]) -> None:
    version = {"schema_version": _SCHEMA_VERSION}
    print(json.dumps({**version, **result}, indent=2, allow_nan=False))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"Note: {' '.join(str(message).split())}", file=sys.stderr)

"""What every command has in common: how it speaks, and how it ends."""

from __future__ import annotations

import errno
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.models import OptionInfo

from protail._messages import OWN_PART
from protail._stopping import stoppable

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

# What names modules of somebody's own, for the commands to know their methods, heads and losses.
_PLUGINS = "PROTAIL_PLUGINS"
# What a plugin may end with that is its own doing.
_FAULTS = (Exception, SystemExit)

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
    flags = {each.name: flag for each in parameters if (flag := _flag(each))}

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
            words, code = _in_words(error, _full_name(context))
            _stop(with_flags(words, flags), code, as_json)

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


def _flag(parameter: inspect.Parameter) -> str | None:
    """Give the flag of an option; None for an argument."""
    for about in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(about, OptionInfo):
            named = [each for each in about.param_decls or () if each.startswith("--")]
            return named[0].split("/")[0] if named else f"--{parameter.name.replace('_', '-')}"
    return None


def with_flags(text: str, flags: Mapping[str, str]) -> str:
    """Say what an error says of arguments in Python as it is typed on the command line.

    Parameters
    ----------
    text : str
        What an error says.
    flags : mapping of str to str
        The flag of each argument.

    Returns
    -------
    str
        The same; arguments without a flag stay.

    Examples
    --------
    >>> from protail.cli.command import with_flags
    >>> with_flags("is there (overwrite=True, --overwrite)", {"overwrite": "--overwrite"})
    'is there (--overwrite)'
    >>> with_flags("fraction=3 (--held-out); expected less", {})
    '--held-out 3; expected less'
    >>> with_flags("method='new', seed=1 and tau=2", {"method": "--method", "seed": "--seed"})
    '--method new, --seed 1 and tau=2'
    """

    def typed(found: re.Match[str]) -> str:
        flag, value = flags.get(found[1]), found[2].strip("'\"")
        return found[0] if flag is None else flag if value == "True" else f"{flag} {value}"

    def paired(found: re.Match[str]) -> str:
        return found[2] if " " in found[2] else f"{found[2]} {found[1]}"

    text = re.sub(r"\b\w+=[\w.]*, (?=--)", "", text)
    text = re.sub(r"\b\w+=(\S+) \((--[^)]+)\)", paired, text)
    # A path may hold such words: key=value/part.parquet.
    return re.sub(r"(?<![\w/\\-])(\w+)=('[^']*'|\"[^\"]*\"|[\w.+-]*\w)(?![\w/\\])", typed, text)


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

    from protail.training import DivergenceError, ProcessError

    if isinstance(error, DivergenceError):
        return str(error), BAD_INPUT
    if isinstance(error, ProcessError):
        return str(error), UNEXPECTED
    if isinstance(error, torch.OutOfMemoryError):
        words = "the memory of the GPU is full. Train fewer seeds at once, or in smaller batches."
        return words, UNEXPECTED
    if "stream is capturing" in str(error) or "during capture" in str(error):
        words = "a step cannot be captured as a CUDA graph. Take each by itself: --driver plain."
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
    elif _is_first_to_tell():
        print(line, file=sys.stderr)


def _is_first_to_tell() -> bool:
    """Say whether this process tells why a training of several ends: each ends for the same."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    from protail.training import first_to_tell

    return first_to_tell()


def _print_object(result: dict[str, Any]) -> None:
    version = {"schema_version": _SCHEMA_VERSION}
    print(json.dumps({**version, **result}, indent=2, allow_nan=False))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"Note: {' '.join(str(message).split())}", file=sys.stderr)


def load_plugins() -> None:
    """Import what the environment variable names: modules, or files that end in .py.

    Several are parted by commas. Each registers what it has, and recipes know it from then on.

    Examples
    --------
    >>> from protail.cli.command import load_plugins
    >>> load_plugins()
    """
    for name in filter(None, map(str.strip, os.environ.get(_PLUGINS, "").split(","))):
        if name.endswith(".py"):
            _load_file(Path(name))
        else:
            _load_module(name)


def hint_at_plugins(text: str) -> str:
    """Add to what is said of an unknown part how a command imports one, unless it has been told.

    Parameters
    ----------
    text : str
        What an error says, of whatever.

    Returns
    -------
    str
        The same, where it is not of an unknown part or the environment variable is set.

    Examples
    --------
    >>> from protail._messages import unknown_part
    >>> from protail.cli.command import hint_at_plugins
    >>> print(hint_at_plugins(unknown_part("loss", "mine", ["ldam"])))
    loss='mine' is unknown; expected one of 'ldam'. One of your own is known once the module that
    registers it is imported: name it in PROTAIL_PLUGINS.
    """
    if os.environ.get(_PLUGINS):
        return text
    return text.replace(OWN_PART, f"{OWN_PART.removesuffix('.')}: name it in {_PLUGINS}.")


def _load_file(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{_PLUGINS}: {file}: there is no such file; expected one to import.")
    name = _module_name(file)
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, _FAULTS):
            raise _fault(str(file), error) from error
        raise


def _module_name(file: Path) -> str:
    """Name a file's module: by its place too, because others may be called the same."""
    place = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    return f"protail_plugin_{file.stem}_{place}"


def _load_module(name: str) -> None:
    try:
        import_module(name)
    except _FAULTS as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{_PLUGINS}: there is no module {name!r}; expected one that can be imported, or a "
                "file that ends in .py."
            ) from None
        raise _fault(name, error) from error


def _fault(plugin: str, error: BaseException) -> ValueError:
    return ValueError(
        f"{_PLUGINS}: {plugin}: importing it raised {type(error).__name__}: {error}. Correct it; "
        "--debug shows where that is."
    )

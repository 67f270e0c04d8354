"""Methods, heads, losses and backbones of somebody's own, for the commands to know."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from protail._messages import OWN_PART

VARIABLE = "PROTAIL_PLUGINS"
# What a plugin may end with that is its own doing.
_FAULTS = (Exception, SystemExit)


def load_plugins() -> None:
    """Import what the environment variable names: modules, or files that end in .py.

    Several are parted by commas. Each registers what it has, and recipes know it from then on.

    Examples
    --------
    >>> from protail.cli.plugins import load_plugins
    >>> load_plugins()
    """
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
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
    >>> from protail.cli.plugins import hint_at_plugins
    >>> print(hint_at_plugins(unknown_part("loss", "mine", ["ldam"])))
    loss='mine' is unknown; expected one of 'ldam'. One of your own is known once the module that
    registers it is imported: name it in PROTAIL_PLUGINS.
    """
    if os.environ.get(VARIABLE):
        return text
    return text.replace(OWN_PART, f"{OWN_PART.removesuffix('.')}: name it in {VARIABLE}.")


def _load_file(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{VARIABLE}: {file}: there is no such file; expected one to import.")
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
                f"{VARIABLE}: there is no module {name!r}; expected one that can be imported, or a "
                "file that ends in .py."
            ) from None
        raise _fault(name, error) from error


def _fault(plugin: str, error: BaseException) -> ValueError:
    return ValueError(
        f"{VARIABLE}: {plugin}: importing it raised {type(error).__name__}: {error}. Correct it; "
        "--debug shows where that is."
    )

"""Methods, heads, losses and backbones of somebody's own, for the commands to know."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

VARIABLE = "PROTAIL_PLUGINS"


def load_plugins() -> None:
    """Import what the environment variable names: modules, or files that end in .py.

    Several are parted by commas. Each registers what it has, and recipes know it from then on.

    Examples
    --------
    >>> from protail.cli._plugins import load_plugins
    >>> load_plugins()
    """
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if name.endswith(".py"):
            _load_file(Path(name))
        else:
            _load_module(name)


def _load_file(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{VARIABLE}: {file}: there is no such file; expected one to import.")
    name = f"protail_plugin_{file.stem}"
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _load_module(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise ValueError(
            f"{VARIABLE}: there is no module {name!r}; expected one that can be imported, or a "
            "file that ends in .py."
        ) from None

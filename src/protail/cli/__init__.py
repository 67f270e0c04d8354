"""The command line: one file a command."""

from protail.cli._app import app, main

__all__ = ["app", "main"]

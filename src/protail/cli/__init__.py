"""The command line: one file a command."""

from protail.cli.app import app, main

__all__ = ["app", "main"]

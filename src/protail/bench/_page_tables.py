"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def header(*names: str) -> Iterable[str]:
    """Write the head of a table: a column of words, then columns of numbers."""
    yield line(names)
    yield "|---|" + "---:|" * (len(names) - 1)


def line(entries: Iterable[str]) -> str:
    """Write a line of a table."""
    return "| " + " | ".join(entries) + " |"

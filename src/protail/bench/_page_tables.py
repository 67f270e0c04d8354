"""Tables in Markdown, and words that stand in several of them."""

from __future__ import annotations

from collections.abc import Iterable

MISSING, DIVERGED = "not run", "diverged"
MIXED = (
    "**Mixed:** rows of this table stand on different trainings of one seed, so that differences "
    "between them hold the difference of the trainings too."
)


def header(*names: str) -> Iterable[str]:
    """Write the head of a table: a column of words, then columns of numbers."""
    yield line(names)
    yield "|---|" + "---:|" * (len(names) - 1)


def line(entries: Iterable[str]) -> str:
    """Write a line of a table."""
    return "| " + " | ".join(entries) + " |"

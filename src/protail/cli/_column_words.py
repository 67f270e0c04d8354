"""Columns in words: many in one line, and those that look like no feature at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protail._messages import counted

_SHOWN = 12
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)
# Names as they are once capitals and other signs are gone: imageId, "Unnamed: 0".
_IDENTIFIER = re.compile(r"(.*_)?(id|uid|uuid|guid)|index|idx|row(_?(number|nr|no))?|unnamed_\d+")
# Below that whole numbers in ascending order are no wonder.
_LEAST_ROWS = 8
_BLOCK = 1024


def columns_in_words(names: Sequence[str]) -> str:
    """Count columns and name them, neighbours that are numbered on by the first and the last.

    Parameters
    ----------
    names : sequence of str
        The columns in order.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> from protail.cli._column_words import columns_in_words
    >>> columns_in_words(["id", *(f"f{i}" for i in range(64))])
    '65 columns, id, f0 to f63'
    """
    groups: list[list[str]] = []
    for name in names:
        if groups and _follows(groups[-1][-1], name):
            groups[-1].append(name)
        else:
            groups.append([name])
    parts: list[str] = []
    for group in groups:
        parts += [f"{group[0]} to {group[-1]}"] if len(group) > 2 else group
    if len(parts) > _SHOWN:
        parts = [*parts[: _SHOWN - 2], "...", parts[-1]]
    return ", ".join([counted(len(names), "column"), *parts])


def _follows(before: str, name: str) -> bool:
    first, second = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    if first is None or second is None or first[1] != second[1]:
        return False
    return int(second[2]) == int(first[2]) + 1


def identifiers(names: Sequence[str], rows: NDArray[Any]) -> dict[str, str]:
    """Find columns that tell rows apart instead of saying what they are like.

    Parameters
    ----------
    names : sequence of str
        The columns.
    rows : ndarray of shape (n_rows, n_columns)
        What is in them.

    Returns
    -------
    dict of str to str
        Why each of them looks like one.

    Examples
    --------
    >>> import numpy as np
    >>> from protail.cli._column_words import identifiers
    >>> rows = np.random.default_rng(0).normal(size=(9, 3))
    >>> rows[:, 0] = np.arange(9)
    >>> identifiers(["n", "imageId", "width"], rows)
    {'n': 'whole numbers that grow from row to row', 'imageId': 'called so'}
    """
    growing = _growing(rows)
    found = {}
    for name, grows in zip(names, growing.tolist(), strict=True):
        if grows:
            found[name] = "whole numbers that grow from row to row"
        elif _IDENTIFIER.fullmatch(_plain(name)):
            found[name] = "called so"
    return found


def _plain(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[\W_]+", "_", words).lower().strip("_")


def _growing(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each column whether it holds whole numbers, each larger than the one before."""
    growing = np.full(rows.shape[1], len(rows) >= _LEAST_ROWS)
    for start in range(0, len(rows), _BLOCK):
        if not growing.any():
            break
        block = np.asarray(rows[max(0, start - 1) : start + _BLOCK, growing])
        grows = (block == np.floor(block)).all(axis=0) & (block[1:] > block[:-1]).all(axis=0)
        growing[growing] = grows
    return growing

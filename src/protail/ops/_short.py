"""Candidates among many classes on a CPU: products in bfloat16, and a bound on what they lose.

A CPU that multiplies bfloat16 does so three to five times as fast as float32. What scores highest
by more than both errors is highest; the few classes for which that is open are told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import MEMORY_BUDGET, pieces
from protail.ops._precision import accumulated

# From so many classes it pays, with so many numbers in all rows, and in all classes.
_MANY_CLASSES, _LARGE_BATCH, _LARGE_TABLE = 256, 2**16, 2**18
# Rows and classes whose scores a core's cache holds; classes whose highest score is looked at.
_ROWS, CLASSES, _GROUP = 500, 2048, 16
# Rounding of both factors and of the product, each half a unit in the last of 8 places, and a bit.
_ERROR = 3.02 * 2.0**-9
# Lengths and scores beyond these could leave the range of bfloat16.
_LEAST, _MOST = 1e-30, 1e38
# Candidates that a row may have on average, and a few rows more.
_CANDIDATES, _FEW = 64, 2**14


class Table(NamedTuple):
    """Some classes in bfloat16, in float32 how long each was, and what is added to its products."""

    short_cd: Tensor
    length_c: Tensor
    bias_c: Tensor

    @classmethod
    def of(cls, vectors_cd: Tensor, bias_c: Tensor) -> Table:
        """Round vectors."""
        return cls(vectors_cd.bfloat16(), torch.linalg.vector_norm(vectors_cd, dim=1), bias_c)


def pays(x_bd: Tensor, classes_cd: Tensor, dtype: torch.dtype) -> bool:
    """Say whether to look for candidates this way."""
    return (
        x_bd.device.type == "cpu"
        and dtype == torch.float32
        and len(classes_cd) >= _MANY_CLASSES
        and x_bd.numel() >= _LARGE_BATCH
        and classes_cd.numel() >= _LARGE_TABLE
        and 2 * classes_cd.numel() <= MEMORY_BUDGET
        and torch.cpu._is_avx512_bf16_supported()
    )


def candidates(x_bd: Tensor, tables: Iterable[Table]) -> tuple[Tensor, Tensor] | None:
    """Find the classes that may score highest: ``x . v + bias``, in tables of `CLASSES`.

    Parameters
    ----------
    x_bd : Tensor
        Rows in float32.
    tables : iterable of Table
        All classes.

    Returns
    -------
    row_p, class_p : Tensor
        Pairs; a row whose numbers are too large or too small to tell has none. None where there
        are too many.
    """
    tables = list(tables)
    longest, largest = (max(float(t[i].abs().amax()) for t in tables) for i in (1, 2))
    length_b = torch.linalg.vector_norm(x_bd, dim=1)
    size_b = length_b * longest
    error = _ERROR + accumulated(x_bd.shape[1], torch.float32)
    open_b = ~((size_b + largest + length_b + longest < _MOST) & (size_b > _LEAST))
    slack_b = 2 * (error * size_b + torch.finfo(torch.float32).eps * (size_b + largest))
    slack_b[open_b] = torch.nan  # nothing compares with it
    highest_b = torch.full_like(length_b, -torch.inf)
    short_bd, found, n_found = x_bd.bfloat16(), [], 0
    score = x_bd.new_empty(min(_ROWS, len(x_bd)), CLASSES)
    for number, table in enumerate(tables):
        for rows in pieces(len(x_bd), _ROWS):
            part = _score(short_bd[rows], table, score)
            high = part.amax(1)
            highest = torch.maximum(highest_b[rows], high.amax(1), out=highest_b[rows])
            enough = highest - slack_b[rows]
            row_g, group_g = (high >= enough.unsqueeze(1)).nonzero(as_tuple=True)
            score_g = part[row_g, :, group_g]
            pair_p, place_p = (score_g >= enough[row_g].unsqueeze(1)).nonzero(as_tuple=True)
            class_p = place_p * part.shape[2] + group_g[pair_p] + number * CLASSES
            found.append((row_g[pair_p] + rows.start, class_p, score_g[pair_p, place_p]))
            n_found += len(class_p)
            if n_found > _CANDIDATES * (len(x_bd) + _FEW):
                return None
    row_p, class_p, score_p = map(torch.cat, zip(*found, strict=True))
    kept_p = score_p >= (highest_b - slack_b)[row_p]
    return row_p[kept_p], class_p[kept_p]


def _score(short_bd: Tensor, table: Table, room: Tensor) -> Tensor:
    """Score rows in groups of classes, (rows, classes of a group, groups)."""
    n_rows, n_classes = len(short_bd), len(table.short_cd)
    n_padded = -(-n_classes // _GROUP) * _GROUP
    score = room[:n_rows].flatten()[: n_rows * n_padded].view(n_rows, n_padded)
    known = score[:, :n_classes]
    known.copy_(short_bd @ table.short_cd.mT).add_(table.bias_c)
    score[:, n_classes:] = -torch.inf
    return score.view(n_rows, _GROUP, -1)


def first_of_highest(row_p: Tensor, class_p: Tensor, score_p: Tensor, n_rows: int) -> Tensor:
    """Give each row's class of the highest score, of equals the first; -1 where it has none."""
    order = class_p.argsort(stable=True)
    order = order[score_p[order].argsort(descending=True, stable=True)]
    order = order[row_p[order].argsort(stable=True)]
    row_p, class_p = row_p[order], class_p[order]
    begins = torch.ones_like(row_p, dtype=torch.bool)
    begins[1:] = row_p[1:] != row_p[:-1]
    found = torch.full((n_rows,), -1, dtype=torch.int64)
    found[row_p[begins]] = class_p[begins]
    return found

"""Rows of a table: scaled to unit length, taken from given places, added to given places."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_rows_(table_cd: Tensor, index_b: Tensor, rows_bd: Tensor, *, alpha: float = 1) -> None:
    """Add each row, times alpha, to the row of the table that it belongs to, in place.

    Repeated places add up in a fixed order, so the same inputs give the same bits: ``index_add_``
    keeps one on a CPU but not on a GPU, ``index_put_`` the other way round.

    Parameters
    ----------
    table_cd : Tensor
        Changed in place.
    index_b : Tensor
        Row of the table for each row.
    rows_bd : Tensor
        What to add.
    alpha : float
        Factor of the rows.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._rows import add_rows_
    >>> table = torch.zeros(2, 1)
    >>> add_rows_(table, torch.tensor([1, 1]), torch.tensor([[1.0], [2.0]]))
    >>> table
    tensor([[0.],
            [3.]])
    """
    if table_cd.is_cuda:
        table_cd.index_put_((index_b,), rows_bd if alpha == 1 else rows_bd * alpha, accumulate=True)
    else:
        table_cd.index_add_(0, index_b, rows_bd, alpha=alpha)


def unit_rows(vectors_nd: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows to length 1; a row without direction becomes zero, with a zero gradient.

    Parameters
    ----------
    vectors_nd : Tensor
        Float32 or float64 rows.

    Returns
    -------
    units_nd, zero_n : Tensor
        The rows, and 1 where a row had no direction (0 elsewhere).

    Examples
    --------
    >>> import torch
    >>> from protail.ops._rows import unit_rows
    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    (tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]), tensor([0., 1.]))
    """
    length_n1 = torch.linalg.vector_norm(vectors_nd, dim=-1, keepdim=True)
    # Squares of anything shorter underflow: it has no direction that could be trusted.
    zero_n1 = length_n1 < torch.finfo(vectors_nd.dtype).tiny ** 0.5 * 1024
    inverse_n1 = torch.where(zero_n1, 1, length_n1).reciprocal().masked_fill(zero_n1, 0)
    return vectors_nd * inverse_n1, zero_n1.squeeze(-1).to(vectors_nd.dtype)


def take_rows(table: Tensor, index_p: Tensor) -> Tensor:
    """Take rows of a table; the gradient of repeated ones adds up in a fixed order.

    As in `add_rows_`, it takes another operator on each kind of device to keep one.

    Parameters
    ----------
    table : Tensor
        Two dimensions.
    index_p : Tensor
        Which rows.

    Returns
    -------
    Tensor
        One row a place.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._rows import take_rows
    >>> take_rows(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1, 0]))
    tensor([[2.],
            [2.],
            [1.]])
    """
    return table[index_p] if table.is_cuda else F.embedding(index_p, table)


def own_temperature(temperature: Tensor | None, index_p: Tensor) -> Tensor | None:
    """Take the temperature of each pair's class; one that classes share stays one row.

    Parameters
    ----------
    temperature : Tensor or None
        (1, D), (C, 1) or (C, D).
    index_p : Tensor
        Class of each pair, in any number of dimensions.

    Returns
    -------
    Tensor or None
        (1, D), or a row for each pair.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._rows import own_temperature
    >>> own_temperature(torch.ones(1, 3), torch.tensor([1, 1, 0])).shape
    torch.Size([1, 3])
    """
    if temperature is None or temperature.shape[0] == 1:
        return temperature
    return take_rows(temperature, index_p)

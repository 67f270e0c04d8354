"""Keeping every bit where squares cancel, and knowing how many are left where they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# What a product loses, relative to the lengths of its vectors, when inputs are shortened.
_SHORTENED = {"tf32": 2.0**-9, "bf16": 2.0**-6}


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off inside: the expanded square cancels and needs every bit.

    Parameters
    ----------
    device : torch.device
        Where the computation runs.

    Returns
    -------
    context manager
        Does nothing where autocast is off already.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._precision import full_precision
    >>> with torch.autocast("cpu"), full_precision(torch.device("cpu")):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    kind = device.type
    # An exported graph would hold the switch, and then could not be read again.
    is_compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if kind != "meta" and (is_compiled or torch.is_autocast_enabled(kind)):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def in_full(numbers: torch.Tensor) -> torch.Tensor:
    """Go on in float32 at least, whatever came before computed in.

    Parameters
    ----------
    numbers : Tensor
        Of any floating point.

    Returns
    -------
    Tensor
        The same numbers; float64 stays.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._precision import in_full
    >>> in_full(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


@contextmanager
def whole_products(device: torch.device) -> Iterator[None]:
    """Switch TF32 and bfloat16 products of float32 off inside, as well as autocast.

    It sets a switch of the whole process, so it is not for compiled code or captured graphs.
    """
    products = _products(device.type)
    before = products.fp32_precision
    with full_precision(device):
        if before not in _SHORTENED:
            yield
            return
        products.fp32_precision = "ieee"
        try:
            yield
        finally:
            products.fp32_precision = before


def rounding(n_features: int, dtype: torch.dtype, device: torch.device) -> float:
    """Bound the relative error of a squared distance that was computed by expansion.

    The error of ``|x|^2 + |c|^2 - 2 x.c`` is at most this times ``|x|^2 + |c|^2``. Sums of n terms
    err like ``sqrt(n)``; the constants are twice to three times the worst seen for 1 to 16,384
    channels on CPUs and GPUs. Products of shortened inputs err by those inputs as well.
    """
    error = accumulated(n_features, dtype)
    return error if dtype == torch.float64 else error + _shortening(device.type)


def accumulated(n_features: int, dtype: torch.dtype) -> float:
    """Bound the part of that error which sums make, as if inputs were not shortened."""
    error: float = torch.finfo(dtype).eps * (4 + n_features**0.5 / 2)
    return error


def smallest_length(dtype: torch.dtype) -> float:
    """Give a length below which squares underflow: shorter vectors count as none."""
    smallest: float = torch.finfo(dtype).tiny ** 0.5 * 1024
    return smallest


def _shortening(kind: str) -> float:
    return _SHORTENED.get(_products(kind).fp32_precision, 0.0)


# What torch.compiler.assume_constant_result does, but that imports the compiler: two seconds.
_shortening._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _products(kind: str) -> Any:
    backends: Any = torch.backends
    return backends.cuda.matmul if kind == "cuda" else backends.mkldnn.matmul


# Where a GPU adds up rows in one kernel without sorting them, and the table is so small that
# filling it takes no time.
_EMBEDDED_ROWS = 3072
_EMBEDDED_NUMBERS = 2**22


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
    >>> from protail.ops._precision import add_rows_
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


def sum_rows(index_b: Tensor, rows_bd: Tensor, n_places: int) -> Tensor:
    """Sum the rows that belong to each place, in a fixed order, as `add_rows_` does.

    To keep the order ``index_put_`` sorts, a dozen kernels that a small step on a GPU waits for.
    The gradient of an embedding, the same sum, is one kernel where rows are few.
    """
    n_rows, width = rows_bd.shape
    if rows_bd.is_cuda and n_rows <= _EMBEDDED_ROWS and n_places * width <= _EMBEDDED_NUMBERS:
        return _embedding_gradient(index_b, rows_bd, n_places)
    table_cd = rows_bd.new_zeros(n_places, width)
    add_rows_(table_cd, index_b, rows_bd)
    return table_cd


def _embedding_gradient(index_b: Tensor, rows_bd: Tensor, n_places: int) -> Tensor:
    table_cd: Tensor = torch.ops.aten.embedding_dense_backward(
        rows_bd, index_b, n_places, -1, False
    )
    return table_cd


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
    >>> from protail.ops._precision import unit_rows
    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    (tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]), tensor([0., 1.]))
    """
    length_n1 = torch.linalg.vector_norm(vectors_nd, dim=-1, keepdim=True)
    zero_n1 = length_n1 < smallest_length(vectors_nd.dtype)
    inverse_n1 = torch.where(zero_n1, 1, length_n1).reciprocal().masked_fill(zero_n1, 0)
    return vectors_nd * inverse_n1, zero_n1.squeeze(-1).to(vectors_nd.dtype)


def take_rows(table: Tensor, index_p: Tensor) -> Tensor:
    """Take rows of a table; the gradient of repeated ones adds up in a fixed order.

    As in `add_rows_`, it takes another operator on each kind of device to keep one.
    """
    return table[index_p] if table.is_cuda else F.embedding(index_p, table)


def own_temperature(temperature: Tensor | None, index_p: Tensor) -> Tensor | None:
    """Take the temperature of each pair's class; one that classes share stays one row."""
    if temperature is None or temperature.shape[0] == 1:
        return temperature
    return take_rows(temperature, index_p)

"""Keeping every bit where squares cancel, and knowing how many are left where they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

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

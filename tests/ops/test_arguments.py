"""Dtypes and schemes that every form relies on."""

import torch

from protail.ops._arguments import compute_dtype, scheme_of


def test_schemes_by_shape():
    assert scheme_of(None) is None
    assert scheme_of(torch.ones(1, 4)) == "channel"
    assert scheme_of(torch.ones(3, 1)) == "class"
    assert scheme_of(torch.ones(3, 4)) == "dense"


def test_compute_dtype_is_float64_only_when_asked():
    half, single, double = (torch.ones(1, dtype=d) for d in (torch.half, torch.float, torch.double))
    assert compute_dtype(half, None) == torch.float32
    assert compute_dtype(half, single) == torch.float32
    assert compute_dtype(half, double) == torch.float64

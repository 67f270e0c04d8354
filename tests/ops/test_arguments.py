"""Error bounds, dtypes and schemes that every form relies on."""

import pytest
import torch

from protail.ops._arguments import compute_dtype, full_precision, rounding, scheme_of


@pytest.mark.parametrize("n_features", [1, 7, 64, 512, 4096])
def test_rounding_bounds_the_expanded_square(n_features):
    """Rows on prototypes, with channels of one sign: the hardest case for the product."""
    generator = torch.Generator().manual_seed(n_features)
    for make in (torch.rand, torch.randn):
        c = make(40, n_features, generator=generator)
        x = c[:20] * (1 + 1e-4 * torch.randn(20, n_features, generator=generator))
        size = x.square().sum(1, keepdim=True) + c.square().sum(1)
        found = torch.addmm(size, x, c.mT, alpha=-2).double()
        exact = torch.cdist(x.double(), c.double(), compute_mode="donot_use_mm_for_euclid_dist")
        error = ((found - exact.square()).abs() / size).max().item()
        assert error <= rounding(n_features, torch.float32) / 1.5


def test_shortened_products_widen_the_bound():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert rounding(64, torch.float32) > 2**-10
        assert rounding(64, torch.float64) < 1e-14
    finally:
        torch.set_float32_matmul_precision(before)


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


def test_full_precision_restores_autocast():
    one = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision(one.device):
            assert (one @ one).dtype == torch.float32
        assert (one @ one).dtype == torch.bfloat16
    with full_precision(torch.device("meta")):
        assert (one @ one).dtype == torch.float32

"""Error bounds hold, and nobody's switches make the numbers worse."""

import pytest
import torch

from protail.ops import distances, loss, nearest
from protail.ops._precision import full_precision, rounding, whole_products
from reference.problems import make_problem

CPU = torch.device("cpu")


@pytest.fixture
def products():
    """The switch for float32 products on a CPU, put back afterwards."""
    switch = torch.backends.mkldnn.matmul
    before = switch.fp32_precision
    yield switch
    switch.fp32_precision = before


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
        assert error <= rounding(n_features, torch.float32, CPU) / 1.5


def test_shortened_products_widen_the_bound(products):
    plain = rounding(64, torch.float32, CPU)
    products.fp32_precision = "tf32"
    assert rounding(64, torch.float32, CPU) > plain + 2**-10
    products.fp32_precision = "bf16"
    assert rounding(64, torch.float32, CPU) > 2**-7
    assert rounding(64, torch.float64, CPU) < 1e-14


def test_shortened_products_leave_distances_and_nearest_alone(products):
    problem = make_problem(1, (30, 20, 64), offset=100.0, dtype=torch.float32)
    problem.x[:20] = problem.prototypes + 1e-3
    expected = distances(problem.x, problem.prototypes), nearest(problem.x, problem.prototypes)
    products.fp32_precision = "bf16"
    found = distances(problem.x, problem.prototypes), nearest(problem.x, problem.prototypes)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert products.fp32_precision == "bf16"
    # Training products may be short; the pull is bounded all the same.
    _, gradients = problem.loss_and_gradients(loss)
    assert gradients[0].norm(dim=1).max() * 30 <= 1.02


def test_whole_products_are_put_back_after_an_error(products):
    products.fp32_precision = "bf16"
    with whole_products(CPU):
        assert products.fp32_precision == "ieee"
    assert products.fp32_precision == "bf16"
    with pytest.raises(KeyError), whole_products(CPU):
        raise KeyError
    assert products.fp32_precision == "bf16"


def test_full_precision_restores_autocast():
    one = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision(one.device):
            assert (one @ one).dtype == torch.float32
        assert (one @ one).dtype == torch.bfloat16
    with full_precision(torch.device("meta")):
        assert (one @ one).dtype == torch.float32

"""The highest score among many classes is that of float64, however it was looked for."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protail.ops import _short, highest

N_ROWS, N_CLASSES = 33, 4_100


@pytest.fixture(autouse=True)
def _multiplies_bfloat16(monkeypatch):
    """Any CPU can, most of them slowly; small rows are enough here."""
    monkeypatch.setattr(_short, "_LARGE_BATCH", N_ROWS)
    monkeypatch.setattr(_short, "_LARGE_TABLE", N_CLASSES)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)


def in_float64(x, weights, bias):
    product = x.double().unsqueeze(1) * weights.double()
    return (product.sum(2) + bias).argmax(1)


def draw(seed, n_channels=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N_ROWS, n_channels, generator=generator)
    weights = torch.randn(N_CLASSES, n_channels, generator=generator)
    return x, weights, torch.randn(N_CLASSES, generator=generator), generator


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**20),
    n_channels=st.sampled_from([1, 3, 16]),
    size=st.sampled_from([-12, -3, 0, 3, 12]),
    spread=st.sampled_from([1, 1e-3, 1e-6]),
    alike=st.sampled_from([1, 2, 500]),
)
def test_it_is_that_of_float64(seed, n_channels, size, spread, alike):
    """Classes far from the origin, nearly the same ones, and the same ones several times."""
    x, weights, bias, generator = draw(seed, n_channels)
    middle = torch.randn(n_channels, generator=generator)
    weights = middle + spread * weights[torch.arange(N_CLASSES) // alike]
    bias = bias[torch.arange(N_CLASSES) // alike] * spread
    order = torch.randperm(N_CLASSES, generator=generator)
    x, weights, bias = x * 10.0**size, weights[order], bias[order] * 10.0**size
    found = highest(x, weights, bias)
    if found is None:  # too many are the same
        assert alike > 64 or spread < 1e-3
        return
    assert torch.equal(found, in_float64(x, weights, bias))


def test_it_finds_what_differs_by_the_last_digit():
    x, weights, bias, _ = draw(0)
    weights[7::100] = weights[7]
    weights[3_907, 2] = torch.nextafter(weights[7, 2], torch.tensor(torch.inf))
    x[:] = weights[7]
    x[:16, 2], x[16:, 2] = 1.0, -1.0
    bias[:] = 0
    bias[7::100] = 100
    assert highest(x, weights, bias).tolist() == [3_907] * 16 + [7] * 17


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-39, 1e-33, 1e30, 1e37, 3.4e38])
@pytest.mark.parametrize("of", ["rows", "a row", "classes", "a class", "a bias"])
def test_numbers_beyond_the_range_are_found_or_left_open(size, of):
    x, weights, bias, _ = draw(1)
    some = slice(None) if of in ("rows", "classes") else slice(4, 5)
    if of == "a bias":
        bias[some] = size
    else:
        table = x if of in ("rows", "a row") else weights
        table[some] = table[some].sign() * size
    found = highest(x, weights, bias)
    if found is None:
        return
    is_open = found < 0
    assert torch.equal(found[~is_open], in_float64(x, weights, bias)[~is_open])
    if of == "a row":
        assert is_open.sum() == is_open[4].sum()
    if 1e-30 < size < 1e30 or (size < 1 and of in ("a class", "a bias")):
        assert not is_open.any()


def test_what_is_no_number_is_left_open():
    x, weights, bias, _ = draw(2)
    x[0, 0], x[1, 1] = torch.nan, torch.inf
    found = highest(x, weights, bias)
    assert (found[:2] == -1).all()
    assert torch.equal(found[2:], in_float64(x, weights, bias)[2:])
    bias[5] = torch.nan
    assert (highest(x, weights, bias) == -1).all()


def test_too_many_candidates_are_not_listed(monkeypatch):
    x, weights, bias, _ = draw(3)
    monkeypatch.setattr(_short, "_FEW", 0)
    weights *= 1e-4
    weights[0] = 50  # what is lost may be as large as this class allows
    assert highest(x, weights, bias * 0) is None


def test_all_scores_are_as_fast_elsewhere(monkeypatch):
    x, weights, bias, _ = draw(4)
    assert highest(x, weights, bias) is not None
    assert highest(x, weights[:200], bias[:200]) is None
    assert highest(x[:4], weights, bias) is None
    assert highest(x.double(), weights, bias) is None
    assert highest(x.half(), weights.half(), bias) is None
    shorter = x, weights.half(), bias
    assert torch.equal(highest(*shorter), in_float64(*shorter))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert highest(x, weights, bias) is None
    monkeypatch.undo()
    assert highest(x, weights, bias) is None  # small tables

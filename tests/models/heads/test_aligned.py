import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.models.heads import AlignedHead
from reference.linear_by_loop import linear_logits, lists_of, stage_1_head, stage_1_problems

X = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
COUNTS = [500, 30, 5, 1]


def build(first, counts):
    return (
        AlignedHead(first.n_classes, first.n_features)
        .to(first.weight.dtype)
        .build_on(first, counts)
    )


def learned(head, seed=0):
    """Fill all that learns with random numbers."""
    rng = np.random.default_rng(seed)
    for parameter in head.parameters():
        parameter.data.copy_(torch.from_numpy(rng.normal(size=tuple(parameter.shape))))
    return head


def aligned_by_loop(head, first, features):
    logits = linear_logits(features.tolist(), *lists_of(first))
    scales, offsets = head.scales.tolist(), head.offsets.tolist()
    odds = linear_logits(
        features.tolist(), head.confidence.weight.tolist(), head.confidence.bias.tolist()
    )
    for b, row in enumerate(logits):
        kappa = 1 / (1 + math.exp(-odds[b, 0]))
        row[:] = [kappa * (scales[c] * z + offsets[c]) + (1 - kappa) * z for c, z in enumerate(row)]
    return logits


@settings(max_examples=60)
@given(stage_1_problems(), st.integers(0, 99))
def test_equals_a_loop(problem, seed):
    first, features, counts = problem
    head = learned(build(first, counts), seed)
    expected = aligned_by_loop(head, first, features)
    np.testing.assert_allclose(head(features).detach(), expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(head.float()(features).detach(), expected, rtol=1e-4, atol=1e-3)


@settings(max_examples=10)
@given(stage_1_problems(), st.integers(0, 99))
def test_slopes_equal_differences_of_the_loop(problem, seed):
    first, features, counts = problem
    head = learned(build(first, counts), seed)
    head(features).square().sum().backward()
    for parameter in head.parameters():
        places = parameter.data.view(-1)
        for place in range(len(places)):
            middle, sums = places[place].item(), []
            for moved in (middle + 1e-6, middle - 1e-6):
                places[place] = moved
                sums.append((aligned_by_loop(head, first, features) ** 2).sum())
            places[place] = middle
            slope = parameter.grad.view(-1)[place].item()
            assert slope == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-5, abs=1e-5)


@settings(max_examples=20)
@given(stage_1_problems(), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_at_the_start_it_is_stage_1_for_every_kappa(problem, weight, bias):
    first, features, counts = problem
    head = build(first, counts)
    assert torch.equal(head(features), first(features))
    torch.nn.init.constant_(head.confidence.weight, weight)
    torch.nn.init.constant_(head.confidence.bias, bias)
    assert torch.equal(head(features), first(features))


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_the_ends_of_kappa(kappa):
    first = stage_1_head()
    head = learned(build(first, COUNTS))
    torch.nn.init.zeros_(head.confidence.weight)
    torch.nn.init.constant_(head.confidence.bias, 1e4 * (2 * kappa - 1))
    assert (head.kappa(X) == kappa).all()
    expected = head.scales * first(X) + head.offsets if kappa else first(X)
    torch.testing.assert_close(head(X), expected)


def test_where_learning_starts():
    head = AlignedHead(4, 6)
    assert torch.equal(head.scales, torch.ones(4))
    assert torch.equal(head.offsets, torch.zeros(4))
    assert torch.equal(head.confidence.weight, torch.full((1, 6), 0.1))
    assert head.confidence.bias.abs() <= 6**-0.5
    assert head.confidence.bias != 0

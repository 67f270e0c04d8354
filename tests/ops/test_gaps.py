"""Gaps, nearest classes and distances at every scale, against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.ops import distances, gaps, nearest, top_k
from reference.problems import ALL_DISTANCES, DISTANCES, SCHEMES, make_problem, problems

few = settings(max_examples=60)


def exact_squares(x, prototypes):
    """Squares of the distances, without any rounding."""

    def numbers(rows):
        return [[Fraction(float(v)) for v in row] for row in rows]

    return [
        [sum((a - b) ** 2 for a, b in zip(row, c, strict=True)) for c in numbers(prototypes)]
        for row in numbers(x)
    ]


def root(square):
    return Fraction(math.isqrt(int(square * 4**700))) / 2**700


def exact_gap(square, lowest, distance):
    if distance == "sqeuclidean":
        return square - lowest
    return (square - lowest) / (root(square) + root(lowest)) if square != lowest else Fraction(0)


@settings(max_examples=100)
@given(
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["euclidean", "sqeuclidean"]),
    st.lists(st.floats(-30, 30) | st.just(300.0), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 7),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_rows_of_every_length(dtype, distance, exponents, n_classes, width, flipped, seed):
    rng = np.random.default_rng(seed)
    prototypes = torch.tensor(3 * rng.normal(size=(n_classes, width)), dtype=dtype)
    if flipped and n_classes > 2:
        prototypes[1], prototypes[2] = prototypes[0], -prototypes[0]
    most = 37 if dtype == torch.float32 else 300
    scales = 10.0 ** np.minimum(exponents, most)
    x = torch.tensor(rng.normal(size=(len(scales), width)) * scales[:, None], dtype=dtype)
    found = gaps(x, prototypes, distance)
    first = nearest(x, prototypes, distance=distance)
    best = top_k(x, prototypes, 1, distance=distance)
    rtol = 2e-3 if dtype == torch.float32 else 1e-8
    for b, squares in enumerate(exact_squares(x, prototypes)):
        lowest = min(squares)
        assert first[b] == best.classes_bk[b, 0] == squares.index(lowest)
        assert first[b] == found.gap_bc[b].tolist().index(0)
        for c, square in enumerate(squares):
            expected = exact_gap(square, lowest, distance)
            if expected > torch.finfo(dtype).max:
                assert found.gap_bc[b, c] == torch.inf
            else:
                expected = float(expected)
                assert found.gap_bc[b, c].item() == pytest.approx(expected, rel=rtol, abs=rtol)


@few
@given(problems(adjusted=False))
def test_gaps_are_differences_of_the_distances(problem):
    found = gaps(problem.x, problem.prototypes, **problem.options)
    expected = problem.naive_distances()
    np.testing.assert_allclose(found.nearest_b, expected.min(1), rtol=1e-9, atol=1e-12)
    difference = expected - expected.min(1, keepdims=True)
    np.testing.assert_allclose(found.gap_bc, difference, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.distances(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_float32_where_rounding_leaves_the_choice_open(distance, scheme, offset):
    """The class with a gap of 0 is the nearest one; prototypes come in nearly equal groups."""
    problem = make_problem(1, (50, 37, 24), distance, scheme, False, offset, torch.float32)
    problem.prototypes[18:36] = problem.prototypes[:18]
    problem.prototypes[1:18:3] = problem.prototypes[0:18:3] + 1e-5
    problem.x[:18] = problem.prototypes[:18] + 1e-4
    found = gaps(problem.x, problem.prototypes, **problem.options)
    assert torch.equal(
        found.gap_bc.argmin(1), nearest(problem.x, problem.prototypes, **problem.options)
    )
    expected = problem.naive_distances()
    bound = 1e-4 * expected.max(1, keepdims=True)
    assert (abs(found.distances().numpy() - expected) <= bound).all()


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_very_long_rows_with_temperatures(distance, scheme):
    cpu = make_problem(2, (6, 5, 4), distance, scheme, False, dtype=torch.float32)
    for scale in (1e10, 1e19, 1e30):
        x = cpu.x * scale
        found = gaps(x, cpu.prototypes, **cpu.options)
        wide = None if cpu.temperature is None else cpu.temperature.double()
        double = gaps(x.double(), cpu.prototypes.double(), distance, wide)
        assert not found.gap_bc.isnan().any()
        torch.testing.assert_close(found.gap_bc, double.gap_bc.float(), rtol=1e-3, atol=1e-5)
        chosen = nearest(x, cpu.prototypes, **cpu.options)
        assert (found.gap_bc.gather(1, chosen.unsqueeze(1)) == 0).all()
        assert torch.equal(chosen, top_k(x, cpu.prototypes, 3, **cpu.options).classes_bk[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosine_knows_the_direction_of_every_row(dtype):
    problem = make_problem(3, (20, 6, 5), "cosine", dtype=dtype)
    expected = distances(problem.x, problem.prototypes, "cosine")
    for scale in (1e-35, 1e-20, 1e20, 1e35):
        x = problem.x * scale
        torch.testing.assert_close(distances(x, problem.prototypes, "cosine"), expected)
        found = nearest(x, problem.prototypes, distance="cosine")
        assert torch.equal(found, expected.argmin(1))


def test_distances_that_float32_can_hold_are_finite():
    x = torch.tensor([[1e25, 0.0], [3e38, 0.0], [0.0, 0.0]])
    prototypes = torch.tensor([[1.0, 2.0], [-1.0, 2.0]])
    found = distances(x, prototypes)
    torch.testing.assert_close(found[:2], x[:2, :1].expand(2, 2))
    torch.testing.assert_close(found[2], torch.full((2,), 5.0).sqrt())
    assert distances(x, prototypes, "sqeuclidean")[0].isposinf().all()
    # NaN and infinity stay what they are, and every answer has its shape.
    broken = torch.tensor([[torch.nan, 0.0], [torch.inf, 0.0]])
    assert not distances(broken.double(), prototypes)[0].isfinite().any()
    assert not distances(broken, prototypes)[0].isfinite().any()
    assert top_k(broken, prototypes, 2).classes_bk.sort(1).values.tolist() == [[0, 1]] * 2
    assert nearest(broken, prototypes).shape == (2,)


def test_no_rows_and_one_class():
    found = gaps(torch.empty(0, 3), torch.ones(2, 3))
    assert found.gap_bc.shape == (0, 2)
    found = gaps(torch.ones(2, 3), torch.zeros(1, 3))
    assert found.gap_bc.tolist() == [[0], [0]]
    torch.testing.assert_close(found.nearest_b, torch.full((2,), 3.0).sqrt())

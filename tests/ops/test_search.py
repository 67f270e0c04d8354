"""Nearest classes are those of exact arithmetic; ties go to the first."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestCentroid

from protail.ops import distances, nearest, top_k
from reference.problems import ALL_DISTANCES, DISTANCES, SCHEMES, make_problem, problems

few = settings(max_examples=50)


@few
@given(problems(adjusted=False), st.sampled_from([1, 2000, 2**28]), st.data())
def test_nearest_and_top_k_equal_the_loops(problem, budget, data):
    expected = problem.naive_distances()
    k = data.draw(st.integers(1, expected.shape[1]))
    args = problem.x, problem.prototypes
    found = top_k(*args, k, **problem.options, memory_budget=budget)
    order = np.argsort(expected, axis=1, kind="stable")[:, :k]
    np.testing.assert_allclose(
        found.distances_bk, np.take_along_axis(expected, order, 1), rtol=1e-9, atol=1e-12
    )
    if np.diff(np.sort(expected, axis=1), axis=1).min(initial=1) > 1e-9:
        np.testing.assert_array_equal(found.classes_bk, order)
        one = nearest(*args, **problem.options, memory_budget=budget)
        np.testing.assert_array_equal(one, order[:, 0])


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_choices_that_rounding_would_leave_open(distance, scheme, offset):
    """Prototypes in nearly and exactly equal groups, in float32 far from the origin."""
    problem = make_problem(1, (50, 37, 24), distance, scheme, False, offset, torch.float32)
    problem.prototypes[18:36] = problem.prototypes[:18]
    problem.prototypes[1:18:3] = problem.prototypes[0:18:3]
    problem.prototypes[2:18:3] = problem.prototypes[0:18:3] + 1e-5
    if problem.temperature is not None and scheme != "channel":
        problem.temperature[1:36] = problem.temperature[:1]
    exact = distances(problem.x.double(), problem.prototypes.double(), **problem.options)
    for budget in (20_000, 2**28):
        found = nearest(problem.x, problem.prototypes, **problem.options, memory_budget=budget)
        first = top_k(problem.x, problem.prototypes, 1, **problem.options, memory_budget=budget)
        assert torch.equal(found, first.classes_bk.squeeze(1))
        chosen = exact.gather(1, found.unsqueeze(1)).squeeze(1)
        low = exact.amin(1)
        torch.testing.assert_close(chosen, low, rtol=1e-9, atol=1e-12)
        # No earlier class holds the very same vector.
        same = (problem.prototypes[found].unsqueeze(1) == problem.prototypes).all(2)
        assert torch.equal(found, same.int().argmax(1))


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("budget", [2**16, 2**28])
def test_rows_half_way_between_two_prototypes(distance, budget):
    """Float32 products cannot tell the two apart, in one chunk or across chunks; we do."""
    generator = torch.manual_seed(3)
    prototypes = torch.randn(60, 24, generator=generator)
    pair = torch.arange(3000) % 30
    a, b = prototypes[pair], prototypes[pair + 30]
    if distance == "cosine":
        a, b = torch.nn.functional.normalize(a), torch.nn.functional.normalize(b)
    x = (a + b) / 2 + 1e-7 * torch.randn(3000, 24, generator=generator)
    exact = distances(x.double(), prototypes.double(), distance).argmin(1)
    assert torch.equal(nearest(x, prototypes, distance=distance, memory_budget=budget), exact)


def test_ties_go_to_the_lowest_class_in_every_shape():
    for n_classes in (2, 17, 101):
        for n_rows in (1, 20):
            row = torch.randn(1, 33, generator=torch.manual_seed(0)) + 10
            prototypes, x = row.expand(n_classes, -1), torch.randn(n_rows, 33)
            for distance in DISTANCES:
                assert (nearest(x, prototypes, distance=distance) == 0).all()
                classes = top_k(
                    x, prototypes, 2, distance=distance, memory_budget=100_000
                ).classes_bk
                assert (classes == torch.tensor([0, 1])).all()


def test_zero_rows_are_equally_far_in_cosine():
    prototypes = torch.randn(9, 5, generator=torch.manual_seed(1))
    assert nearest(torch.zeros(2, 5), prototypes, distance="cosine").tolist() == [0, 0]


def test_equals_nearest_centroid():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(500, 16)).astype("f4") + 3, np.arange(500) % 20
    rows = rng.normal(size=(400, 16)).astype("f4") + 3
    oracle = NearestCentroid().fit(features.astype("f8"), labels)
    found = nearest(torch.tensor(rows), torch.tensor(oracle.centroids_))
    np.testing.assert_array_equal(found, oracle.predict(rows.astype("f8")))


def test_top_k_gives_exact_distances_in_the_right_dtype():
    problem = make_problem(2, (6, 9, 64), offset=100.0, dtype=torch.float32)
    problem.x[:] = problem.prototypes[:6] + 1e-3
    found = top_k(problem.x, problem.prototypes, 3)
    assert found.distances_bk.dtype == torch.float32
    assert found.classes_bk[:, 0].tolist() == list(range(6))
    expected = np.sort(problem.naive_distances(), axis=1)[:, :3]
    np.testing.assert_allclose(found.distances_bk, expected, rtol=1e-6)


def test_no_rows_and_a_wrong_k():
    x, prototypes = torch.empty(0, 3), torch.ones(4, 3)
    assert nearest(x, prototypes).shape == (0,)
    assert top_k(x, prototypes, 2).classes_bk.shape == (0, 2)
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k={k}; expected 1 to 4"):
            top_k(torch.ones(2, 3), prototypes, k)


def test_no_gradient_is_asked_for():
    prototypes = torch.randn(4, 3, requires_grad=True)
    assert not nearest(torch.ones(2, 3), prototypes).requires_grad
    assert not top_k(torch.ones(2, 3), prototypes, 2).distances_bk.requires_grad

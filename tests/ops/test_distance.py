"""Distances as objects: names, one of one's own in one class, and the shared metric."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import mahalanobis

from protail.ops import (
    as_distance,
    chunked,
    distance_names,
    distances,
    fused,
    gaps,
    loss,
    nearest,
    reference,
    top_k,
)
from protail.ops.distance import (
    DISTANCES,
    Distance,
    Euclidean,
    Mahalanobis,
    SqEuclidean,
    register_distance,
)
from reference.problems import ALL_DISTANCES, assert_close, make_problem

FORMS = {
    "reference": reference.loss,
    "fused": fused.loss,
    "chunked": lambda *args, **options: chunked.loss(*args, **options, memory_budget=3000),
    "selected": loss,
}


@pytest.fixture
def own_names():
    """Forget what a test registers."""
    from protail.ops.distance import _READY

    known = dict(DISTANCES._factories), dict(_READY)
    yield
    for now, before in zip((DISTANCES._factories, _READY), known, strict=True):
        now.clear()
        now.update(before)


def test_names():
    assert set(ALL_DISTANCES) <= set(distance_names())
    assert "mahalanobis" not in distance_names(ready=True)
    for name in distance_names(ready=True):
        assert as_distance(name).name == name
    with pytest.raises(ValueError, match="distance 'mahalanobis' needs the option 'matrix'"):
        as_distance("mahalanobis")
    with pytest.raises(ValueError, match="Did you mean 'cosine'"):
        as_distance("cosin")


@pytest.mark.parametrize("name", ALL_DISTANCES)
def test_what_each_says_of_itself_fits_together(name):
    problem = make_problem(1, (5, 4, 6), name)
    distance = as_distance(problem.distance)
    args = problem.x, problem.prototypes
    expected = torch.from_numpy(problem.naive_distances())
    pairs = distance.between(args[0][:4], args[1])
    torch.testing.assert_close(pairs, expected[:4].diagonal())
    torch.testing.assert_close(distance.link(distance.unlink(expected)), expected)
    torch.testing.assert_close(
        distances(3 * args[0], 3 * args[1], distance), distance.times(expected, 3)
    )
    torch.testing.assert_close(distance.times(expected, 3), expected * 3**distance.power)


def test_a_distance_of_ones_own_is_one_class(own_names):
    stretched = torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0], dtype=torch.float64)

    @register_distance("stretched")
    class Stretched(Euclidean):
        def difference(self, x, other):
            return super().difference(x, other) * stretched

    problem = make_problem(2, (30, 20, 5), "euclidean", "channel")
    expected = distances(problem.x * stretched, problem.prototypes * stretched, **problem.options)
    problem.distance = "stretched"
    found = distances(problem.x, problem.prototypes, **problem.options)
    torch.testing.assert_close(found, expected)
    assert torch.equal(
        nearest(problem.x, problem.prototypes, **problem.options), expected.argmin(1)
    )
    stretched_problem = make_problem(2, (30, 20, 5), "euclidean", "channel")
    stretched_problem.x *= stretched
    stretched_problem.prototypes *= stretched
    for form in FORMS.values():
        value, gradients = problem.loss_and_gradients(form)
        same, expected = stretched_problem.loss_and_gradients(form)
        torch.testing.assert_close(value, same)
        for one, other, factor in zip(
            gradients, expected, (stretched, stretched, 1, 1), strict=True
        ):
            torch.testing.assert_close(one, other * factor)
    assert Stretched().name == "stretched"
    with pytest.raises(ValueError, match="'stretched' is already a distance"):
        register_distance("stretched")(SqEuclidean)
    # One that is not registered is used as an object, and has no name to be saved by.
    assert type("Unnamed", (Euclidean,), {})().name == ""


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6)),
    st.integers(1, 7),
    st.sampled_from([None, "channel", "class", "dense"]),
    st.sampled_from(sorted(FORMS)),
)
def test_a_map_of_any_shape_equals_the_loops(seed, shape, n_made, scheme, form):
    if (form, scheme) == ("fused", "dense"):
        return
    problem = make_problem(seed, shape, "mahalanobis")
    rng = np.random.default_rng(seed)
    problem.distance = Mahalanobis(torch.tensor(rng.normal(size=(n_made, shape[2]))))
    if scheme is not None:
        size = {"channel": (1, n_made), "class": (shape[1], 1), "dense": (shape[1], n_made)}[scheme]
        problem.temperature = torch.tensor(rng.uniform(0.3, 3, size=size))
    value, gradients = problem.loss_and_gradients(FORMS[form])
    assert value.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-9, abs=1e-12)
    assert_close(gradients, problem.naive_gradients(), rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        found = distances(problem.x, problem.prototypes, **problem.options)
    np.testing.assert_allclose(found, problem.naive_distances(), rtol=1e-8, atol=1e-10)


def test_whitening_is_the_mahalanobis_distance_in_float32_too():
    """Channels of very unequal spread, far from the origin: the map cancels almost everything."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(16, 16)) * np.logspace(-2, 2, 16)
    rows = torch.tensor(rng.normal(size=(300, 16)) @ mixing.T + 100, dtype=torch.float32)
    covariance = np.cov(rows.double().numpy().T)
    whitening = np.linalg.inv(np.linalg.cholesky(covariance))
    distance = Mahalanobis(torch.tensor(whitening, dtype=torch.float32))
    x, prototypes = rows[:20], rows[20:40]
    inverse = whitening.astype("f4").astype("f8")
    inverse = inverse.T @ inverse
    pairs = x.double().numpy(), prototypes.double().numpy()
    expected = np.array([[mahalanobis(u, v, inverse) for v in pairs[1]] for u in pairs[0]])
    found = distances(x, prototypes, distance)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert torch.equal(nearest(x, prototypes, distance=distance), torch.tensor(expected.argmin(1)))


def test_far_rows_and_ties():
    distance = Mahalanobis(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
    prototypes = torch.tensor([[0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [-1.0, 0.0]])
    for scale in (1.0, 1e10, 1e19, 1e30, 1e38):
        x = torch.tensor([[1.0, 2.0], [-2.0, 1.0], [3.0, -0.5]]) * scale
        found = gaps(x, prototypes, distance)
        double = gaps(x.double(), prototypes.double(), distance)
        torch.testing.assert_close(found.gap_bc, double.gap_bc.float(), rtol=1e-3, atol=1e-5)
        assert torch.equal(nearest(x, prototypes, distance=distance), found.gap_bc.argmin(1))
        assert torch.equal(
            top_k(x, prototypes, 2, distance=distance).classes_bk[0], torch.tensor([1, 2])
        )


def test_what_a_map_must_be():
    with pytest.raises(
        ValueError, match=r"matrix has shape \(3,\).*expected floating point of two"
    ):
        Mahalanobis(torch.ones(3))
    with pytest.raises(ValueError, match=r"matrix has shape \(2, 3\); expected 4 columns"):
        distances(torch.ones(1, 4), torch.ones(2, 4), Mahalanobis(torch.ones(2, 3)))
    args = torch.ones(1, 3), torch.ones(4, 3), Mahalanobis(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"temperature has shape \(1, 3\); expected \(1, 2\)"):
        distances(*args, temperature=torch.ones(1, 3))
    assert isinstance(Mahalanobis(torch.eye(2)), Distance)
    assert list(Mahalanobis(torch.eye(2)).parameters()) == []  # given, not learned

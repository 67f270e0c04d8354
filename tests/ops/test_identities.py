"""What the paper says of its classifier, and what the classifier is equal to."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import mahalanobis

from protail.ops import chunked, distances, fused, logits, loss, reference
from reference import distances as naive
from reference.problems import DISTANCES, SCHEMES, make_problem

FORMS = {
    "reference": reference.loss,
    "fused": fused.loss,
    "chunked": lambda *args, **options: chunked.loss(*args, **options, memory_budget=3000),
}
few = settings(max_examples=40)


def pulls(form, x, prototypes, target, distance="euclidean"):
    """Gradient on every prototype from one row, and the probabilities in float64."""
    prototypes = prototypes.detach().requires_grad_()
    value = FORMS[form](x, prototypes, torch.tensor([target]), distance=distance)
    (gradient,) = torch.autograd.grad(value, prototypes)
    arrays = x.double().numpy(), prototypes.detach().double().numpy()
    return gradient.double(), naive.probabilities(*arrays, distance)[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@few
@given(
    seed=st.integers(0, 2**32 - 1),
    offset=st.sampled_from([0.0, 100.0]),
    near=st.sampled_from([1e-3, 0.1, 1.0]),
)
def test_theorem_1_corrected(form, dtype, seed, offset, near):
    """Norms (1-p)/2 and p/2 along x - c, whether the own prototype is near or far."""
    rng = np.random.default_rng(seed)
    prototypes = torch.tensor(rng.normal(size=(5, 12)) + offset, dtype=dtype)
    x = prototypes[:1] + torch.tensor(near * rng.normal(size=(1, 12)), dtype=dtype)
    gradient, p = pulls(form, x, prototypes, 0)
    tolerance = 1e-9 if dtype == torch.float64 else 3e-4
    expected = np.append((1 - p[0]) / 2, p[1:] / 2)
    np.testing.assert_allclose(gradient.norm(dim=1), expected, rtol=tolerance)
    direction = torch.nn.functional.normalize(x.double() - prototypes.double())
    cosines = (torch.nn.functional.normalize(gradient) * direction).sum(1)
    # The own prototype is drawn to the row, the others are pushed away from it.
    np.testing.assert_allclose(cosines, [-1, 1, 1, 1, 1], atol=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("near", [1e-6, 1e-5, 1e-4])
def test_float32_never_pulls_harder_than_theorem_1(form, near):
    """Near other prototypes the expanded square is rounding error; the gradient stays bounded."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        prototypes = torch.tensor(rng.normal(size=(6, 64)) * 5, dtype=torch.float32)
        prototypes[1:3] = prototypes[0] + torch.tensor(near * rng.normal(size=(2, 64))).float()
        x = prototypes[:1] + torch.tensor(near * rng.normal(size=(1, 64))).float()
        for target in (0, 1, 3):
            gradient, _ = pulls(form, x, prototypes, target)
            value = distances(x, prototypes.requires_grad_(), target=torch.tensor([target]))
            p = (-0.5 * value.detach()).softmax(1)[0]
            norm = gradient.norm(dim=1)
            own = torch.arange(6) == target
            assert norm[own].item() == pytest.approx((1 - p[own]).item() / 2, rel=1e-3)
            assert (norm[~own] <= p[~own] / 2 * (1 + 2e-3)).all()


@pytest.mark.parametrize("form", FORMS)
def test_sqeuclidean_pulls_by_the_distance(form):
    problem = make_problem(1, (1, 5, 6))
    gradient, p = pulls(form, problem.x, problem.prototypes, 2, "sqeuclidean")
    lengths = (problem.x - problem.prototypes).norm(dim=1).numpy()
    np.testing.assert_allclose(gradient.norm(dim=1), abs(p - np.eye(5)[2]) * lengths, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_euclidean_ignores_how_far_an_outlier_is(form, dtype):
    """Along one direction all distances grow alike, so the pull stays where it is."""
    prototypes = torch.tensor([[0.0, 0.0], [0.0, 3.0], [0.0, -5.0]], dtype=dtype)
    norms = []
    for far in (3e2, 1e3, 1e4):
        x = torch.tensor([[far, 0.0]], dtype=dtype)
        gradient, _ = pulls(form, x, prototypes, 0)
        norms.append(gradient.norm(dim=1).numpy())
        squared, _ = pulls(form, x, prototypes, 1, "sqeuclidean")
        assert squared.norm(dim=1).max() > 0.4 * far
    np.testing.assert_allclose(norms[1:], [norms[0]] * 2, rtol=2e-2)


def test_channel_temperatures_are_a_diagonal_mahalanobis_distance():
    problem = make_problem(2, (4, 5, 6), scheme="channel")
    found = distances(problem.x, problem.prototypes, temperature=problem.temperature)
    inverse = np.diag(1 / problem.temperature[0].numpy())
    for b, x in enumerate(problem.x.numpy()):
        for c, prototype in enumerate(problem.prototypes.numpy()):
            assert found[b, c].item() == pytest.approx(mahalanobis(x, prototype, inverse))


def test_sqeuclidean_is_a_linear_head():
    problem = make_problem(3, (7, 5, 6))
    linear = torch.nn.Linear(6, 5, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(problem.prototypes)
        linear.bias.copy_(-problem.prototypes.square().sum(1) / 2)
        expected = linear(problem.x).softmax(1)
    found = logits(problem.x, problem.prototypes, "sqeuclidean").softmax(1)
    torch.testing.assert_close(found, expected)
    value = loss(problem.x, problem.prototypes, problem.target, distance="sqeuclidean")
    by_linear = torch.nn.functional.cross_entropy(linear(problem.x), problem.target)
    assert value.item() == pytest.approx(by_linear.item())


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_permuting_classes_permutes_everything(distance, scheme):
    problem = make_problem(4, (6, 8, 5), distance, scheme)
    order = torch.randperm(8, generator=torch.manual_seed(0))
    by_class = scheme in ("class", "dense")
    temperature = problem.temperature[order] if by_class else problem.temperature
    found = distances(problem.x, problem.prototypes[order], distance, temperature)
    expected = distances(problem.x, problem.prototypes, **problem.options)[:, order]
    torch.testing.assert_close(found, expected)
    moved = loss(
        problem.x,
        problem.prototypes[order],
        order.argsort()[problem.target],
        distance=distance,
        temperature=temperature,
        adjustment=problem.adjustment[order],
    )
    stayed = loss(
        problem.x,
        problem.prototypes,
        problem.target,
        **problem.options,
        adjustment=problem.adjustment,
    )
    torch.testing.assert_close(moved, stayed)


@pytest.mark.parametrize("scheme", [None, "channel"])
def test_cosine_is_half_the_square_between_unit_vectors(scheme):
    problem = make_problem(5, (4, 5, 6), "cosine", scheme)
    scale = 1 if scheme is None else problem.temperature.rsqrt()
    units = [torch.nn.functional.normalize(v * scale) for v in (problem.x, problem.prototypes)]
    expected = torch.cdist(*units).square() / 2
    torch.testing.assert_close(
        distances(problem.x, problem.prototypes, **problem.options), expected
    )

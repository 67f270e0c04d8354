"""The reference form against the loops, in every dtype, and at its hard places."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from protail.ops import distances, logits, reference
from reference.problems import (
    ALL_DISTANCES,
    DISTANCES,
    SCHEMES,
    assert_close,
    make_problem,
    problems,
)

few = settings(max_examples=60)


@few
@given(problems())
def test_distances_loss_and_gradients_equal_the_loops(problem):
    args = problem.x, problem.prototypes, problem.distance, problem.temperature
    expected = problem.naive_distances()
    np.testing.assert_allclose(distances(*args), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logits(*args), -0.5 * expected, rtol=1e-9, atol=1e-12)
    loss, gradients = problem.loss_and_gradients(reference.loss)
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-9)
    assert_close(gradients, problem.naive_gradients(), rtol=1e-6, atol=1e-8)


@few
@given(problems(dtype=torch.float32, min_features=4))
def test_float32(problem):
    args = problem.x, problem.prototypes, problem.distance, problem.temperature
    expected = problem.naive_distances()
    found = distances(*args)
    assert found.dtype == torch.float32
    assert (abs(found.numpy() - expected) <= 1e-4 * expected.max(1, keepdims=True)).all()
    loss, gradients = problem.loss_and_gradients(reference.loss)
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-4, abs=1e-5)
    assert_close(gradients, problem.naive_gradients(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_half_precision_inputs_compute_in_float32(dtype, distance, scheme):
    for seed in range(3):
        problem = make_problem(seed, (4, 5, 16), distance, scheme, dtype=dtype)
        found = distances(problem.x, problem.prototypes, **problem.options)
        assert found.dtype == torch.float32
        expected = problem.naive_distances()
        assert (abs(found.numpy() - expected) <= 1e-4 * expected.max(1, keepdims=True)).all()
        loss, gradients = problem.loss_and_gradients(reference.loss)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-4)
        assert gradients[1].dtype == dtype
        assert_close(gradients, problem.naive_gradients(), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n_features", [8, 512])
def test_far_from_the_origin(distance, scheme, n_features):
    problem = make_problem(1, (20, 12, n_features), distance, scheme, False, 100.0, torch.float32)
    problem.x[:12] = problem.prototypes + 1e-3 * problem.x[:12].frac()
    problem.target[:12] = torch.arange(12)
    args = problem.x, problem.prototypes, problem.distance, problem.temperature
    expected = problem.naive_distances()
    bound = 1e-4 * expected.max(1, keepdims=True)
    assert (abs(distances(*args).numpy() - expected) <= bound).all()

    problem.prototypes.requires_grad_()
    rows = np.arange(20), problem.target.numpy()
    for target in (problem.target, None):
        tracked = distances(*args, target=target).detach().numpy()
        others = expected > 0.05 * expected.max(1, keepdims=True)
        assert (abs(tracked - expected) <= bound)[others].all()
    own = distances(*args, target=problem.target).detach().numpy()[rows]
    # Unit vectors of float32 are no better than this; the others are exact to the last bits.
    rtol = 2e-3 if distance == "cosine" else 2e-6
    np.testing.assert_allclose(own, expected[rows], rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_finite_and_bounded_on_a_prototype(dtype, distance, scheme, offset):
    problem = make_problem(2, (3, 4, 6), distance, scheme, False, offset, dtype)
    problem.prototypes[1] = problem.prototypes[0]
    problem.prototypes[3] = 0
    problem.x[0] = problem.x[1] = problem.prototypes[0]
    problem.x[2] = 0
    problem.target = torch.tensor([0, 2, 3])
    args = problem.x, problem.prototypes, problem.distance, problem.temperature
    if distance == "euclidean":
        assert (distances(*args)[0, :2] == 0).all()
    loss, gradients = problem.loss_and_gradients(reference.loss)
    assert loss.isfinite()
    assert all(g is None or g.isfinite().all() for g in gradients)
    if distance == "euclidean" and scheme is None:
        # One row of three: no pull is longer than half a row's share, the own one is zero.
        assert gradients[1].float().norm(dim=1).max() <= 0.5 * (1 + 1e-3)


def test_all_prototypes_and_rows_equal():
    for value in (0.0, 7.3):
        prototypes = torch.full((3, 4), value, requires_grad=True)
        x = torch.full((2, 4), value, requires_grad=True)
        for distance in DISTANCES:
            loss = reference.loss(x, prototypes, torch.tensor([0, 2]), distance=distance)
            assert loss.item() == pytest.approx(np.log(3), abs=1e-3)
            for gradient in torch.autograd.grad(loss, (x, prototypes)):
                assert gradient.abs().max() < 1e-3


def test_cosine_of_a_zero_vector_is_one_and_pulls_nothing():
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    for temperature in (None, torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0], [2.0, 1.0]])):
        found = distances(x, prototypes, "cosine", temperature)
        assert found[0].tolist() == pytest.approx([1, 1])
        assert found[1, 0].item() == pytest.approx(1)
        by_x, by_prototypes = torch.autograd.grad(found.sum(), (x, prototypes))
        assert (by_x[0] == 0).all()
        assert (by_prototypes[0] == 0).all()
        assert by_x.isfinite().all()


def test_class_temperature_leaves_cosine_as_it_is():
    problem = make_problem(3, (4, 5, 6), "cosine", "class")
    plain = distances(problem.x, problem.prototypes, "cosine")
    assert torch.equal(
        distances(problem.x, problem.prototypes, "cosine", problem.temperature), plain
    )
    _, gradients = problem.loss_and_gradients(reference.loss)
    assert (gradients[2] == 0).all()


def test_very_unequal_temperatures_stay_within_the_bound():
    problem = make_problem(4, (10, 6, 32), "sqeuclidean", "class", False, 1.0, torch.float32)
    problem.temperature = torch.logspace(-4, 4, 6).unsqueeze(1)
    for distance in ("euclidean", "sqeuclidean"):
        problem.distance = distance
        expected = problem.naive_distances()
        found = distances(problem.x, problem.prototypes, **problem.options).numpy()
        assert (abs(found - expected) <= 1e-4 * expected.max(1, keepdims=True)).all()


def test_reductions():
    problem = make_problem(5)
    args = problem.x, problem.prototypes, problem.target
    rows = reference.loss(*args, adjustment=problem.adjustment, reduction="none")
    np.testing.assert_allclose(rows, problem.naive_losses(), rtol=1e-12)
    total = reference.loss(*args, adjustment=problem.adjustment, reduction="sum")
    assert total.item() == pytest.approx(rows.sum().item())


@pytest.mark.parametrize("distance", DISTANCES)
def test_autocast_changes_nothing(distance):
    problem = make_problem(6, (4, 5, 16), distance, "channel", dtype=torch.float32)
    expected = problem.loss_and_gradients(reference.loss)
    leaves = [leaf.requires_grad_() for leaf in problem.leaves]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = reference.loss(
            *leaves[:2], problem.target, **problem.options, adjustment=problem.adjustment
        )
    assert torch.equal(loss, expected[0])
    for one, other in zip(torch.autograd.grad(loss, leaves), expected[1], strict=True):
        assert torch.equal(one, other)


def test_no_batch_class_channel_tensor_is_built():
    x, prototypes = torch.zeros(1000, 100), torch.randn(1000, 100)
    biggest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                biggest = max(biggest, result.numel())
            return result

    x[:, 0] = torch.arange(1000)
    with Watch():
        distances(x, prototypes, temperature=torch.ones(1000, 100))
    assert biggest <= 1000 * 1000


def test_meta_tensors_have_shapes():
    x, prototypes = torch.empty(2, 3, device="meta"), torch.empty(4, 3, device="meta")
    assert distances(x, prototypes).shape == (2, 4)
    assert (
        reference.loss(x, prototypes, torch.empty(2, dtype=torch.long, device="meta")).shape == ()
    )

"""The hand-written gradient against the loops and the reference form."""

import pytest
import torch
from hypothesis import given, settings

from protail.ops import fused
from reference.problems import ALL_DISTANCES, assert_close, make_problem, problems

few = settings(max_examples=60)
SCHEMES = (None, "channel", "class")


@few
@given(problems())
def test_equals_the_loops(problem):
    if problem.temperature is not None and min(problem.temperature.shape) > 1:
        return  # dense: reference form only
    loss, gradients = problem.loss_and_gradients(fused.loss)
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-9, abs=1e-12)
    assert_close(gradients, problem.naive_gradients(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_equals_the_loops_in_other_dtypes(distance, scheme, dtype, offset):
    problem = make_problem(7, (8, 9, 16), distance, scheme, True, offset, dtype)
    loss, gradients = problem.loss_and_gradients(fused.loss)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-4)
    rtol = 1e-3 if dtype == torch.float32 else 1e-2
    assert_close(gradients, problem.naive_gradients(), rtol=rtol, atol=1e-5)


def test_a_sum_is_the_mean_times_the_rows():
    problem = make_problem(8, (6, 5, 4), "euclidean", "channel")
    mean, gradients = problem.loss_and_gradients(fused.loss)
    total, found = problem.loss_and_gradients(fused.loss, reduction="sum")
    torch.testing.assert_close(total, 6 * mean)
    assert_close(found, [6 * gradient for gradient in gradients], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_finite_on_a_prototype(distance, scheme, dtype, offset):
    problem = make_problem(9, (3, 4, 6), distance, scheme, False, offset, dtype)
    problem.prototypes[1] = problem.prototypes[0]
    problem.prototypes[3] = 0
    problem.x[0] = problem.x[1] = problem.prototypes[0]
    problem.x[2] = 0
    problem.target = torch.tensor([0, 2, 3])
    loss, gradients = problem.loss_and_gradients(fused.loss)
    # Row 1 lies on two classes that are not its own: they come out at their rounding error.
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), abs=2e-2)
    assert all(g is None or g.isfinite().all() for g in gradients)


def test_a_single_row_on_its_own_prototype_pulls_nothing_there():
    prototypes = torch.tensor([[100.0, 100.0], [101.0, 100.0]], requires_grad=True)
    fused.loss(torch.tensor([[100.0, 100.0]]), prototypes, torch.tensor([0])).backward()
    assert (prototypes.grad[0] == 0).all()
    assert prototypes.grad[1].norm() > 0.1


@pytest.mark.parametrize("step", [1e-30, 1e-22, 1e-19, 1e-15, 1e-8])
def test_bounded_where_squares_underflow(step):
    prototypes = torch.zeros(3, 512, requires_grad=True)
    x = torch.full((1, 512), step, requires_grad=True)
    fused.loss(x, prototypes, torch.tensor([0])).backward()
    assert prototypes.grad.norm(dim=1).max() <= 0.5


def test_autocast_changes_nothing_even_around_backward():
    problem = make_problem(10, (4, 5, 16), "euclidean", "channel", dtype=torch.float32)
    expected = problem.loss_and_gradients(fused.loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = problem.loss_and_gradients(fused.loss)
    assert torch.equal(found[0], expected[0])
    for one, other in zip(found[1], expected[1], strict=True):
        assert torch.equal(one, other)


def test_backward_twice_and_scaled():
    problem = make_problem(11)
    prototypes = problem.prototypes.requires_grad_()
    loss = fused.loss(problem.x, prototypes, problem.target)
    (first,) = torch.autograd.grad(3 * loss, prototypes, retain_graph=True)
    (second,) = torch.autograd.grad(loss, prototypes)
    torch.testing.assert_close(first, 3 * second)


def test_only_what_wants_a_gradient_gets_one():
    problem = make_problem(12, scheme="channel")
    problem.temperature.requires_grad_()
    loss = fused.loss(problem.x, problem.prototypes, problem.target, **problem.options)
    loss.backward()
    assert problem.temperature.grad is not None
    assert problem.prototypes.grad is None
    with torch.no_grad():
        assert not fused.loss(problem.x, problem.prototypes, problem.target).requires_grad


def test_what_it_cannot_do_is_said():
    problem = make_problem(13, scheme="dense")
    args = problem.x, problem.prototypes, problem.target
    with pytest.raises(ValueError, match="temperature is dense"):
        fused.loss(*args, temperature=problem.temperature)
    with pytest.raises(ValueError, match="reduction='none' is unknown"):
        fused.loss(*args, reduction="none")

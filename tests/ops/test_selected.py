"""The loss that users call: the right form, the right numbers, compiled or not."""

import pytest
import torch
from hypothesis import given, settings

from protail.ops import loss
from protail.ops.selected import _form
from reference.problems import ALL_DISTANCES, SCHEMES, assert_close, make_problem, problems


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@settings(max_examples=40)
@given(problems())
def test_equals_the_loops(problem):
    for budget in (600, 2**28):
        found, gradients = problem.loss_and_gradients(loss, memory_budget=budget)
        assert found.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-9, abs=1e-12)
        assert_close(gradients, problem.naive_gradients(), rtol=1e-6, atol=1e-8)


def test_takes_the_fastest_form_that_fits():
    x, prototypes, dense = torch.ones(4, 8), torch.ones(100, 8), torch.ones(100, 8)

    def form(temperature=None, reduction="mean", budget=2**28):
        return _form(x, prototypes, temperature, reduction, budget)

    assert form() == "fused"
    assert form(torch.ones(1, 8)) == "fused"
    assert form(dense) == "reference"
    assert form(reduction="none") == "reference"
    assert form(budget=2**12) == "chunked"
    assert form(dense, budget=2**12) == "chunked"


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_compiles_into_one_graph(distance, scheme):
    problem = make_problem(1, (4, 5, 6), distance, scheme, dtype=torch.float32)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, gradients = problem.loss_and_gradients(compiled)
    expected_loss, expected = problem.loss_and_gradients(loss)
    torch.testing.assert_close(found, expected_loss)
    assert_close(gradients, expected, rtol=1e-3, atol=1e-5)


def test_compiles_under_autocast_and_without_gradients():
    problem = make_problem(2, (4, 5, 6), dtype=torch.float32)
    args = problem.x, problem.prototypes, problem.target
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), loss(*args))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(*args), loss(*args))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"distance": "euclidian"}, "distance='euclidian' is unknown.*Did you mean 'euclidean'"),
        ({"reduction": "average"}, "reduction='average' is unknown"),
        ({"x": torch.ones(6)}, r"x has shape \(6,\); expected two dimensions"),
        ({"x": torch.ones(4, 7)}, "x has 7 features a row; expected 6"),
        ({"prototypes": torch.ones(0, 6)}, "prototypes has no rows"),
        ({"temperature": torch.ones(2, 6)}, r"temperature has shape \(2, 6\); expected \(1, 6\)"),
        ({"temperature": torch.ones(1, 5, 6)}, r"temperature has shape \(1, 5, 6\)"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {
        "x": torch.ones(4, 6),
        "prototypes": torch.ones(5, 6),
        "target": torch.zeros(4, dtype=torch.long),
    }
    with pytest.raises(ValueError, match=message):
        loss(**(arguments | change))


def test_targets_are_class_indices():
    problem = make_problem(5, (4, 5, 6))
    args = problem.x, problem.prototypes
    small = problem.target.to(torch.int32)
    torch.testing.assert_close(loss(*args, small), loss(*args, problem.target))
    with pytest.raises(TypeError, match=r"target has dtype torch\.float32; expected integer"):
        loss(*args, problem.target.float())
    with pytest.raises(ValueError, match=r"target has shape \(3,\); expected \(4,\)"):
        loss(*args, problem.target[:3])
    with pytest.raises(IndexError):
        loss(*args, problem.target + 5)


def test_an_empty_batch_has_no_loss_but_finite_gradients():
    prototypes = torch.ones(3, 2, requires_grad=True)
    for budget in (1, 2**28):
        value = loss(
            torch.empty(0, 2),
            prototypes,
            torch.empty(0, dtype=torch.long),
            reduction="sum",
            memory_budget=budget,
        )
        assert value.item() == 0
        assert (torch.autograd.grad(value, prototypes)[0] == 0).all()


def test_temperatures_broadcast():
    problem = make_problem(3, (4, 5, 6))
    args = problem.x, problem.prototypes, problem.target
    row = torch.rand(6, dtype=torch.float64) + 0.5
    torch.testing.assert_close(loss(*args, temperature=row), loss(*args, temperature=row[None]))
    half = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    everywhere = torch.full((5, 6), 0.5, dtype=torch.float64, requires_grad=True)
    one, other = (loss(*args, temperature=t) for t in (half, everywhere))
    torch.testing.assert_close(one, other)
    (by_half,), (by_all,) = torch.autograd.grad(one, half), torch.autograd.grad(other, everywhere)
    torch.testing.assert_close(by_half, by_all.sum())


def test_the_same_inputs_give_the_same_bits():
    problem = make_problem(4, (300, 7, 40), "euclidean", "channel", dtype=torch.float32)
    for budget in (2**14, 2**28):
        first = problem.loss_and_gradients(loss, memory_budget=budget)
        second = problem.loss_and_gradients(loss, memory_budget=budget)
        assert torch.equal(first[0], second[0])
        assert_close(first[1], second[1], rtol=0, atol=0)

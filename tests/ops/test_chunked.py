"""Chunks give what one pass gives, within their budget."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from protail.ops import Parts, chunked, reference
from protail.ops._arguments import Blocks
from reference.problems import (
    ALL_DISTANCES,
    DISTANCES,
    SCHEMES,
    assert_close,
    make_problem,
    problems,
)


@settings(max_examples=50)
@given(problems(), st.sampled_from([1, 500, 1500, 2**28]))
def test_equals_the_loops_whatever_the_budget(problem, budget):
    loss, gradients = problem.loss_and_gradients(chunked.loss, memory_budget=budget)
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-9, abs=1e-12)
    assert_close(gradients, problem.naive_gradients(), rtol=1e-6, atol=1e-8)


@given(
    problems(distance="euclidean", scheme="class"), st.integers(0, 5), st.sampled_from([1, 2**28])
)
def test_two_parts_of_the_classes_merge_into_the_loops(problem, cut, budget):
    cut = min(cut, len(problem.prototypes) - 1)
    cuts = [slice(0, cut), slice(cut, None)] if cut > 0 else [slice(None)]
    leaves = [leaf.requires_grad_() for leaf in problem.leaves if leaf is not None]
    found = []

    def losses(merge):
        for here in cuts:
            yield chunked.loss(
                problem.x,
                problem.prototypes[here],
                problem.target - (here.start or 0),
                temperature=problem.temperature[here],
                adjustment=None if problem.adjustment is None else problem.adjustment[here],
                memory_budget=budget,
                merge=merge,
            )

    def keep(parts):
        found.append(parts)
        return parts

    assert len(list(losses(keep))) == len(cuts)
    whole = functools.reduce(Parts.merge, found)
    merged = list(losses(lambda _: whole))
    for loss in merged:
        assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-9, abs=1e-12)
    gradients = torch.autograd.grad(merged, leaves)
    expected = [each for each in problem.naive_gradients() if each is not None]
    assert_close(gradients, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_budgets_agree_in_float32(distance, scheme):
    problem = make_problem(1, (40, 60, 16), distance, scheme, dtype=torch.float32)
    expected_loss, expected = problem.loss_and_gradients(chunked.loss)
    for budget in (2**14, 2**16):
        loss, gradients = problem.loss_and_gradients(chunked.loss, memory_budget=budget)
        assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-6)
        assert_close(gradients, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs(dtype):
    problem = make_problem(2, (6, 9, 16), "euclidean", "dense", dtype=dtype)
    loss, gradients = problem.loss_and_gradients(chunked.loss, memory_budget=4000)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(problem.naive_losses().mean(), rel=1e-4)
    assert_close(gradients, problem.naive_gradients(), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("distance", ALL_DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_finite_on_a_prototype(distance, scheme):
    problem = make_problem(3, (3, 4, 6), distance, scheme, False, 100.0, torch.float32)
    problem.prototypes[1] = problem.prototypes[0]
    problem.prototypes[3] = 0
    problem.x[0] = problem.x[1] = problem.prototypes[0]
    problem.x[2] = 0
    problem.target = torch.tensor([0, 2, 3])
    loss, gradients = problem.loss_and_gradients(chunked.loss, memory_budget=1)
    assert loss.isfinite()
    assert all(g is None or g.isfinite().all() for g in gradients)


def test_reductions_and_hidden_classes():
    problem = make_problem(4, (5, 6, 3))
    problem.adjustment[(problem.target[0] + 1) % 6] = -torch.inf
    problem.target[:] = problem.target[0]
    args = problem.x, problem.prototypes, problem.target
    for reduction in ("none", "sum", "mean"):
        options = {"adjustment": problem.adjustment, "reduction": reduction}
        found = chunked.loss(*args, **options, memory_budget=1)
        torch.testing.assert_close(found, reference.loss(*args, **options))


def test_backward_under_autocast():
    problem = make_problem(5, (4, 5, 16), dtype=torch.float32)
    expected = problem.loss_and_gradients(chunked.loss, memory_budget=2000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = problem.loss_and_gradients(chunked.loss, memory_budget=2000)
    assert_close(found[1], expected[1], rtol=0, atol=0)


def peak_bytes(function):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    now = peak = 0
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    del result
    return peak


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", [(64, 8000, 16), (500, 400, 64)])
def test_memory_stays_within_the_budget(distance, scheme, shape):
    budget = 2**20
    problem = make_problem(6, shape, distance, scheme, dtype=torch.float32)
    leaves = [leaf.requires_grad_() for leaf in problem.leaves if leaf is not None]
    args = problem.x, problem.prototypes, problem.target
    options = {**problem.options, "adjustment": problem.adjustment}

    def small():
        return chunked.loss(*args, **options, memory_budget=budget)

    assert peak_bytes(small) <= budget
    loss = small()
    gradients = 4 * sum(leaf.numel() for leaf in leaves)
    assert peak_bytes(lambda: torch.autograd.grad(loss, leaves)) <= budget + gradients
    # The measure can fail: one pass over everything needs far more.
    assert peak_bytes(lambda: reference.loss(*args, **options)) > 2 * budget


def test_blocks_fill_the_budget_but_take_at_least_one():
    x, prototypes = torch.empty(64, 32), torch.empty(10**6, 32)
    small, large = (Blocks.within(2**n, x, prototypes, 4) for n in (20, 24))
    assert small.rows == large.rows == 64
    assert 10 < large.classes / small.classes < 30
    assert Blocks.within(0, x, prototypes, 4) == (1, 1)
    assert Blocks.within(2**40, x, prototypes, 4) == (64, 10**6)

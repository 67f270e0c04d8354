import numpy as np
import torch
from hypothesis import given, settings

from protail.models.heads import ScaledHead
from reference.linear_by_loop import linear_logits, lists_of, stage_1_problems


def build(first, counts):
    return (
        ScaledHead(first.n_classes, first.n_features).to(first.weight.dtype).build_on(first, counts)
    )


@settings(max_examples=40)
@given(stage_1_problems())
def test_equals_a_loop(problem):
    first, features, counts = problem
    head = build(first, counts)
    scales = np.random.default_rng(0).uniform(-1, 3, size=len(counts))
    head.scales.data.copy_(torch.from_numpy(scales))
    expected = linear_logits(features.tolist(), *lists_of(first))
    for row in expected:
        for c in range(len(counts)):
            row[c] *= scales[c]
    np.testing.assert_allclose(head(features).detach(), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(head.float()(features).detach(), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(stage_1_problems())
def test_slopes_by_the_scales_are_the_logits_of_stage_1(problem):
    first, features, counts = problem
    head = build(first, counts)
    head(features).sum().backward()
    expected = linear_logits(features.tolist(), *lists_of(first)).sum(0)
    np.testing.assert_allclose(head.scales.grad, expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=20)
@given(stage_1_problems())
def test_without_a_step_it_is_stage_1(problem):
    first, features, counts = problem
    assert torch.equal(build(first, counts)(features), first(features))


def test_scales_are_all_that_there_is_to_learn():
    parameters = dict(ScaledHead(5, 3).named_parameters())
    assert {name: p.shape for name, p in parameters.items()} == {"scales": (5,)}

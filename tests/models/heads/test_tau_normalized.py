import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail.models.heads import LinearHead, TauNormalizedHead
from reference.linear_by_loop import linear_logits, lists_of, stage_1_head, stage_1_problems

X = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
COUNTS = [500, 30, 5, 1]


def build(first, counts, **options):
    head = TauNormalizedHead(first.n_classes, first.n_features, **options)
    return head.to(first.weight.dtype).build_on(first, counts)


@settings(max_examples=60)
@given(stage_1_problems(), st.sampled_from([0.0, 0.5, 1.0, 1.9]), st.booleans())
def test_equals_a_loop(problem, tau, bias):
    first, features, counts = problem
    weight, offsets = lists_of(first)
    for row in weight:
        length = math.sqrt(sum(w * w for w in row))
        row[:] = [w / length**tau for w in row]
    expected = linear_logits(features.tolist(), weight, offsets if bias else [0.0] * len(weight))
    head = build(first, counts, tau=tau, bias=bias)
    np.testing.assert_allclose(head(features), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(head.float()(features), expected, rtol=1e-4, atol=1e-4)


def test_tau_zero_is_stage_1_without_its_bias():
    first = stage_1_head()
    without = LinearHead(4, 6, bias=False).double()
    without.load_state_dict({"weight": first.weight})
    assert torch.equal(build(first, COUNTS, tau=0)(X), without(X))
    assert torch.equal(build(first, COUNTS, tau=0, bias=True)(X), first(X))
    assert not torch.equal(first(X).argmax(1), without(X).argmax(1))  # the bias does matter here


@settings(max_examples=30)
@given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
def test_at_tau_one_lengths_of_rows_do_not_count(factors):
    first, longer = stage_1_head(), stage_1_head()
    longer.weight *= torch.tensor(factors).double()[:, None]
    expected = build(first, COUNTS)(X)
    found = build(longer, COUNTS)(X)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found.argmax(1), expected.argmax(1))


def test_at_tau_one_all_rows_have_length_one():
    lengths = build(stage_1_head(), COUNTS).normalized_weight().norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(4).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("row", [0.0, 1e-20])
def test_a_row_without_length_stays_finite(dtype, tau, row):
    first = stage_1_head().to(dtype)
    others = build(first, COUNTS, tau=tau)(X)
    first.weight[2] = row
    logits = build(first, COUNTS, tau=tau)(X)
    assert torch.isfinite(logits).all()
    kept = [0, 1, 3]
    assert torch.equal(logits[:, kept], others[:, kept])
    if row == 0:
        assert (logits[:, 2] == 0).all()


def test_by_default_it_is_the_l2_norm_without_bias():
    head = TauNormalizedHead(4, 6)
    assert (head.tau, head.has_bias) == (1.0, False)
    assert repr(head) == "TauNormalizedHead(4, 6, tau=1.0, bias=False)"


@pytest.mark.parametrize("tau", [-0.1, math.nan, math.inf])
def test_bad_tau(tau):
    with pytest.raises(ValueError, match=r"tau=.*; expected a finite number >= 0"):
        TauNormalizedHead(4, 6, tau=tau)

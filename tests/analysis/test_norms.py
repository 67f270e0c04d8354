import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protail.analysis import class_norms, mean_class_norms
from protail.profile import ClassProfile


@st.composite
def vectors_and_counts(draw):
    n_classes, n_channels = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    # Few different values, so that there are ties, and zero rows.
    vectors = draw(
        arrays(np.float64, (n_classes, n_channels), elements=st.sampled_from([0.0, 1.0, -2.5, 7.0]))
    )
    counts = draw(
        arrays(np.int64, n_classes, elements=st.sampled_from([1, 5, 19, 20, 99, 100, 500]))
    )
    return vectors, counts


def naive_norm(vector):
    return math.sqrt(sum(float(value) ** 2 for value in vector))


def naive_ranks(values):
    """Rank each value by counting; equal ones share the mean of their places."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def naive_correlation(first, second):
    n = len(first)
    mean1, mean2 = sum(first) / n, sum(second) / n
    both = sum((a - mean1) * (b - mean2) for a, b in zip(first, second, strict=True))
    spread1 = sum((a - mean1) ** 2 for a in first)
    spread2 = sum((b - mean2) ** 2 for b in second)
    return both / math.sqrt(spread1 * spread2) if spread1 * spread2 else None


def close(value, expected):
    return value is expected is None or value == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=150)
@given(vectors_and_counts())
def test_agrees_with_loops(drawn):
    vectors, counts = drawn
    measured = class_norms(vectors, counts)
    norms = [naive_norm(vector) for vector in vectors]
    assert np.allclose(measured.norms, norms, rtol=1e-14)
    # Ranks of the norms we were given: equal in theory may differ in the last bit.
    expected = naive_correlation(naive_ranks(measured.norms.tolist()), naive_ranks(counts.tolist()))
    assert close(measured.rank_correlation, expected)

    mean = sum(norms) / len(norms)
    spread = math.sqrt(sum((norm - mean) ** 2 for norm in norms) / len(norms))
    assert close(measured.variation, spread / mean if mean else None)

    head = [norm for norm, count in zip(norms, counts, strict=True) if count >= 100]
    tail = [norm for norm, count in zip(norms, counts, strict=True) if count < 20]
    ratio = None
    if head and tail and sum(tail):
        ratio = (sum(head) / len(head)) / (sum(tail) / len(tail))
    assert close(measured.head_to_tail, ratio)


@settings(max_examples=50)
@given(vectors_and_counts())
def test_scale_does_not_matter_but_for_the_norms(drawn):
    vectors, counts = drawn
    small, large = class_norms(vectors, counts), class_norms(16.0 * vectors, counts)
    assert np.array_equal(16.0 * small.norms, large.norms)
    assert small.rank_correlation == large.rank_correlation
    assert close(small.variation, large.variation)
    assert close(small.head_to_tail, large.head_to_tail)


@pytest.mark.parametrize(("sign", "expected"), [(1, 1.0), (-1, -1.0)])
def test_norms_that_follow_size(sign, expected):
    counts = np.array([7, 300, 40, 2, 90])
    measured = class_norms(np.log(counts)[:, np.newaxis] ** sign, counts)
    assert measured.rank_correlation == pytest.approx(expected)


def test_equal_norms_have_no_correlation_and_no_variation():
    turned = [[5.0, 0.0], [3.0, 4.0], [0.0, -5.0]]
    measured = class_norms(turned, [500, 50, 5])
    assert (measured.rank_correlation, measured.variation, measured.head_to_tail) == (None, 0, 1)
    assert class_norms([[1.0], [2.0]], [7, 7]).rank_correlation is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_takes_tensors_that_learn(dtype):
    weights = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [6.0, 8.0]], dtype=dtype))
    measured = class_norms(weights, ClassProfile([200, 3]))
    assert measured.norms.tolist() == [5.0, 10.0]
    assert measured.norms.dtype == np.float64


def test_half_precision_does_not_overflow():
    assert class_norms(np.full((2, 100), 6e4, np.float16), [1, 2]).norms[0] == pytest.approx(6e5)


def test_a_record_is_json():
    record = class_norms([[0.0], [0.0]], [200, 3]).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == {
        "norms": [0.0, 0.0],
        "rank_correlation": None,
        "variation": None,
        "head_to_tail": None,
    }


@pytest.mark.parametrize("vectors", [[1.0, 2.0], [[1.0]], np.ones((2, 2, 2)), np.ones((3, 2))])
def test_one_row_a_class_is_expected(vectors):
    with pytest.raises(ValueError, match=r"vectors has shape .*expected \(2, n_channels\)"):
        class_norms(vectors, [5, 3])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_told(bad):
    with pytest.raises(ValueError, match="first in row 1"):
        class_norms([[1.0], [bad]], [5, 3])


def test_each_seed_is_measured_by_itself():
    counts = [500, 200, 50, 5]
    seeds = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 6.0]])
    alone = [class_norms(one[:, np.newaxis], counts) for one in seeds]
    together = mean_class_norms(seeds, counts)
    assert together.norms == pytest.approx([7 / 3, 7 / 3, 7 / 3, 11 / 3])
    for name in ("variation", "rank_correlation", "head_to_tail"):
        assert getattr(together, name) == pytest.approx(
            np.mean([getattr(one, name) for one in alone])
        )
    # The spread of the averaged norms is another, smaller number.
    pooled = class_norms(seeds.mean(0)[:, np.newaxis], counts)
    assert together.variation > 1.5 * pooled.variation
    assert mean_class_norms(seeds[:1], counts).to_dict() == alone[0].to_dict()
    assert mean_class_norms([[1.0] * 4, seeds[0]], counts).rank_correlation is None
    with pytest.raises(ValueError, match="one for each seed"):
        mean_class_norms(np.empty((0, 4)), counts)

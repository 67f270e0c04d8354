"""Norms and separation of class vectors, and boundaries in two channels."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protail.profile import ClassProfile
from protail_paper.analysis import (
    PAIRS,
    PlaneClassifier,
    class_norms,
    class_separation,
    learn_boundaries,
    mean_class_norms,
)


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


def naive_separation(prototypes, counts):
    """Go through all pairs, each once."""
    groups = ["head" if count >= 100 else "tail" if count < 20 else "" for count in counts]
    found = {pair: [] for pair in PAIRS}
    for i in range(len(counts)):
        for j in range(i):
            a, b = prototypes[i], prototypes[j]
            distance = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
            lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
            product = sum(x * y for x, y in zip(a, b, strict=True))
            measures = distance, product / lengths if lengths else 0.0
            found["all-all"].append(measures)
            kind = "-".join(sorted([groups[i], groups[j]]))
            if kind in found:
                found[kind].append(measures)
    return {
        pair: tuple(sum(column) / len(column) for column in zip(*measures, strict=True))
        if measures
        else (None, None)
        for pair, measures in found.items()
    }


@st.composite
def prototypes_and_counts(draw):
    n_classes, n_channels = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    values = st.sampled_from([0.0]) | st.floats(-10, 10).filter(lambda value: abs(value) > 1e-3)
    prototypes = draw(arrays(np.float64, (n_classes, n_channels), elements=values))
    counts = draw(arrays(np.int64, n_classes, elements=st.sampled_from([1, 19, 20, 99, 100, 500])))
    return prototypes, counts


@settings(max_examples=150)
@given(prototypes_and_counts())
def test_separation_agrees_with_loops(drawn):
    prototypes, counts = drawn
    measured = class_separation(prototypes, counts)
    for pair, (distance, cosine) in naive_separation(prototypes.tolist(), counts).items():
        if distance is None:
            assert measured.distance[pair] is measured.cosine[pair] is None
        else:
            assert measured.distance[pair] == pytest.approx(distance, rel=1e-12)
            assert measured.cosine[pair] == pytest.approx(cosine, rel=1e-12, abs=1e-12)


def test_many_classes():
    rng = np.random.default_rng(0)
    n_classes = 296
    prototypes, counts = rng.normal(size=(n_classes, 2)), rng.choice([5, 50, 500], n_classes)
    measured = class_separation(prototypes, counts)
    for pair, (distance, cosine) in naive_separation(prototypes.tolist(), counts).items():
        assert measured.distance[pair] == pytest.approx(distance, rel=1e-12)
        assert measured.cosine[pair] == pytest.approx(cosine, abs=1e-12)


def test_far_from_the_origin_small_distances_survive():
    measured = class_separation([[1e6, 0.0], [1e6, 1e-3]], [1, 1])
    assert measured.distance["all-all"] == pytest.approx(1e-3, rel=1e-12)
    assert measured.cosine["all-all"] == pytest.approx(1.0, rel=1e-12)


def test_growing_prototypes_change_distances_not_angles():
    rng = np.random.default_rng(0)
    prototypes, counts = rng.normal(size=(20, 8)), [500, 50, 5, 3] * 5
    before, after = class_separation(prototypes, counts), class_separation(2 * prototypes, counts)
    for pair in PAIRS:
        assert after.distance[pair] == pytest.approx(2 * before.distance[pair])
        assert after.cosine[pair] == pytest.approx(before.cosine[pair], abs=1e-14)


def test_groups_are_many_and_few():
    """Medium classes are in all-all pairs alone."""
    prototypes = [[0.0], [1.0], [10.0], [100.0], [103.0]]
    measured = class_separation(torch.tensor(prototypes), [500, 100, 50, 19, 2])
    assert measured.distance["head-head"] == 1.0
    assert measured.distance["tail-tail"] == 3.0
    assert measured.distance["head-tail"] == 101.0
    assert measured.distance["all-all"] == pytest.approx((1 + 3 + 4 * 101 + 10 + 9 + 90 + 93) / 10)


def test_a_record_of_separation_is_json():
    record = class_separation([[1.0, 0.0], [0.0, 1.0]], [3, 2]).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["cosine"] == {
        "all-all": 0.0,
        "head-head": None,
        "head-tail": None,
        "tail-tail": 0.0,
    }


def test_bad_prototypes_are_told():
    with pytest.raises(ValueError, match=r"expected \(2, n_channels\)"):
        class_separation([[1.0]], [3, 2])
    with pytest.raises(ValueError, match="diverged"):
        class_separation([[1.0], [np.nan]], [3, 2])


@pytest.fixture(scope="module")
def learned():
    return learn_boundaries()


def classifier_of(learned, model, sampling):
    [one] = [c for c in learned.classifiers if (c.model, c.sampling) == (model, sampling)]
    return one


def test_the_set_is_long_tailed(learned):
    assert learned.counts.tolist() == [500, 110, 25, 5]
    assert learned.features.shape == (640, 2)
    assert [(one.model, one.sampling) for one in learned.classifiers] == [
        ("softmax", "instance"),
        ("prototypes", "instance"),
        ("softmax", "class-balanced"),
        ("prototypes", "class-balanced"),
    ]


def test_same_seed_same_bits(learned):
    again, other = learn_boundaries(0), learn_boundaries(1)
    for one, same, different in zip(
        learned.classifiers, again.classifiers, other.classifiers, strict=True
    ):
        assert np.array_equal(one.vectors, same.vectors)
        assert not np.array_equal(one.vectors, different.vectors)


def test_norms_of_softmax_weights_follow_class_size(learned):
    biased = class_norms(classifier_of(learned, "softmax", "instance").vectors, learned.counts)
    assert biased.rank_correlation == 1.0
    assert biased.head_to_tail > 2


def test_prototypes_are_fairer(learned):
    softmax = classifier_of(learned, "softmax", "instance").accuracy
    prototypes = classifier_of(learned, "prototypes", "class-balanced").accuracy
    assert prototypes.mean() > softmax.mean() + 0.05
    assert prototypes[-1] > softmax[-1] + 0.2


def test_drawing_rows_equally_often_biases_prototypes_too(learned):
    """Those of large classes move inwards, of small ones outwards: away from their rows."""
    biased = classifier_of(learned, "prototypes", "instance")
    assert class_norms(biased.vectors, learned.counts).rank_correlation == -1.0
    assert (
        biased.accuracy.mean()
        < classifier_of(learned, "prototypes", "class-balanced").accuracy.mean()
    )


@pytest.mark.parametrize("model", ["softmax", "prototypes"])
def test_predictions_follow_the_definition(model):
    rng = np.random.default_rng(0)
    vectors, points = rng.normal(size=(4, 2)), rng.normal(size=(50, 2))
    predicted = PlaneClassifier(model, "instance", vectors, np.ones(4)).predict(points)
    for point, label in zip(points, predicted, strict=True):
        if model == "softmax":
            scores = [point @ vector for vector in vectors]
        else:
            scores = [-np.linalg.norm(point - vector) for vector in vectors]
        assert label == max(range(4), key=scores.__getitem__)

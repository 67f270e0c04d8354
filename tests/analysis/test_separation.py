import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protail.analysis import class_separation
from protail.analysis.separation import _BLOCK, PAIRS


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
def test_agrees_with_loops(drawn):
    prototypes, counts = drawn
    measured = class_separation(prototypes, counts)
    for pair, (distance, cosine) in naive_separation(prototypes.tolist(), counts).items():
        if distance is None:
            assert measured.distance[pair] is measured.cosine[pair] is None
        else:
            assert measured.distance[pair] == pytest.approx(distance, rel=1e-12)
            assert measured.cosine[pair] == pytest.approx(cosine, rel=1e-12, abs=1e-12)


def test_more_classes_than_fit_a_block():
    rng = np.random.default_rng(0)
    n_classes = _BLOCK + 40
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


def test_a_record_is_json():
    record = class_separation([[1.0, 0.0], [0.0, 1.0]], [3, 2]).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["cosine"] == {
        "all-all": 0.0,
        "head-head": None,
        "head-tail": None,
        "tail-tail": 0.0,
    }


def test_bad_input_is_told():
    with pytest.raises(ValueError, match=r"expected \(2, n_channels\)"):
        class_separation([[1.0]], [3, 2])
    with pytest.raises(ValueError, match="diverged"):
        class_separation([[1.0], [np.nan]], [3, 2])

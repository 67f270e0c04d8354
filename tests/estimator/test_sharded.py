"""Rows of several files: sums of parts in any order, and fits of parts by any engine."""

import functools
import operator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail import PrototypeClassifier
from protail.data.tables import open_features
from protail.estimator import _whitened
from protail.estimator._gaussian import Statistics

COUNTS = np.round(np.geomspace(4000, 40, 10)).astype(int)


def made_rows(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    means = 0.7 * np.random.default_rng(1).normal(size=(len(COUNTS), 12))
    return (means[y] + rng.normal(size=(len(y), 12))).astype(np.float32), y


X, Y = made_rows()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for number, part in enumerate(np.split(np.arange(len(X)), [100, 101, 7000])):
        np.savez(folder / f"{number}.npz", X=X[part], y=Y[part])
    return folder


@pytest.fixture(scope="module")
def whole():
    return PrototypeClassifier(random_state=0).fit(X, Y)


def between(sums):
    """How far class means lie apart: the scatter beside `within`."""
    away_cd = sums.mean_cd - sums.centre
    return (away_cd * sums.weight_c.unsqueeze(1)).mT @ away_cd


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 999), max_size=6),
    order=st.randoms(use_true_random=False),
    how=st.sampled_from([(torch.float32, 0.0), (torch.float64, 3.0)]),  # prepared rows are centred
)
def test_sums_of_parts_are_those_of_all_rows(cuts, order, how):
    kind, offset = how
    x_nd, code_n = torch.from_numpy(X[:1000] + offset).to(kind), torch.from_numpy(Y[:1000])
    whole = Statistics.of(x_nd.double(), code_n, len(COUNTS))
    ends = [0, *sorted(cuts), 1000]
    parts = [
        Statistics.of(x_nd[begin:end], code_n[begin:end], len(COUNTS))
        for begin, end in pairwise(ends)
    ]
    order.shuffle(parts)
    found = functools.reduce(operator.add, parts)
    assert torch.equal(found.weight_c, whole.weight_c)
    for name in ("mean_cd", "within"):
        assert_close(getattr(found, name), getattr(whole, name))
    assert_close(between(found), between(whole))


def assert_close(found, expected):
    assert float((found - expected).norm() / expected.norm()) < 1e-6


def assert_same(found, whole):
    assert found.choices_.keys() == whole.choices_.keys()
    for name in ("preparation", "ridge", "learned", "why", "memorised"):
        assert found.choices_[name] == whole.choices_[name]
    np.testing.assert_array_equal(found.class_counts_, whole.class_counts_)
    for name in ("class_means_", "covariance_", "prototypes_"):
        expected = getattr(whole, name)
        assert np.linalg.norm(getattr(found, name) - expected) < 1e-5 * np.linalg.norm(expected)
    assert (found.predict(X) == whole.predict(X)).mean() > 0.9999


def test_a_fit_of_parts_is_the_fit_of_all_rows(folder, whole):
    file = open_features(folder, engine=map)
    found = PrototypeClassifier(random_state=0).fit(file.rows(), file.labels())
    assert_same(found, whole)
    np.testing.assert_array_equal(found.predict(file.rows()), found.predict(X))


def test_what_is_too_much_to_learn_from_is_sampled(folder, monkeypatch):
    monkeypatch.setattr(_whitened, "_MOST_WORK", 12 * len(COUNTS) * 2000.0)
    file = open_features(folder, engine=map)
    found = PrototypeClassifier(random_state=0).fit(file.rows(), file.labels())
    assert found.choices_["learned"]
    assert "from 2,000 rows, as evenly over the classes as they go" in found.choices_["why"]
    np.testing.assert_array_equal(found.class_counts_, COUNTS)


def test_other_engines_change_nothing(folder, whole):
    with ThreadPoolExecutor(2) as pool:
        file = open_features(folder, engine=pool.map)
        found = PrototypeClassifier(random_state=0).fit(file.rows(), file.labels())
    assert_same(found, whole)


def test_more_rows_and_rows_that_do_not_count(folder, whole):
    file = open_features(folder, engine=map)
    rows, labels = file.rows(), file.labels()
    half = np.arange(len(rows)) < 5000
    weighted = PrototypeClassifier(random_state=0).fit(rows, labels, sample_weight=half)
    plain = PrototypeClassifier(random_state=0).fit(X[half], Y[half])
    np.testing.assert_allclose(weighted.class_means_, plain.class_means_, atol=1e-6)
    more = PrototypeClassifier(random_state=0).partial_fit(rows.at(half), Y[half], np.unique(Y))
    more.partial_fit(rows.at(~half), Y[~half])
    np.testing.assert_array_equal(more.class_counts_, whole.class_counts_)


def test_the_published_method_takes_rows_from_anywhere(folder):
    file = open_features(folder, engine=map)
    settings = {"method": "paper", "epochs": 0, "normalize": 5.0}
    found = PrototypeClassifier(**settings).fit(file.rows(), file.labels())
    plain = PrototypeClassifier(**settings).fit(X, Y)
    np.testing.assert_allclose(found.prototypes_, plain.prototypes_, rtol=1e-6)


def test_rows_that_are_not_finite_are_refused(tmp_path):
    for number, value in enumerate([1.0, np.nan]):
        np.savez(tmp_path / f"{number}.npz", X=np.full((4, 2), value), y=[0, 1, 0, 1])
    file = open_features(tmp_path, engine=map)
    with pytest.raises(ValueError, match="X contains NaN"):
        PrototypeClassifier().fit(file.rows(), file.labels())
    wide = PrototypeClassifier().fit([[1.0], [2.0]], [0, 1])
    with pytest.raises(ValueError, match="X has 2 features"):
        wide.predict(file.rows())

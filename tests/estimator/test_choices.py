"""What the estimator reads off training rows, against loops written out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist

from protail import PrototypeClassifier
from protail.estimator._features import Features, Placement, class_means
from protail.estimator._learning import calibrate
from protail.estimator._paper import (
    Settings,
    choose_space,
    gather_evidence,
    held_out,
    make_plan,
)

CPU = torch.device("cpu")
CHOOSE_ALL = Settings(
    reject=None,
    method="paper",
    memorised="auto",
    distance="euclidean",
    temperature=None,
    logit_adjustment="auto",
    normalize="auto",
    epochs="auto",
    max_steps=None,
    lr="auto",
    temperature_lr=0.005,
    momentum=0.9,
    batch_size="auto",
    sampling="class-balanced",
    verbose=False,
)
METRICS = {"euclidean": "euclidean", "sqeuclidean": "sqeuclidean", "cosine": "cosine"}


def rows_and_labels(counts, seed=0, n_features=4):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    return rng.normal(size=(len(y), n_features)) + 2 * y[:, None], y


def evidence_of(X, y, distance, n_classes):
    features = Features(X, Placement(), CPU)
    counts = np.bincount(y, minlength=n_classes)
    means = class_means(features, torch.from_numpy(y), n_classes)
    return gather_evidence(features, y, means, counts, distance, np.random.default_rng(0))


@pytest.mark.parametrize("distance", list(METRICS))
def test_leave_one_out_by_hand(distance):
    X, y = rows_and_labels([5, 1, 3, 0, 2])
    evidence = evidence_of(X, y, distance, 5)
    rows = np.flatnonzero(np.bincount(y)[y] > 1)  # sorted, and all of so few rows are looked at
    expected, own = [], []
    for row in rows:
        others = np.arange(len(y)) != row
        means = [X[others & (y == c)].mean(0) for c in (0, 1, 2, 4)]
        expected.append(cdist(X[[row]], means, METRICS[distance])[0])
        own.append([0, 1, 2, 4].index(y[row]))
    np.testing.assert_allclose(evidence.distances.numpy(), expected, rtol=1e-9)
    np.testing.assert_array_equal(evidence.labels.numpy(), own)
    right = np.argmin(expected, 1) == own
    accuracy = np.mean([right[np.array(own) == c].mean() for c in (0, 2, 3)])
    assert evidence.accuracy == pytest.approx(accuracy)


def test_no_evidence_without_rows_to_spare():
    X, y = rows_and_labels([5, 1, 1])
    assert evidence_of(X, y, "euclidean", 3) is None


@settings(max_examples=20)
@given(fraction=st.floats(0.4, 0.95), seed=st.integers(0, 100))
def test_sharpness_reaches_the_probability(fraction, seed):
    X, y = rows_and_labels([30, 10, 5], seed)
    evidence = evidence_of(X, y, "euclidean", 3)
    sharpness = evidence.sharpness_at(fraction * evidence.accuracy)
    probability = torch.softmax(-0.5 * sharpness * evidence.distances, 1)
    own = evidence.weights @ probability[torch.arange(len(probability)), evidence.labels]
    assert float(own) == pytest.approx(fraction * evidence.accuracy, abs=0.01)


def test_identical_rows_do_not_break_the_choice():
    y = np.arange(20) % 2
    features = Features(np.ones((20, 3)), Placement(), CPU)
    space = choose_space(features, y, np.bincount(y), CHOOSE_ALL, np.random.default_rng(0))
    assert torch.isfinite(space.means).all()
    assert space.tau == 0  # balanced classes have nothing to adjust


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(2, 30), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
)
def test_a_fifth_is_held_out_and_no_class_emptied(counts, seed):
    y = np.repeat(np.arange(len(counts)), counts)
    some = np.flatnonzero(np.random.default_rng(seed).random(len(y)) < 0.8)
    out = held_out(some, y, len(counts), np.random.default_rng(seed))
    assert set(out) <= set(some)
    assert len(np.unique(out)) == len(out)
    assert set(np.delete(y, out)) == set(y)
    expected = np.bincount(y[some], minlength=len(counts)) / 5
    n_out = np.bincount(y[out], minlength=len(counts))
    assert ((np.floor(expected) <= n_out) & (n_out <= np.ceil(expected))).all()


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), factor=st.floats(0.2, 5))
def test_classes_that_count_alike_leave_tau_at_0(seed, factor):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(4), [40, 20, 10, 5])
    logits = torch.from_numpy(factor * (rng.normal(size=(75, 4)) + 1.5 * np.eye(4)[y]))
    absent = torch.full((75, 1), torch.nan, dtype=torch.float64)
    weight = torch.tensor([1, 1, 1, 1, 0], dtype=torch.float64)
    found = calibrate(torch.cat([logits, absent], 1), torch.from_numpy(y), weight)
    assert found.tau == 0

    def objective(sharpness):
        log_p = torch.log_softmax(logits * sharpness, 1).numpy()[np.arange(75), y]
        return -(log_p / np.bincount(y)[y] / 4).sum() + np.log(sharpness) ** 2 / 2 / 75

    best = minimize_scalar(objective, bounds=(1e-3, 100), method="bounded")
    assert objective(found.sharpness) <= best.fun + 1e-6


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_calibration_knows_no_units(unit):
    X, y = rows_and_labels([60, 40, 30])
    X[:] += 3 * np.random.default_rng(1).normal(size=X.shape)  # rows that are hard
    options = {"normalize": None, "epochs": 0, "logit_adjustment": 0, "random_state": 0}
    plain = PrototypeClassifier(**options).fit(X, y)
    other = PrototypeClassifier(**options).fit(X * unit, y)
    assert other.scale_ * unit == pytest.approx(plain.scale_, rel=1e-3)


def test_one_class_cannot_be_calibrated():
    X, y = rows_and_labels([30, 1])
    assert PrototypeClassifier(epochs=0).fit(X, y).scale_ == 1


@pytest.mark.parametrize("seed", range(8))
def test_hardly_a_row_to_hold_out(seed):
    X, y = rows_and_labels([2, 3], seed)
    fitted = PrototypeClassifier(max_steps=5, random_state=seed).fit(X - 2 * y[:, None], y)
    assert 0 < fitted.scale_ < np.inf


def plan_for(n_classes, epoch_length=1000, *, long=False, **fixed):
    space = SimpleNamespace(own_distance=4.0, logit_scale=10.0)
    return make_plan(space, n_classes, epoch_length, replace(CHOOSE_ALL, **fixed), long=long)


@pytest.mark.parametrize(
    ("spread", "each", "distance", "long"),
    [
        (0.1, 40, "euclidean", False),
        (5.0, 40, "euclidean", True),
        (5.0, 15, "euclidean", False),
        (5.0, 40, "cosine", True),
        (5.0, 40, "sqeuclidean", False),
    ],
)
def test_only_many_rows_that_are_not_easy_train_long(spread, each, distance, long):
    y = np.repeat(np.arange(4), each)
    X = 3 * np.eye(4)[y] + spread * np.random.default_rng(0).normal(size=(len(y), 4))
    fitted = PrototypeClassifier(distance=distance, logit_adjustment=0, random_state=0).fit(X, y)
    assert (fitted.choices_["leave_one_out_accuracy"] < 0.96) == (spread > 1)
    assert fitted.choices_["steps"] == plan_for(4, long=long).n_steps


def test_no_steps_need_no_rate():
    assert (plan_for(10, epochs=0).n_steps, plan_for(10, epochs=0).lr) == (0, 0)


@pytest.mark.parametrize("long", [False, True])
def test_what_is_fixed_is_fixed_in_every_plan(long):
    plan = plan_for(10, 1010, long=long, epochs=3, batch_size=50, lr=2.0)
    assert (plan.n_steps, plan.batch_size, plan.lr) == (3 * 21, 50, 2.0)
    assert plan_for(10, long=long, max_steps=7).n_steps == 7


def test_more_classes_get_more_steps_of_larger_batches():
    few, many = (plan_for(c, 10**6) for c in (100, 2000))
    assert (few.batch_size, many.batch_size) == (64, 256)
    assert many.n_steps * many.batch_size == pytest.approx(32 * 2000, rel=0.01)

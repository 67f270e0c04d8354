"""What the estimator reads off training rows, against loops written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist

from protail.estimator._choosing import choose_space, gather_evidence
from protail.estimator._features import Features, Placement, class_means
from protail.estimator._fitting import calibrated_scale, held_out_folds, likelihood, plans

CPU = torch.device("cpu")
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
    assert evidence.own_probability(sharpness) == pytest.approx(
        fraction * evidence.accuracy, abs=0.01
    )


def test_identical_rows_do_not_break_the_choice():
    y = np.arange(20) % 2
    features = Features(np.ones((20, 3)), Placement(), CPU)
    space = choose_space(
        features,
        y,
        np.bincount(y),
        distance="euclidean",
        normalize="auto",
        tau="auto",
        rng=np.random.default_rng(0),
    )
    assert torch.isfinite(space.means).all()
    assert space.tau == 0  # balanced classes have nothing to adjust


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
    one_part=st.booleans(),
)
def test_folds_hold_out_each_row_once_and_empty_no_class(counts, seed, one_part):
    y = np.repeat(np.arange(len(counts)), counts)
    folds = list(held_out_folds(y, np.random.default_rng(seed), one_part=one_part))
    for kept, out in folds:
        assert np.array_equal(np.sort(np.concatenate([kept, out])), np.arange(len(y)))
        assert set(y[kept]) == set(y)
    held_out = np.concatenate([out for _, out in folds]) if folds else np.array([], int)
    assert len(np.unique(held_out)) == len(held_out)
    if not one_part:
        assert set(held_out) == set(np.flatnonzero(np.bincount(y)[y] > 1))


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), factor=st.floats(0.2, 5))
def test_calibration_finds_the_minimum(seed, factor):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(4), [40, 20, 10, 5])
    logits = rng.normal(size=(75, 4)) + 1.5 * np.eye(4)[y]
    logits = torch.from_numpy(logits * factor)
    truth = torch.from_numpy(y)
    weights = 1 / np.bincount(y)[y] / 4

    def surprise(log_scale):
        log_p = torch.log_softmax(logits * np.exp(log_scale), 1).numpy()
        return -(weights * log_p[np.arange(75), y]).sum()

    best = minimize_scalar(surprise, bounds=(-3.4, 3.4), method="bounded")
    assert surprise(np.log(calibrated_scale(logits, truth))) <= best.fun + 1e-6


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_calibration_knows_no_units(unit):
    rng = np.random.default_rng(0)
    y = torch.from_numpy(np.arange(90) % 3)
    logits = torch.from_numpy(rng.normal(size=(90, 3)) + 1.5 * np.eye(3)[y.numpy()])
    plain = calibrated_scale(logits, y)
    assert calibrated_scale(logits * unit, y) * unit == pytest.approx(plain, rel=0.01)


def test_one_class_cannot_be_calibrated():
    assert calibrated_scale(torch.randn(9, 3), torch.zeros(9, dtype=torch.long)) == 1


def test_likelihood_by_hand():
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    p = [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-3))]
    weights = np.array([1 / np.sqrt(2), 1 / np.sqrt(2), 1.0])
    expected = (weights * np.log(np.array(p) + 0.01)).sum() / weights.sum()
    assert likelihood(logits, torch.tensor([0, 0, 1])) == pytest.approx(expected)


def space_with(accuracy):
    class Stub:
        memorised = accuracy is not None and accuracy > 0.98
        own_distance = 4.0
        logit_scale = 10.0

    Stub.accuracy = accuracy
    return Stub


OPTIONS = {
    "distance": "euclidean",
    "epochs": "auto",
    "max_steps": None,
    "batch_size": "auto",
    "lr": "auto",
    "temperature_lr": 0.005,
    "momentum": 0.9,
}


@pytest.mark.parametrize(
    ("accuracy", "n_plans"), [(None, 1), (0.999, 1), (0.97, 2), (0.8, 3), (0.2, 3)]
)
def test_memorised_rows_leave_one_plan(accuracy, n_plans):
    assert len(plans(space_with(accuracy), 10, 10**6, 1000, **OPTIONS)) == n_plans


def test_few_rows_a_class_leave_one_plan():
    assert len(plans(space_with(0.5), 10, 159, 1000, **OPTIONS)) == 1
    assert len(plans(space_with(0.5), 10, 160, 1000, **OPTIONS)) == 3


def test_no_steps_are_one_plan():
    assert len(plans(space_with(0.5), 10, 10**6, 1000, **OPTIONS | {"epochs": 0})) == 1


def test_what_is_fixed_is_fixed_in_every_plan():
    fixed = OPTIONS | {"epochs": 3, "batch_size": 50, "lr": 2.0}
    (plan,) = plans(space_with(0.8), 10, 10**6, 1010, **fixed)
    assert (plan.n_steps, plan.batch_size, plan.lr) == (3 * 21, 50, 2.0)
    assert all(
        plan.n_steps <= 7
        for plan in plans(space_with(0.8), 10, 10**6, 1000, **OPTIONS | {"max_steps": 7})
    )


def test_more_classes_get_more_steps_of_larger_batches():
    few, many = (plans(space_with(0.999), c, 10**6, 10**6, **OPTIONS)[0] for c in (100, 2000))
    assert (few.batch_size, many.batch_size) == (64, 256)
    assert many.n_steps * many.batch_size == pytest.approx(32 * 2000, rel=0.01)

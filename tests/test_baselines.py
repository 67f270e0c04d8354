"""The rivals: against plain scikit-learn, and that they are ordinary estimators."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import cross_val_score

from protail import baselines

MAKERS = [
    getattr(baselines, name) for name in baselines.__all__ if name != "LogitAdjustedRegression"
]


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    train = np.random.default_rng(0).random(len(y)) < 0.7**y
    return X[train], y[train], X[~train], y[~train]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_each_learns_digits_and_is_a_plain_estimator(make, digits):
    X, y, X_test, y_test = digits
    classifier = clone(make())
    assert balanced_accuracy_score(y_test, classifier.fit(X, y).predict(X_test)) > 0.7
    assert cross_val_score(make(), X, y, cv=3).mean() > 0.7


def test_adjusted_logits_are_those_of_the_regression_less_the_log_counts(digits):
    X, y, X_test, _ = digits
    plain = LogisticRegression(C=1.0, max_iter=200).fit(X, y)
    adjusted = baselines.LogitAdjustedRegression(C=1.0, tau=0.5).fit(X, y)
    expected = plain.decision_function(X_test) - 0.5 * np.log(np.bincount(y))
    np.testing.assert_allclose(adjusted.decision_function(X_test), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(adjusted.predict(X_test), expected.argmax(1))
    np.testing.assert_allclose(adjusted.predict_proba(X_test).sum(1), 1)


def test_of_two_classes_the_rare_one_gains(digits):
    X, y = (part[digits[1] < 9][:300] for part in digits[:2])
    y = np.where(y == 8, "rare", "usual")
    plain = baselines.LogitAdjustedRegression(tau=0.0).fit(X, y)
    adjusted = baselines.LogitAdjustedRegression().fit(X, y)
    gain = adjusted.predict_proba(X)[:, 0] - plain.predict_proba(X)[:, 0]
    assert plain.classes_[0] == "rare"
    assert (gain >= 0).all()
    assert gain.max() > 0


def test_the_better_rival_of_rare_classes_is_adjusted(digits):
    X, y, X_test, y_test = digits
    rare = y_test >= 7
    by_name = {
        name: getattr(baselines, name)().fit(X, y).predict(X_test[rare]) == y_test[rare]
        for name in ("nearest_class_mean", "logit_adjusted_regression")
    }
    assert by_name["logit_adjusted_regression"].mean() > by_name["nearest_class_mean"].mean()

"""Rows that may belong nowhere: novelty, rejection, wrong labels, and an unknown mix of classes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score

from protail import PrototypeClassifier
from protail.estimator._predicting import class_mix
from reference.gaussian_by_loop import prototypes_by_loop


def gaussian_rows(counts, n_channels=12, spread=1.5, n_test=40, seed=0):
    rng = np.random.default_rng(seed)
    centres = spread * rng.normal(size=(len(counts), n_channels))
    y, y_test = np.repeat(np.arange(len(counts)), counts), np.repeat(range(len(counts)), n_test)
    x, x_test = (centres[each] + rng.normal(size=(len(each), n_channels)) for each in (y, y_test))
    return x, y, x_test, y_test


@pytest.fixture(scope="module")
def digits():
    """A long tail of seven digits; three are never seen."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = [rng.permutation(np.flatnonzero(y == label)) for label in range(10)]
    train = np.concatenate([order[c][:n] for c, n in enumerate((100, 60, 40, 25, 15, 8, 4))])
    test = np.concatenate([each[100:150] for each in order])
    return x[train], y[train], x[test], y[test]


def test_novelty_is_the_ratio_of_two_densities():
    """Of the means of new classes and of known ones; a row of a new class is spread wider."""
    x, y, x_test, _ = gaussian_rows([30, 20, 10, 5, 2])
    fitted = PrototypeClassifier(method="closed-form").fit(x, y)
    scale, kappa = fitted.scale_, fitted.choices_["shrinkage"]
    rows = np.concatenate([block.numpy() for _, block in fitted._placed(x_test, "cpu").blocks()])
    counts, means = fitted.class_counts_, fitted.class_means_
    variance = np.trace(fitted.covariance_) / 12
    shared = fitted.covariance_ + fitted.choices_["ridge"] * variance * np.eye(12)
    inverse, centre = np.linalg.inv(shared), means.mean(0)
    prototypes = centre + prototypes_by_loop(means, counts, shared, kappa, 1 - 0.1 * 3 / 13)
    for row, found in zip(rows[::17], fitted.novelty_score(x_test[::17]), strict=True):
        new = -(row - centre) @ inverse @ (row - centre) / 2 * kappa / (1 + kappa)
        known = max(
            -(row - prototype) @ inverse @ (row - prototype) / 2
            - fitted.choices_["logit_adjustment"] / scale * np.log(n)
            for n, prototype in zip(counts, prototypes, strict=True)
        )
        assert found == pytest.approx(scale * (new - known), rel=1e-6, abs=1e-8)


def test_novelty_finds_unknown_digits(digits):
    x, y, x_test, y_test = digits
    fitted = PrototypeClassifier().fit(x, y)
    auc = roc_auc_score(y_test > 6, fitted.novelty_score(x_test))
    nearest = roc_auc_score(y_test > 6, fitted.distances(x_test).min(1))
    doubt = roc_auc_score(y_test > 6, -fitted.predict_proba(x_test).max(1))
    assert auc >= max(nearest, doubt) - 0.01


@pytest.mark.parametrize("method", ["whitened", "closed-form"])
def test_so_many_known_rows_are_rejected(digits, method, tmp_path):
    x, y, x_test, y_test = digits
    fitted = PrototypeClassifier(method=method, reject=0.1).fit(x, y)
    labels = fitted.predict(x_test)
    rejected, known = np.equal(labels, None), y_test <= 6
    assert rejected[known].mean() < 0.25
    assert rejected[~known].mean() > 2 * rejected[known].mean()
    plain = PrototypeClassifier(method=method).fit(x, y).predict(x_test)
    np.testing.assert_array_equal(labels[~rejected].astype(int), plain[~rejected])
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(
        PrototypeClassifier.load(tmp_path / "model").predict(x_test), labels
    )


def test_rejection_needs_rows_scored_without_themselves():
    with pytest.raises(ValueError, match=r"reject=0.1 needs .*method='whitened'"):
        PrototypeClassifier(method="paper", reject=0.1).fit(*gaussian_rows([5, 5])[:2])
    with pytest.raises(ValueError, match="reject=2"):
        PrototypeClassifier(reject=2).fit(*gaussian_rows([5, 5])[:2])


def test_wrong_labels_are_found_and_rare_ones_left_alone():
    x, y, *_ = gaussian_rows([60, 40, 20, 10, 5, 3, 1], spread=2.0)
    given_y = y.copy()
    wrong = np.arange(0, 120, 12)
    given_y[wrong] = (y[wrong] + 1) % 3
    fitted = PrototypeClassifier(method="whitened").fit(x, given_y)
    found = fitted.suspicious_rows(x, given_y)
    assert set(wrong) == set(found.rows[: len(wrong)].tolist())
    np.testing.assert_array_equal(found.suggested[: len(wrong)], y[found.rows[: len(wrong)]])
    assert (np.diff(found.log_odds) <= 0).all()
    assert not (y[found.rows[len(wrong) :]] == 6).any()
    with pytest.raises(ValueError, match="has the label 7"):
        fitted.suspicious_rows(x, y + 1)
    paper = PrototypeClassifier(method="paper", max_steps=2).fit(x, y)
    with pytest.raises(ValueError, match="method='whitened'"):
        paper.suspicious_rows(x, y)


def test_a_row_that_counts_twice_is_as_suspicious_as_two():
    x, y, *_ = gaussian_rows([60, 40, 20, 10])
    y[::12] = (y[::12] + 1) % 3
    weights = np.arange(len(y)) % 3
    counted = np.repeat(np.arange(len(y)), weights)
    one = PrototypeClassifier(method="closed-form").fit(x, y, weights)
    other = PrototypeClassifier(method="closed-form").fit(x[counted], y[counted])
    found = one.suspicious_rows(x, y, weights)
    again = other.suspicious_rows(x[counted], y[counted])
    odds = dict(zip(found.rows.tolist(), found.log_odds, strict=True))
    for row, expected in zip(counted[again.rows].tolist(), again.log_odds, strict=True):
        assert odds[row] == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_the_mix_of_a_large_set_is_found():
    x, y, x_test, y_test = gaussian_rows([50, 30, 20, 10], n_test=300)
    kept = np.random.default_rng(1).random(len(y_test)) < np.array([0.05, 0.1, 0.5, 1])[y_test]
    truth = np.bincount(y_test[kept]) / kept.sum()
    fitted = PrototypeClassifier(prior="estimate").fit(x, y)
    np.testing.assert_allclose(fitted.estimate_prior(x_test[kept]), truth, atol=0.05)
    uniform = PrototypeClassifier().fit(x, y)
    assert fitted.score(x_test[kept], y_test[kept]) >= uniform.score(x_test[kept], y_test[kept])
    # A row says nothing of the mix.
    np.testing.assert_allclose(fitted.estimate_prior(x_test[:1]), 0.25)
    np.testing.assert_array_equal(
        fitted.predict_proba(x_test[:1]), uniform.predict_proba(x_test[:1])
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(2, 6), st.integers(0, 2**16))
def test_a_mix_sums_to_one_and_leaves_out_the_unseen(n_rows, n_classes, seed):
    rng = np.random.default_rng(seed)
    seen = rng.random(n_classes) < 0.7
    seen[0] = True
    probabilities = rng.dirichlet(np.full(n_classes, 0.3), n_rows) * seen + 1e-9 * seen
    counts = seen * rng.integers(1, 50, n_classes)
    mix = class_mix(probabilities / probabilities.sum(1, keepdims=True), counts)
    assert mix.sum() == pytest.approx(1)
    assert ((mix > 0) == seen).all()


def test_a_rejected_row_counts_as_wrong(digits):
    x, y, x_test, y_test = digits
    fitted = PrototypeClassifier(reject=0.1).fit(x, y)
    assert fitted.score(x_test, y_test) == np.mean(fitted.predict(x_test) == y_test)
    assert cross_val_score(PrototypeClassifier(reject=0.1), x, y, cv=2).min() > 0.5


def test_novelty_has_nothing_to_do_with_the_prior_nor_with_added_classes():
    x, y, x_test, _ = gaussian_rows([30, 20, 10, 5])
    fitted = PrototypeClassifier(reject=0.1).fit(x, y)
    novelty = fitted.novelty_score(x_test)
    limit = fitted.choices_["novelty_limit"]
    fitted.set_params(prior=[0.97, 0.01, 0.01, 0.01])
    np.testing.assert_array_equal(fitted.novelty_score(x_test), novelty)
    assert np.equal(fitted.predict(x_test[novelty > limit]), None).all()
    fitted.set_params(prior="uniform").add_classes(x[:5] + 99, np.full(5, 7))
    assert (fitted.novelty_score(x_test) <= novelty + 1e-9).all()  # one more may explain a row

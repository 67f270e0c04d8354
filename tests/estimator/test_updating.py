"""Going on after a fit: partial_fit and add_classes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail import PrototypeClassifier
from protail.estimator._features import Preparation
from protail.estimator._gaussian import ClosedForm, Statistics
from protail.estimator._learning import Calibration
from protail.estimator._whitened import linear


def rows_of(n_classes=5, each=30, seed=0):
    rng = np.random.default_rng(seed)
    centres = 3 * np.random.default_rng(42).normal(size=(n_classes, 6))
    y = rng.permutation(np.repeat(np.arange(n_classes), each))
    return centres[y] + rng.normal(size=(len(y), 6)), y


@pytest.mark.filterwarnings("ignore:the first rows say nothing")
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, 149), min_size=1, max_size=4, unique=True))
def test_untrained_pieces_make_the_whole(cuts):
    X, y = rows_of()
    whole = PrototypeClassifier(epochs=0, normalize=5.0).fit(X, y)
    pieces = PrototypeClassifier(epochs=0, normalize=5.0)
    for part in np.split(np.arange(len(y)), sorted(cuts)):
        pieces.partial_fit(X[part], y[part], classes=np.unique(y))
    np.testing.assert_allclose(pieces.prototypes_, whole.prototypes_, atol=1e-10)
    np.testing.assert_array_equal(pieces.class_counts_, whole.class_counts_)
    np.testing.assert_array_equal(pieces.predict(X), whole.predict(X))


def test_training_goes_on():
    X, y = rows_of(each=60)
    fresh, labels = rows_of(each=60, seed=1)
    fitted = PrototypeClassifier(method="paper", random_state=0)
    fitted.partial_fit(X[:150], y[:150], classes=range(5))
    steps, before = fitted.history_["step"][-1], fitted.prototypes_.copy()
    fitted.partial_fit(X[150:], y[150:])
    assert fitted.history_["step"][-1] == steps + round(steps * 0.5)
    assert not np.allclose(fitted.prototypes_, before)
    np.testing.assert_allclose(
        fitted.class_means_,
        PrototypeClassifier(epochs=0, normalize=fitted.normalize_).fit(X, y).prototypes_,
        atol=1e-9,
    )
    assert fitted.score(fresh, labels) > 0.93


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(50, 149), min_size=1, max_size=4, unique=True))
def test_pieces_make_the_whole_in_closed_form(cuts):
    """Whatever was chosen from the first rows: with it, all rows give the same prototypes."""
    X, y = rows_of()
    pieces = PrototypeClassifier(method="closed-form")
    for part in np.split(np.arange(len(y)), sorted(cuts)):
        pieces.partial_fit(X[part], y[part], classes=np.unique(y))
    prepared = Preparation.from_arrays(pieces.choices_["preparation"], pieces.preparation_)
    statistics = Statistics.of(prepared(torch.from_numpy(X)), torch.from_numpy(y), 5)
    form = ClosedForm.of(statistics, pieces.choices_["ridge"])
    calibration = Calibration(pieces.scale_, pieces.choices_["logit_adjustment"], 0.0)
    weights, bias = linear(form, calibration)
    np.testing.assert_allclose(pieces.coef_, weights, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(pieces.intercept_, bias, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(pieces.class_counts_, np.bincount(y))


def test_more_rows_make_it_better():
    X, y = rows_of(each=60)
    X = X + 2 * np.random.default_rng(5).normal(size=X.shape)
    fresh, labels = rows_of(each=60, seed=1)
    fitted = PrototypeClassifier().partial_fit(X[:30], y[:30], classes=range(5))
    before = fitted.score(fresh, labels)
    assert fitted.partial_fit(X[30:], y[30:]).score(fresh, labels) >= before


@pytest.mark.parametrize("method", ["whitened", "closed-form"])
def test_a_class_added_in_a_whitened_space_leaves_the_others_alone(method):
    X, y = rows_of()
    old = y < 3
    fitted = PrototypeClassifier(method=method).fit(X[old], y[old])
    before = [vars(fitted)[name] for name in ("coef_", "intercept_", "prototypes_")]
    distances = fitted.distances(X)
    fitted.add_classes(X[~old][:7], y[~old][:7])
    for array, name in zip(before, ("coef_", "intercept_", "prototypes_"), strict=True):
        np.testing.assert_array_equal(vars(fitted)[name][:3], array)
    np.testing.assert_allclose(fitted.distances(X)[:, :3], distances, rtol=1e-9)
    assert fitted.score(X, y) > 0.9
    assert fitted.partial_fit(X, y).score(X, y) > 0.9


def test_first_call_equals_fit():
    X, y = rows_of()
    first = PrototypeClassifier(random_state=0).partial_fit(X, y, classes=np.unique(y))
    np.testing.assert_array_equal(
        first.prototypes_, PrototypeClassifier(random_state=0).fit(X, y).prototypes_
    )


def test_classes_still_to_come_are_never_predicted():
    X, y = rows_of()
    known = y < 3
    fitted = PrototypeClassifier(random_state=0).partial_fit(X[known], y[known], classes=range(5))
    assert set(fitted.predict(X)) <= {0, 1, 2}
    assert (fitted.predict_proba(X)[:, 3:] == 0).all()
    assert np.isinf(fitted.distances(X)[:, 3:]).all()
    assert np.isfinite(fitted.novelty_score(X)).all()
    fitted.partial_fit(X[~known], y[~known])
    assert fitted.score(X, y) > 0.9


@pytest.mark.parametrize("temperature", [None, "channel", "class", "dense"])
def test_added_classes_leave_the_others_alone(temperature):
    X, y = rows_of()
    old = y < 3
    fitted = PrototypeClassifier(method="paper", temperature=temperature, random_state=0)
    fitted.fit(X[old], y[old])
    prototypes, distances = fitted.prototypes_, fitted.distances(X)
    fitted.add_classes(X[~old], y[~old])
    np.testing.assert_array_equal(fitted.classes_, np.arange(5))
    np.testing.assert_array_equal(fitted.class_counts_, [30] * 5)
    np.testing.assert_array_equal(fitted.prototypes_[:3], prototypes)
    np.testing.assert_allclose(fitted.distances(X)[:, :3], distances, rtol=1e-9)
    radius = fitted.normalize_
    placed = X * (radius / np.linalg.norm(X, axis=1, keepdims=True) if radius else 1)
    placed = placed * fitted.feature_scale_
    np.testing.assert_allclose(fitted.class_means_[4], placed[y == 4].mean(0))
    assert fitted.score(X, y) > 0.9
    assert fitted.partial_fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize("temperature", [None, "class", "dense"])
def test_classes_stay_sorted(temperature):
    X, y = rows_of(3)
    fitted = PrototypeClassifier(temperature=temperature, max_steps=20, random_state=0)
    fitted.fit(X[y > 0], y[y > 0])
    old = fitted.distances(X)
    fitted.add_classes(X[y == 0], y[y == 0])
    assert fitted.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(fitted.distances(X)[:, 1:], old, rtol=1e-9)
    assert fitted.score(X, y) > 0.9


def test_added_classes_need_a_prior_that_can_grow():
    X, y = rows_of(3)
    fitted = PrototypeClassifier(prior=[0.5, 0.5], max_steps=5).fit(X[y < 2], y[y < 2])
    with pytest.raises(ValueError, match=r"prior is an array of 2 fractions.*set_params"):
        fitted.add_classes(X[y == 2], y[y == 2])


def test_a_first_call_that_says_nothing_warns():
    X, y = rows_of()
    with pytest.warns(UserWarning, match="the first rows say nothing of what"):
        fitted = PrototypeClassifier().partial_fit(X[:1], y[:1], classes=range(5))
    assert fitted.scale_ == 1


def test_added_names_may_be_longer():
    X, y = rows_of(3)
    names = np.array(["ash", "elm", "sycamore"])[y]
    fitted = PrototypeClassifier(max_steps=20, random_state=0).fit(X[y < 2], names[y < 2])
    fitted.add_classes(X[y == 2], names[y == 2])
    assert fitted.classes_.tolist() == ["ash", "elm", "sycamore"]
    assert np.mean(fitted.predict(X) == names) > 0.9


@pytest.mark.parametrize(
    ("method", "labels", "message"),
    [
        ("add_classes", [0, 7], r"y has \[0\], which the classifier knows already"),
        ("add_classes", ["a", "b"], "expected numbers with numbers"),
        ("partial_fit", [0, 7], r"y has \[7\], which are not among the classes"),
        ("partial_fit", ["a", "b"], "expected numbers with numbers"),
    ],
)
def test_wrong_labels_change_nothing(method, labels, message):
    X, y = rows_of()
    fitted = PrototypeClassifier(max_steps=10, random_state=0).fit(X, y)
    before = dict(vars(fitted))
    with pytest.raises(ValueError, match=message):
        getattr(fitted, method)(X[:2], labels)
    assert all(vars(fitted)[name] is value for name, value in before.items())


def test_first_call_needs_classes():
    X, y = rows_of()
    with pytest.raises(ValueError, match=r"classes=None in the first call.*expected all labels"):
        PrototypeClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="fewer than two labels"):
        PrototypeClassifier().partial_fit(X, y, classes=[0])
    fitted = PrototypeClassifier(max_steps=10).partial_fit(X, y, classes=range(5))
    with pytest.raises(ValueError, match="differs from the first call's"):
        fitted.partial_fit(X, y, classes=range(6))

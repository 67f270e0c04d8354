"""Classes added after a fit, beside a model fitted with them from the start."""

import copy

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

from protail import PrototypeClassifier
from protail.data.images import load_dataset


def long_tailed(load, imbalance, seed, *, standardise=False):
    """Take 60 % of each class to train on, and of these fewer and fewer, class by class."""
    x, y = load(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=0.4, stratify=y, random_state=seed
    )
    if standardise:
        mean, deviation = x_train.mean(0), x_train.std(0)
        x_train, x_test = (x_train - mean) / deviation, (x_test - mean) / deviation
    rng = np.random.default_rng(seed)
    largest, last = np.bincount(y_train).min(), y.max()
    kept = [
        rng.permutation(np.flatnonzero(y_train == label))[
            : max(1, round(largest * imbalance ** (-label / last)))
        ]
        for label in range(last + 1)
    ]
    index = np.sort(np.concatenate(kept))
    return x_train[index], y_train[index], x_test, y_test


def cifar():
    data = load_dataset("cifar100-lt-features")
    return data.train.rows, data.train.labels, data.test.rows, data.test.labels


ROWS = (1, 5, 20)


def beside_a_fit(data, classes):
    """Leave each class out in turn, add it from few rows, and fit with these from the start.

    Gives ``{rows: [(added, fitted), ...]}``, of each the percents that are right of the other
    classes and of the new one. A class with fewer rows is not added from more.
    """
    x_train, y_train, x_test, y_test = data
    found = {n_rows: [] for n_rows in ROWS}

    def scores(classifier, label):
        recalls = 100 * recall_score(y_test, classifier.predict(x_test), average=None)
        return np.delete(recalls, label).mean(), recalls[label]

    for label in classes:
        known, own = (np.flatnonzero(where) for where in (y_train != label, y_train == label))
        without = PrototypeClassifier(random_state=0).fit(x_train[known], y_train[known])
        for n_rows in ROWS:
            if len(own) < n_rows:
                continue
            new, index = own[:n_rows], np.concatenate([known, own[:n_rows]])
            added = copy.deepcopy(without).add_classes(x_train[new], y_train[new])
            fitted = PrototypeClassifier(random_state=0).fit(x_train[index], y_train[index])
            found[n_rows].append((scores(added, label), scores(fitted, label)))
    return found


def check(n_classes, *found):
    for n_rows in ROWS:
        pairs = [pair for each in found for pair in each[n_rows]]
        (others, new), (others_fitted, new_fitted) = np.mean(pairs, axis=0)
        assert others >= others_fitted - 6, n_rows
        assert new >= 0.8 * new_fitted, n_rows
        # What the others lose the new class gains, but for what few classes cannot choose well.
        n_others = n_classes - 1
        gain = n_others * (others - others_fitted) + new - new_fitted
        assert gain >= -5 * n_classes, n_rows


STEPS = [3, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("imbalance", [pytest.param(10, marks=pytest.mark.slow), 50])
def test_digits(imbalance, step):
    check(10, beside_a_fit(long_tailed(load_digits, imbalance, 0), range(0, 10, step)))


@pytest.mark.parametrize("n_splits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_wine(n_splits):
    """As there are few test rows, several splits together."""
    splits = [long_tailed(load_wine, 10, s, standardise=True) for s in range(n_splits)]
    check(3, *(beside_a_fit(data, range(3)) for data in splits))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:learned prototypes leave no place")
def test_wine_in_its_own_units():
    """One channel outweighs all others: on a line there is no place between two prototypes."""
    found = [beside_a_fit(long_tailed(load_wine, 1, seed), range(3)) for seed in range(4)]
    for n_rows in ROWS:
        pairs = [pair for each in found for pair in each[n_rows]]
        (others, new), (others_fitted, new_fitted) = np.mean(pairs, axis=0)
        # Where prototypes that stay leave little room, a fit with all rows has more.
        assert others >= others_fitted - 6, n_rows
        assert new >= 0.7 * new_fitted, n_rows


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_memorised_features(step):
    check(100, beside_a_fit(cifar(), range(0, 100, step)))


def test_no_place_for_a_class_is_said():
    """Two prototypes on a line move apart, beyond a third class that comes later."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(centre, 1, size=(50, 1)) for centre in (0, 2, 6)])
    y = np.repeat([0, 1, 2], 50)
    known = y < 2
    classifier = PrototypeClassifier(normalize=None, epochs=5, lr=50.0, random_state=0)
    classifier.fit(x[known], y[known])
    with pytest.warns(UserWarning, match=r"learned prototypes leave no place for \[2\]"):
        classifier.add_classes(x[~known], y[~known])
    np.testing.assert_array_equal(classifier.prototypes_, classifier.class_means_)
    assert recall_score(y, classifier.predict(x), average=None).min() > 0.5


def test_several_classes_at_once():
    x_train, y_train, x_test, y_test = long_tailed(load_digits, 10, 0)
    known = y_train < 7
    added = PrototypeClassifier(random_state=0).fit(x_train[known], y_train[known])
    old = y_test < 7
    before = np.mean(added.predict(x_test[old]) == y_test[old])
    added.add_classes(x_train[~known], y_train[~known])
    fitted = PrototypeClassifier(random_state=0).fit(x_train, y_train)
    assert added.score(x_test, y_test) >= fitted.score(x_test, y_test) - 0.05
    assert np.mean(added.predict(x_test[old]) == y_test[old]) >= before - 0.08

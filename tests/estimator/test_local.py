"""Corrections near training rows: against loops, and as a part of the classifier."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_moons

from protail import PrototypeClassifier
from protail.estimator._local import LandmarkFeatures


def nearness(x, landmarks, width):
    """1 over 1 plus the squared distance in units of the width, by a loop."""
    return np.array(
        [
            [
                1 / (1 + sum((a - b) ** 2 for a, b in zip(row, at, strict=True)) / width)
                for at in landmarks
            ]
            for row in x
        ]
    )


@settings(max_examples=25)
@given(
    n_rows=st.integers(2, 12),
    n_channels=st.integers(1, 5),
    spread=st.floats(0.1, 100),
    seed=st.integers(0, 1000),
)
def test_columns_of_two_rows_say_how_near_they_are(n_rows, n_channels, spread, seed):
    rows = np.random.default_rng(seed).normal(size=(n_rows, n_channels))
    columns = LandmarkFeatures.of(torch.from_numpy(rows), torch.arange(n_rows), spread)
    found = columns(torch.from_numpy(rows))
    assert_allclose(found, columns.column_nm, rtol=1e-6, atol=1e-6 * spread)
    expected = spread**2 * nearness(rows, rows, columns.width)
    assert_allclose(found @ found.mT, expected, rtol=2e-3, atol=2e-3 * spread**2)


@settings(max_examples=25)
@given(n_rows=st.integers(2, 12), seed=st.integers(0, 1000))
def test_what_was_learned_of_columns_as_weights(n_rows, seed):
    rng = np.random.default_rng(seed)
    landmarks, x, added = (rng.normal(size=size) for size in ((n_rows, 3), (5, 3), (4, n_rows)))
    rows, index = torch.from_numpy(np.concatenate([x, landmarks])), torch.arange(5, 5 + n_rows)
    columns = LandmarkFeatures.of(rows, index, 3.0)
    corrections = columns.corrections(torch.from_numpy(added), torch.from_numpy(landmarks))
    expected = nearness(x, landmarks, columns.width) @ corrections.weight_cm.numpy().T
    assert_allclose(corrections(torch.from_numpy(x)), expected, rtol=1e-9, atol=1e-9)
    assert_allclose(columns(torch.from_numpy(x)).numpy() @ added.T, expected, rtol=1e-6, atol=1e-6)


def moons(n_rows=400, seed=0):
    x, y = make_moons(n_rows, noise=0.15, random_state=seed)
    return x.astype(np.float32), np.array(["up", "down"])[y]


@pytest.fixture(scope="module")
def bent():
    return PrototypeClassifier().fit(*moons())


def test_borders_bend_where_rows_gain(bent):
    x, y = moons(seed=1)
    flat = PrototypeClassifier(local=False).fit(*moons())
    assert flat.landmarks_ is None
    assert flat.score(x, y) < 0.92 < 0.97 < bent.score(x, y)
    assert len(bent.landmarks_) == len(bent.local_coef_[0]) == 400


def test_flat_borders_stay_flat():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 8)), np.repeat([0, 1, 2], 100)
    x[:, :3] += 1.5 * np.eye(3)[y]
    fitted = PrototypeClassifier().fit(x, y)
    assert fitted.landmarks_ is None
    assert fitted.choices_["local_width"] is None


def test_rows_that_come_twice():
    x, y = moons(120)
    twice = PrototypeClassifier().fit(np.concatenate([x, x]), np.concatenate([y, y]))
    assert twice.landmarks_ is not None
    assert twice.score(*moons(seed=1)) > 0.95


def test_logits_are_prototypes_and_corrections(bent):
    from protail.estimator._features import Preparation

    x, _ = moons(30, seed=2)
    kind = bent.choices_["preparation"]
    prepared = (
        Preparation.from_arrays(kind, bent.preparation_)(torch.from_numpy(x)).double().numpy()
    )
    logits = prepared @ bent.coef_.T.astype(float) + bent.intercept_
    logits += nearness(prepared, bent.landmarks_, bent.choices_["local_width"]) @ bent.local_coef_.T
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert_allclose(bent.predict_proba(x), expected, rtol=1e-3, atol=1e-5)
    assert_array_equal(bent.predict(x), bent.classes_[expected.argmax(1)])
    assert_array_equal(bent.top_k(x, 1)[0][:, 0], bent.predict(x))


def test_saved_and_as_a_module(bent, tmp_path):
    x, _ = moons(50, seed=3)
    bent.save(tmp_path / "model")
    again = PrototypeClassifier.load(tmp_path / "model")
    assert_array_equal(again.predict_proba(x), bent.predict_proba(x))
    assert_allclose(bent.to_module()(torch.from_numpy(x)), bent.predict_proba(x), atol=1e-5)


def test_rows_far_from_all_landmarks_go_by_prototypes(bent):
    far = np.array([[1e18, 2e18], [-3e18, 1e18]], np.float32)
    assert np.isfinite(bent.predict_proba(far)).all()
    assert np.isfinite(bent.novelty_score(far)).all()
    assert_allclose(bent.to_module()(torch.from_numpy(far)), bent.predict_proba(far), atol=1e-6)


def test_classes_and_rows_added_later():
    x, y = moons()
    fitted = PrototypeClassifier().fit(x, y)
    before = fitted.decision_function(x)
    fitted.add_classes(np.float32([[5, 5], [5.2, 5], [5, 5.1]]), ["far"] * 3)
    now = fitted.decision_function(x)
    names = fitted.classes_.tolist()
    difference = now[:, names.index("up")] - now[:, names.index("down")]
    assert_allclose(difference, before, rtol=1e-4, atol=1e-3)
    assert fitted.predict(np.float32([[5.1, 5]])).tolist() == ["far"]
    more, labels = moons(seed=4)
    assert fitted.partial_fit(more, labels).score(more, labels) > 0.95


@pytest.mark.parametrize("wrong", ["auto", 1, None])
def test_wrong_setting(wrong):
    with pytest.raises(ValueError, match=r"local=.* is not valid; expected True or False"):
        PrototypeClassifier(local=wrong).fit(*moons(20))


def bent_rows(n_rows, seed, n_channels=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, n_channels)).astype(np.float32)
    return rng, x, (x[:, 0] * x[:, 1] > 0).astype(int)


@pytest.mark.parametrize("seed", range(3))
def test_distances_that_are_mostly_rounding_have_no_say(seed):
    rng, x, y = bent_rows(400, seed)
    y[300:] = 4 + rng.integers(0, 6, 100)
    x[300:] += (3e3 * rng.normal(size=(6, 6)))[y[300:] - 4].astype(np.float32)
    fitted = PrototypeClassifier().fit(x, y)
    assert fitted.landmarks_ is None
    assert np.isfinite(fitted.predict_proba(x)).all()


@pytest.mark.parametrize("seed", [0, 3, 5, 11])
def test_rows_have_the_same_answer_alone_and_exported(seed):
    rng, x, y = bent_rows(60, seed, 3)
    x[rng.random(60) < 0.8] = x[0]
    y = np.where(rng.random(60) < 0.1, 1 - y, y)
    fitted = PrototypeClassifier().fit(x, y)
    expected = fitted.predict_proba(x)
    alone = np.concatenate([fitted.predict_proba(x[at : at + 1]) for at in range(60)])
    assert_allclose(alone, expected, atol=1e-3)
    assert_allclose(fitted.to_module()(torch.from_numpy(x)), expected, atol=1e-3)


def test_rows_of_zeros():
    fitted = PrototypeClassifier().fit(np.zeros((20, 2), np.float32), np.tile([0, 1], 10))
    assert np.isfinite(fitted.predict_proba(np.zeros((1, 2), np.float32))).all()


def test_long_tables_get_fewer_landmarks():
    assert 64 <= len(PrototypeClassifier().fit(*moons(100_000)).landmarks_) <= 2**25 // 100_000

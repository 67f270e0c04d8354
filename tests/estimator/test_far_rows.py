"""Rows of any finite length get one answer, whichever method is asked."""

from functools import cache
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail import PrototypeClassifier
from protail.cli.sources import Model, ask
from protail.ops import _short

N_CLASSES, N_FEATURES = 4, 6
models = st.tuples(
    st.sampled_from(["euclidean", "sqeuclidean", "cosine"]),
    st.sampled_from([None, 4.0, "auto"]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["uniform", "train", (0.0, 0.5, 0.25, 0.25)]),
    st.sampled_from([None, "channel", "class"]),
)


def training_rows(dtype="float64"):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(N_CLASSES), [40, 20, 10, 5])
    centres = 3 * rng.normal(size=(N_CLASSES, N_FEATURES))
    return (centres[y] + rng.normal(size=(len(y), N_FEATURES))).astype(dtype), y


@cache
def fitted(distance, normalize, dtype, prior, temperature):
    options = {"distance": distance, "normalize": normalize, "temperature": temperature}
    prior = list(prior) if isinstance(prior, tuple) else prior
    model = PrototypeClassifier(max_steps=5, prior=prior, random_state=0, **options)
    return model.fit(*training_rows(dtype))


def assert_one_answer(model, X, n_seen=N_CLASSES):
    each = np.arange(len(X))
    probabilities = model.predict_proba(X)
    rounding = 8 * np.finfo(probabilities.dtype).eps
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=rounding)

    codes = np.searchsorted(model.classes_, model.predict(X))
    highest = probabilities.max(1)
    np.testing.assert_array_equal(probabilities[each, codes], highest)
    labels, likely, away = model.top_k(X, len(model.classes_), return_distance=True)
    places = np.searchsorted(model.classes_, labels)
    np.testing.assert_array_equal(places[:, 0], codes)
    np.testing.assert_array_equal(np.sort(places, axis=1), np.tile(np.unique(places), (len(X), 1)))
    for k in (1, 2):
        np.testing.assert_array_equal(model.top_k(X, k)[0], labels[:, :k])
    np.testing.assert_array_equal(likely, np.take_along_axis(probabilities, places, 1))
    np.testing.assert_array_equal(away, np.take_along_axis(model.distances(X), places, 1))
    assert (np.diff(likely, axis=1) <= 0).all()

    scores = model.decision_function(X)
    if len(model.classes_) > 2:
        np.testing.assert_array_equal(scores[each, codes], scores.max(1))
    assert np.isfinite(scores).sum() >= len(X)
    assert np.isfinite(model.distances(X)).sum() == len(X) * n_seen
    assert np.isfinite(model.novelty_score(X)).all()

    answers = ask(Model(Path(), model, None), X, 2)
    np.testing.assert_array_equal(answers.codes, places[:, :2])
    np.testing.assert_array_equal(answers.probabilities, likely[:, :2])
    np.testing.assert_array_equal(answers.novelty, model.novelty_score(X))


@settings(max_examples=150)
@given(
    models,
    st.sampled_from(["float32", "float64"]),
    st.lists(st.floats(-30, 30), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_every_method_gives_the_same_answer_at_every_scale(model, dtype, exponents, seed):
    X, _ = training_rows()
    rows = np.random.default_rng(seed).choice(len(X), len(exponents))
    X = (X[rows] * 10.0 ** np.array(exponents)[:, None]).astype(dtype)
    assert_one_answer(fitted(*model), X)
    # Nor does an answer depend on the rows beside it.
    alone = [fitted(*model).predict(row[None])[0] for row in X]
    np.testing.assert_array_equal(alone, fitted(*model).predict(X))


@pytest.mark.filterwarnings("ignore:1 row of X is all zeros")
@pytest.mark.parametrize("prior", ["uniform", (0.0, 0.5, 0.25, 0.25)])
def test_candidates_by_bfloat16_change_no_answer(prior, monkeypatch):
    X, y = training_rows("float32")
    model = PrototypeClassifier(method="whitened", prior=prior, random_state=0).fit(X, y)
    scales = [1e-45, 1e-36, 1e-20, 1e-3, 1, 1e3, 1e20, 1e36]
    rows = np.concatenate([0 * X[:1], *(X * np.float32(scale) for scale in scales)])
    expected = model.predict(rows)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    for name in ("_MANY_CLASSES", "_LARGE_BATCH", "_LARGE_TABLE"):
        monkeypatch.setattr(_short, name, 2)
    monkeypatch.setattr(_short, "candidates", Mock(wraps=_short.candidates))
    np.testing.assert_array_equal(model.predict(rows), expected)
    assert _short.candidates.call_count == 1


@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_away_the_direction_decides(distance, dtype):
    """With a distance that grows without end the probabilities tend to a limit."""
    X, _ = training_rows(dtype)
    model = fitted(distance, None, dtype, "uniform", None)
    scales = [1e8, 1e12, 1e18, 1e25] + ([1e100, 1e200] if dtype == "float64" else [])
    expected = model.predict_proba((X * np.array(1e6, dtype)).astype(dtype))
    for scale in scales:
        found = model.predict_proba((X * np.array(scale, dtype)).astype(dtype))
        np.testing.assert_allclose(found, expected, atol=1e-3)
    assert len(np.unique(expected.argmax(1))) > 1


@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean"])
def test_ties_go_to_the_first_class_in_every_method(distance):
    rng = np.random.default_rng(0)
    means = rng.normal(size=(2, 3)).astype("f4")
    X = np.concatenate([means, means, -means]).repeat(2, axis=0)
    y = np.arange(6).repeat(2)
    model = PrototypeClassifier(distance=distance, normalize=None, epochs=0).fit(X, y)
    rows = np.concatenate([means, -means, np.zeros((1, 3), "f4")])
    for scale in (1e-30, 1e-10, 1, 1e10, 1e20):
        assert_one_answer(model, rows * np.float32(scale), 6)
        assert set(model.predict(rows * np.float32(scale))) <= {0, 1, 4, 5}
    assert model.predict(rows[-1:])[0] == min((0, 1), key=lambda c: np.square(means[c]).sum())


def test_classes_without_rows_stay_out_of_it():
    X, y = training_rows("float32")
    model = PrototypeClassifier(distance="sqeuclidean", normalize=None, max_steps=5)
    model.partial_fit(X, y, classes=np.arange(-1, N_CLASSES + 1))
    for scale in (1e-20, 1, 1e10, 1e25):
        rows = X * np.float32(scale)
        assert_one_answer(model, rows)
        assert (model.predict_proba(rows)[:, [0, -1]] == 0).all()
        assert np.isposinf(model.distances(rows)[:, [0, -1]]).all()
    with pytest.raises(ValueError, match="every fraction to classes that have had no rows"):
        model.set_params(prior=[0.5, 0, 0, 0, 0, 0.5]).predict(X)


@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean", "cosine"])
def test_two_classes(distance):
    X, y = training_rows("float32")
    model = PrototypeClassifier(distance=distance, normalize=None, max_steps=5)
    model.fit(X, y > 0)
    for scale in (1e-30, 1, 1e10, 1e25):
        rows = X * np.float32(scale)
        assert_one_answer(model, rows, 2)
        lead = model.decision_function(rows)
        assert np.isfinite(lead).all()
        np.testing.assert_array_equal(lead > 0, model.predict(rows))


def test_models_of_tiny_and_huge_rows():
    X, y = training_rows("float32")
    for scale in (1e-20, 1e-18, 1e15):
        model = PrototypeClassifier(distance="sqeuclidean", normalize=None, epochs=0, lr=1.0)
        model.fit(X * np.float32(scale), y)
        assert_one_answer(model, X * np.float32(scale))

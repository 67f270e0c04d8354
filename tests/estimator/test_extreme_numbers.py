"""Rows that no features should be, and some are: every fit is finite and sensible, or says why."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protail import PrototypeClassifier

METHODS = {
    "default": {},
    "closed-form": {"method": "closed-form"},
    "paper": {"method": "paper"},
    "paper, raw lengths": {"method": "paper", "distance": "sqeuclidean", "normalize": None},
    "paper, temperatures": {"method": "paper", "normalize": None, "temperature": "channel"},
    "paper, cosine": {"method": "paper", "distance": "cosine"},
}
ANY_SCALE = [name for name in METHODS if name not in ("paper, raw lengths", "paper, temperatures")]
COUNTS = (40, 20, 10, 5)


def easy_rows(counts=COUNTS, n_channels=8, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    centres = 4 * rng.normal(size=(len(counts), n_channels))
    return centres[y] + rng.normal(size=(len(y), n_channels)), y


def fitted(X, y, method="default", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows of zeros, of as many classes as rows
        return PrototypeClassifier(random_state=0, **METHODS[method], **options).fit(X, y)


def assert_finite(model, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = model.predict_proba(X), model.decision_function(X), model.distances(X)
        novelty = model.novelty_score(X)
    for answer in (*answers, novelty, model.prototypes_, model.class_means_):
        assert np.isfinite(answer).all()
    np.testing.assert_allclose(answers[0].sum(1, dtype="float64"), 1, atol=1e-4)


def recall(model, X, y):
    return np.mean([(model.predict(X[y == c]) == c).mean() for c in model.classes_])


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8)
@given(
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    exponents=st.lists(st.floats(-330, 310), min_size=5, max_size=5),
    along=st.sampled_from(["table", "columns", "rows"]),
    spoilt=st.sampled_from(["", "extremes", "one row", "contradictions", "a constant", "zeros"]),
    seed=st.integers(0, 2**16),
)
def test_fits_are_finite_or_say_why(method, dtype, counts, exponents, along, spoilt, seed):
    X, y = easy_rows(counts, 5, seed)
    rng = np.random.default_rng(seed)
    limits = np.finfo(dtype)
    exponent = np.clip(exponents, np.log10(limits.tiny) - 5, np.log10(limits.max))
    shape = {"table": exponent[0], "columns": exponent, "rows": rng.choice(exponent, (len(X), 1))}
    with np.errstate(all="ignore"):
        X = np.clip(X * 10.0 ** shape[along], -limits.max, limits.max).astype(dtype)
    if spoilt == "extremes":  # 65,504 in float16
        X[rng.random(X.shape) < 0.2] = limits.max
        X[rng.random(X.shape) < 0.2] = -limits.max
    elif spoilt == "one row":
        X[:] = X[0]
    elif spoilt == "contradictions":
        X[1::2] = X[: len(X) - len(X) % 2 : 2]
    elif spoilt == "a constant":
        X[:, 2] = limits.max
    elif spoilt == "zeros":
        X[::3] = 0
    model, why = None, ""
    try:
        model = fitted(X, y, method)
    except ValueError as error:
        why = str(error)
    if model is None:
        assert method.startswith("paper")
        assert "expected" in why
    else:
        assert_finite(model, X)


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-30, 1e-18, 1e18, 1e30, 1e300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_scale_of_rows_does_not_matter(dtype, scale):
    X, y = easy_rows()
    with np.errstate(all="ignore"):
        X = (X * scale).astype(dtype)
    if not (np.isfinite(X).all() and X.any()):
        pytest.skip("no numbers of this type")
    for method in ANY_SCALE:
        model = fitted(X, y, method)
        assert_finite(model, X)
        assert recall(model, X, y) == 1, method


def test_float16_to_its_end():
    X, y = easy_rows()
    X = (X / np.abs(X).max() * 65_504).astype("float16")
    assert np.abs(X).max() == 65_504
    for method in METHODS:
        assert recall(fitted(X, y, method), X, y) > 0.9, method


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_column_that_jumps_from_end_to_end_of_its_type(dtype):
    """Less their mean such numbers are infinite; Cholesky once failed on what came of them."""
    X, y = easy_rows()
    X = X.astype(dtype)
    X[::2, 3], X[1::2, 3] = np.finfo(dtype).max, -np.finfo(dtype).max
    for method in ("default", "closed-form"):
        model = fitted(X, y, method)
        assert_finite(model, X)
        assert recall(model, X, y) == 1
    if dtype == "float32":  # as exported modules are
        found = model.to_module()(torch.from_numpy(X)).argmax(1)
        np.testing.assert_array_equal(found, model.predict(X))


def test_columns_of_any_scale_are_told_apart():
    X, y = easy_rows()
    X = (X * 10.0 ** np.linspace(-30, 30, X.shape[1])).astype("float32")
    for method in ("default", "closed-form"):
        assert recall(fitted(X, y, method), X, y) == 1


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-30), ("float64", 1e-200)])
@pytest.mark.parametrize("epochs", ["auto", 0])
def test_squares_that_underflow_are_told(dtype, scale, epochs):
    """Every row was once given to the first class, without a word."""
    X, y = easy_rows()
    with pytest.raises(ValueError, match="so small that their squares underflow"):
        fitted((X * scale).astype(dtype), y, "paper, raw lengths", epochs=epochs)


@pytest.mark.parametrize("scale", [1e-140, 1e140])
def test_a_sharpness_is_found_at_any_scale(scale):
    """The product of its bounds overflowed, and the search for it had no end."""
    X, y = easy_rows()
    assert recall(fitted(X * scale, y, "paper, raw lengths"), X * scale, y) == 1


def test_squares_that_overflow_are_told():
    X, y = easy_rows()
    with pytest.raises(ValueError, match="so large that their squares overflow"):
        fitted((X * 1e30).astype("float32"), y, "paper, raw lengths")


@pytest.mark.parametrize("method", METHODS)
def test_one_row_of_every_label_says_nothing(method):
    """Contradictions: the same rows in all classes. No class is likelier than its fraction."""
    X, _ = easy_rows()
    X, y = np.repeat(X[:12], 4, axis=0), np.tile(np.arange(4), 12)
    model = fitted(X, y, method)
    assert_finite(model, X)
    np.testing.assert_allclose(model.predict_proba(X), 0.25, atol=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_classes_of_one_row(method):
    X = np.random.default_rng(0).normal(size=(60, 8))
    model = fitted(X, np.arange(60), method)
    assert_finite(model, X)
    assert recall(model, X, np.arange(60)) == 1


@pytest.mark.parametrize("method", ["default", "closed-form", "paper"])
def test_one_row_among_a_hundred_thousand(method):
    X, y = easy_rows((100_000, 10, 1), 4)
    X = X.astype("float32")
    model = fitted(X, y, method)
    assert_finite(model, X[-500:])
    rare = X[y > 0]
    assert (model.predict(rare) == y[y > 0]).mean() > 0.8
    assert (model.predict(X[:5000]) == 0).mean() > 0.8


@pytest.mark.parametrize("n_classes", [500, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["default", "closed-form", "paper"])
def test_many_classes_of_one_or_two_rows(method, n_classes):
    rng = np.random.default_rng(0)
    y = np.concatenate([np.arange(n_classes), np.arange(0, n_classes, 2)])
    centres = 5 * rng.normal(size=(n_classes, 32))
    X = (centres[y] + rng.normal(size=(len(y), 32))).astype("float32")
    model = fitted(X, y, method)
    some = rng.choice(len(y), 500, replace=False)
    assert_finite(model, X[some])
    assert (model.predict(X[some]) == y[some]).mean() > 0.95
    new = (centres[y[some]] + rng.normal(size=(500, 32))).astype("float32")
    assert (model.predict(new) == y[some]).mean() > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits(method):
    X, y = easy_rows()
    first, second = (fitted(X, y, method) for _ in range(2))
    assert pickle.dumps(first) == pickle.dumps(second)
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))

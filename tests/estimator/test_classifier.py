"""PrototypeClassifier: what it promises a scikit-learn user."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from protail import PrototypeClassifier

QUICK = {"random_state": 0, "max_steps": 30}


def long_tailed(n_classes=6, n_features=8, largest=60, seed=0, spread=1.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    centres = 2.5 * rng.normal(size=(n_classes, n_features))
    counts = [max(2, int(largest * 0.5**c)) for c in range(n_classes)]
    y = np.repeat(np.arange(n_classes), counts)
    X = centres[y] + spread * rng.normal(size=(len(y), n_features))
    order = rng.permutation(len(y))
    return X[order].astype(dtype), y[order]


@parametrize_with_checks([PrototypeClassifier()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_top_k_orders_classes_whose_probability_is_nothing(dtype):
    """So far away that their probabilities underflow, classes still have an order."""
    X, y = long_tailed(n_classes=12, n_features=5)
    X = (300 * X).astype(dtype)
    fitted = PrototypeClassifier(epochs=0, normalize=None).fit(X, y)
    fitted.scale_ = 1e6
    labels, probabilities, distances = fitted.top_k(X, 6, return_distance=True)
    assert (probabilities[:, 1:] == 0).mean() > 0.5
    to_all = np.linalg.norm(
        (X * fitted.feature_scale_)[:, None].astype(float) - fitted.prototypes_, axis=2
    )
    nearest = np.sort(to_all, axis=1)[:, :6]
    np.testing.assert_allclose(distances, nearest, rtol=1e-3)
    np.testing.assert_array_equal(labels[:, 0], fitted.predict(X))


def test_top_k_puts_classes_without_rows_last():
    X, y = long_tailed()
    fitted = PrototypeClassifier(epochs=0).partial_fit(X, y, classes=np.arange(-3, 9))
    labels, probabilities, distances = fitted.top_k(X, 12, return_distance=True)
    assert set(labels[:, :6].ravel()) == set(range(6))
    assert np.isinf(distances[:, 6:]).all()
    assert (probabilities[:, 6:] == 0).all()


def test_untrained_is_nearest_centroid():
    X, y = long_tailed(spread=2.0)
    rows = np.random.default_rng(1).normal(size=(500, X.shape[1])) * 4
    ours = PrototypeClassifier(epochs=0, normalize=None).fit(X, y)
    theirs = NearestCentroid().fit(X, y)
    np.testing.assert_allclose(ours.prototypes_, theirs.centroids_, atol=1e-12)
    np.testing.assert_array_equal(ours.predict(rows), theirs.predict(rows))


@pytest.mark.parametrize("distance", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("temperature", [None, "channel", "class", "dense"])
def test_every_head_learns(distance, temperature):
    X, y = long_tailed()
    fitted = PrototypeClassifier(distance=distance, temperature=temperature, **QUICK).fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert not np.array_equal(fitted.prototypes_, fitted.class_means_)
    shape = {None: None, "channel": (1, 8), "class": (6, 1), "dense": (6, 8)}[temperature]
    assert (fitted.temperature_ is None) == (shape is None)
    if shape is not None:
        assert fitted.temperature_.shape == shape
        assert (fitted.temperature_ > 0).all()


@pytest.mark.parametrize("temperature", [None, "channel", "class", "dense"])
def test_squared_distances_get_a_rate_that_converges(temperature):
    X, y = long_tailed(n_classes=20, n_features=64, largest=200, spread=3.0)
    fitted = PrototypeClassifier(
        distance="sqeuclidean", temperature=temperature, random_state=0
    ).fit(X, y)
    assert fitted.history_["loss"][-1] < fitted.history_["loss"][0]
    assert fitted.score(X, y) > 0.9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_same_bits(dtype):
    X, y = long_tailed(dtype=dtype)
    first, again = (PrototypeClassifier(random_state=3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.prototypes_, again.prototypes_)
    assert first.scale_ == again.scale_
    assert first.prototypes_.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_another_seed_draws_other_batches(dtype):
    X, y = long_tailed(dtype=dtype)
    one, other = (PrototypeClassifier(method="paper", random_state=s).fit(X, y) for s in (3, 4))
    assert one.prototypes_.dtype == dtype
    assert not np.array_equal(one.prototypes_, other.prototypes_)


def test_no_seed_is_needed_for_the_same_bits():
    X, y = long_tailed()
    first, again = (PrototypeClassifier().fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, again.coef_)


def test_class_names_do_not_matter():
    X, y = long_tailed(spread=0.5)
    names = np.array(["f", "b", "a", "e", "c", "d"])
    plain = PrototypeClassifier(random_state=0, epochs=0).fit(X, y)
    renamed = PrototypeClassifier(random_state=0, epochs=0).fit(X, names[y])
    np.testing.assert_array_equal(renamed.predict(X), names[plain.predict(X)])
    order = np.argsort(names)
    np.testing.assert_allclose(
        renamed.prototypes_ / renamed.normalize_, (plain.prototypes_ / plain.normalize_)[order]
    )


def test_choices_are_made_and_reported():
    X, y = long_tailed(spread=3.0)
    choices = PrototypeClassifier().fit(X, y).choices_
    assert choices["method"] == "whitened"
    assert 0.2 < choices["leave_one_out_accuracy"] < 1
    assert not choices["memorised"]
    assert min(choices["ridge"], choices["shrinkage"]) > 0


def test_choices_of_the_papers_method():
    X, y = long_tailed(n_features=20)
    fitted = PrototypeClassifier(method="paper", random_state=0).fit(X, y)
    choices = fitted.choices_
    assert 0.9 < choices["leave_one_out_accuracy"] <= 1
    assert choices["normalize"] == fitted.normalize_ > 0
    assert 0 < choices["logit_adjustment"] <= 1
    assert fitted.history_["step"][-1] == choices["steps"]
    np.testing.assert_array_equal(fitted.class_counts_, np.bincount(y))


def test_lengths_are_kept_where_they_tell_classes_apart():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = rng.normal(size=(200, 3)) * 0.1 + np.where(y, 1.0, 3.0)[:, None]
    assert PrototypeClassifier().fit(X, y).score(X, y) == 1
    fitted = PrototypeClassifier(method="paper", random_state=0).fit(X, y)
    assert fitted.normalize_ is None
    assert fitted.score(X, y) == 1


@pytest.mark.parametrize("unit", [1e-42, 1e-30, 1e-12, 1e12, 1e30, 1e36])
def test_units_do_not_matter(unit):
    X, y = long_tailed(n_features=20)
    rows = (X * unit).astype(np.float32)
    for method in ("whitened", "paper"):
        fitted = PrototypeClassifier(method=method, random_state=0).fit(rows, y)
        assert fitted.score(rows, y) > 0.9
    # Where lengths are dropped, they may be other ones later.
    plain = PrototypeClassifier(normalize=1.0, random_state=0).fit(X.astype(np.float32), y)
    assert np.mean(plain.predict(rows) == y) > 0.9


def test_many_classes_of_few_rows_take_seconds():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3000), rng.integers(1, 4, 3000))
    X = (rng.normal(size=(3000, 16))[y] + 0.5 * rng.normal(size=(len(y), 16))).astype(np.float32)
    for method in ("auto", "paper"):
        fitted = PrototypeClassifier(method=method, random_state=0).fit(X, y)
        assert fitted.score(X, y) > 0.5
    assert fitted.choices_["steps"] <= 2000


def test_fits_inside_inference_mode():
    X, y = long_tailed()
    for block in (torch.no_grad, torch.inference_mode):
        with block():
            fitted = PrototypeClassifier(**QUICK).fit(torch.from_numpy(X) * 1, y)
            fitted.partial_fit(torch.from_numpy(X) * 1, y)
        assert fitted.score(X, y) > 0.9


def test_changed_arguments_do_not_change_what_was_learned():
    X, y = long_tailed()
    fitted = PrototypeClassifier(temperature="channel", **QUICK).fit(X, y)
    before = fitted.predict_proba(X)
    fitted.set_params(distance="cosine", temperature=None)
    np.testing.assert_array_equal(fitted.predict_proba(X), before)
    with pytest.raises(ValueError, match="distance='cosine' differs from 'euclidean'"):
        fitted.partial_fit(X, y)


def test_given_values_are_used():
    X, y = long_tailed()
    fitted = PrototypeClassifier(
        normalize=7.0, logit_adjustment=0.25, lr=4.0, epochs=2, batch_size=16, random_state=0
    ).fit(X, y)
    choices = fitted.choices_
    assert (choices["normalize"], choices["logit_adjustment"], choices["lr"]) == (7.0, 0.25, 4.0)
    assert choices["steps"] == 2 * -(-60 * 6 // 16)


def test_frames_tensors_and_mapped_files_agree(tmp_path):
    X, y = long_tailed(dtype=np.float32)
    np.save(tmp_path / "X.npy", X)
    inputs = {
        "numpy": X,
        "fortran": np.asfortranarray(X),
        "tensor": torch.from_numpy(X),
        "mapped": np.load(tmp_path / "X.npy", mmap_mode="r"),
        "pandas": pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])]),
        "polars": pl.DataFrame(X, schema=[f"c{i}" for i in range(X.shape[1])]),
    }
    expected = PrototypeClassifier(**QUICK).fit(X, y)
    for name, given in inputs.items():
        fitted = PrototypeClassifier(**QUICK).fit(given, y)
        # A float32 polars frame reaches us as float64.
        error = 1e-4 if name == "polars" else 0
        np.testing.assert_allclose(fitted.prototypes_, expected.prototypes_, rtol=error)
        np.testing.assert_array_equal(fitted.predict(given), expected.predict(X), err_msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tensors(dtype):
    X, y = long_tailed()
    fitted = PrototypeClassifier(**QUICK).fit(torch.from_numpy(X).to(dtype), torch.from_numpy(y))
    assert fitted.prototypes_.dtype == np.float32
    assert fitted.score(torch.from_numpy(X).to(dtype), y) > 0.9
    with pytest.raises(ValueError, match=r"X has 3 features, but .* expecting 8"):
        fitted.predict(torch.zeros(2, 3, dtype=dtype))


@pytest.mark.parametrize("names", [list("abcdef"), [True, False], [3.0, 1.0, 2.0], [10, -5, 7]])
def test_any_label(names):
    X, y = long_tailed(n_classes=len(names))
    labels = np.array(names)[y]
    fitted = PrototypeClassifier(**QUICK).fit(X, labels)
    np.testing.assert_array_equal(fitted.classes_, np.unique(names))
    assert fitted.predict(X).dtype == labels.dtype
    assert np.mean(fitted.predict(X) == labels) > 0.9


def test_object_labels_from_a_frame():
    X, y = long_tailed()
    labels = pd.Series(np.array(["ash", "birch", "cedar", "elm", "fir", "gum"], dtype=object)[y])
    assert PrototypeClassifier(**QUICK).fit(X, labels).predict(X[:1])[0] in set(labels)


def test_answers_agree_with_each_other():
    X, y = long_tailed(spread=2.0)
    fitted = PrototypeClassifier(**QUICK).fit(X, y)
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(fitted.predict(X), probabilities.argmax(1))
    scores = fitted.decision_function(X)
    np.testing.assert_allclose(
        scores - scores.max(1, keepdims=True),
        np.log(probabilities) - np.log(probabilities).max(1, keepdims=True),
        atol=1e-9,
    )
    distances = fitted.distances(X)
    np.testing.assert_array_equal(fitted.predict(X), distances.argmin(1))
    logits = -0.5 * fitted.scale_ * distances - np.log(6)
    np.testing.assert_allclose(scores, logits, atol=1e-9)
    labels, likely = fitted.top_k(X, 3)
    order = np.argsort(-probabilities, axis=1)[:, :3]
    np.testing.assert_array_equal(labels, order)
    np.testing.assert_allclose(likely, np.take_along_axis(probabilities, order, 1))


def test_prior_moves_predictions_the_way_it_says():
    X, y = long_tailed(spread=3.0)
    uniform = PrototypeClassifier(**QUICK).fit(X, y)
    train = PrototypeClassifier(prior="train", **QUICK).fit(X, y)
    array = PrototypeClassifier(prior=np.bincount(y) / len(y), **QUICK).fit(X, y)
    np.testing.assert_array_equal(train.predict_proba(X), array.predict_proba(X))
    np.testing.assert_array_equal(train.prototypes_, uniform.prototypes_)
    expected = uniform.predict_proba(X) * np.bincount(y)
    np.testing.assert_allclose(
        train.predict_proba(X), expected / expected.sum(1, keepdims=True), atol=1e-9
    )
    assert (train.predict(X) == 0).sum() > (uniform.predict(X) == 0).sum()


def test_novel_rows_score_higher():
    X, y = long_tailed(n_features=30, spread=0.5)
    fitted = PrototypeClassifier(**QUICK).fit(X, y)
    strange = np.random.default_rng(9).normal(size=(100, 30)) * 2.5
    assert fitted.novelty_score(strange).min() > fitted.novelty_score(X).max()
    untrained = PrototypeClassifier(epochs=0, random_state=0).fit(X, y)
    np.testing.assert_allclose(untrained.novelty_score(X), untrained.distances(X).min(1))


def test_scale_calibrates_rows_that_were_not_memorised():
    X, y = long_tailed(n_classes=4, largest=4000, spread=4.0)
    fresh, labels = long_tailed(n_classes=4, largest=4000, spread=4.0, seed=0)
    half = np.arange(len(y)) % 2 == 0
    fitted = PrototypeClassifier(random_state=0, prior="train").fit(X[half], y[half])
    confidence = fitted.predict_proba(fresh[~half]).max(1).mean()
    accuracy = fitted.score(fresh[~half], labels[~half])
    assert 0.5 < accuracy < 0.97
    assert abs(confidence - accuracy) < 0.04


def test_logit_adjustment_favours_rare_classes():
    X, y = long_tailed(spread=3.0, largest=200)
    fractions = []
    for tau in (0.0, 0.5):
        fitted = PrototypeClassifier(logit_adjustment=tau, max_steps=100, random_state=0).fit(X, y)
        fractions.append((fitted.predict(X) > 2).mean())
    assert fractions[1] > fractions[0]


def test_survives_pickle_clone_and_pipeline():
    X, y = long_tailed()
    model = make_pipeline(StandardScaler(), PrototypeClassifier(**QUICK)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    assert clone(model[-1]).get_params() == model[-1].get_params()


def test_verbose_says_what_is_done(capsys):
    X, y = long_tailed()
    PrototypeClassifier(verbose=True, **QUICK).fit(X, y)
    said = capsys.readouterr().err
    assert "leave-one-out accuracy" in said
    assert "30/30" in said
    PrototypeClassifier(**QUICK).fit(X, y)
    assert capsys.readouterr() == ("", "")


def test_row_blocks_do_not_change_answers(monkeypatch):
    X, y = long_tailed(spread=2.0)
    fitted = PrototypeClassifier(**QUICK).fit(X, y)
    whole = fitted.predict_proba(X), fitted.predict(X), fitted.top_k(X, 2)[0]
    monkeypatch.setattr("protail.estimator._features._BLOCK_BYTES", 500)
    monkeypatch.setattr("protail.estimator._features._KEPT_BYTES", 0)
    monkeypatch.setattr("protail.estimator._predicting._SCORES_AT_A_TIME", 12)
    np.testing.assert_allclose(fitted.predict_proba(X), whole[0])
    np.testing.assert_array_equal(fitted.predict(X), whole[1])
    np.testing.assert_array_equal(fitted.top_k(X, 2)[0], whole[2])
    again = PrototypeClassifier(**QUICK).fit(X, y)
    np.testing.assert_allclose(again.prototypes_, fitted.prototypes_, rtol=1e-9)

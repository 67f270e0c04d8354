"""Bad input: an error that names the argument, what came and what was expected; no change."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from protail import PrototypeClassifier

X = np.random.default_rng(0).normal(size=(40, 5))
Y = np.arange(40) % 4


def with_value(value):
    rows = X.copy()
    rows[7, 3] = value
    return rows


BAD_DATA = [
    (with_value(np.nan), Y, r"X contains NaN \(first at row 7, column 3\); expected finite"),
    (with_value(np.inf), Y, r"X contains infinity \(first at row 7, column 3\); expected finite"),
    (torch.from_numpy(with_value(np.nan)), Y, "X contains NaN"),
    (torch.from_numpy(with_value(np.inf)).bfloat16(), Y, "X contains infinity"),
    (X[:, 0], Y, r"X has 1 dimensions, shape \(40,\); expected 2"),
    (X[:, :, None], Y, r"X has 3 dimensions, shape \(40, 5, 1\); expected 2"),
    (X, Y[:-1], "y has 39 labels and X has 40 rows; expected one label a row"),
    (X, np.zeros(40), "y has only one class, .*; expected at least two"),
    (X, np.linspace(0, 1, 40), "y does not name classes. Unknown label type: continuous"),
    (X, np.where(Y == 1, np.nan, Y), "y contains NaN, None or infinity; expected a class label"),
    (X, None, "requires y to be passed"),
    (X, pd.array(["a", "b", pd.NA, "c"] * 10, dtype="string"), "y contains NaN, None or infinity"),
    (X, np.array(["a", "b", None, "c"] * 10, dtype=object), "y contains NaN, None or infinity"),
    (X, np.array([1, "a"] * 20, dtype=object), "y mixes numbers and text"),
]

BAD_ARGUMENTS = [
    ({"distance": "euclidian"}, "distance='euclidian' is unknown; .* Did you mean 'euclidean'"),
    ({"temperature": "chanel"}, "temperature='chanel' is unknown; .* Did you mean 'channel'"),
    ({"sampling": "balanced"}, "sampling='balanced' is unknown; .* mean 'class-balanced'"),
    ({"logit_adjustment": -0.5}, "logit_adjustment=-0.5 is not valid; expected .* at least 0"),
    ({"logit_adjustment": np.nan}, "logit_adjustment=nan is not valid"),
    ({"normalize": 0}, "normalize=0 is not valid; expected a finite number above 0"),
    ({"normalize": "yes"}, "normalize='yes' is not valid"),
    ({"epochs": 1.5}, "epochs=1.5 is not valid; expected a whole number at least 0"),
    ({"max_steps": 0}, "max_steps=0 is not valid; expected a whole number at least 1"),
    ({"lr": 0.0}, "lr=0.0 is not valid; expected a finite number above 0, or 'auto'"),
    ({"temperature_lr": -1}, "temperature_lr=-1 is not valid"),
    ({"momentum": 1.0}, "momentum=1.0 is not valid; expected .* at least 0 and below 1"),
    ({"batch_size": True}, "batch_size=True is not valid; expected a whole number"),
    ({"prior": "flat"}, "prior='flat' is unknown; expected one of 'uniform', 'train'"),
    ({"prior": [0.5, 0.5, 0.5, 0.5]}, "prior has .* sum 2; expected fractions .* sum to 1"),
    ({"prior": [0.5, 0.5]}, r"prior has shape \(2,\); expected one fraction for each of the 4"),
    ({"prior": [-0.5, 0.5, 0.5, 0.5]}, "prior has smallest fraction -0.5"),
    ({"device": "gpu"}, "device='gpu' is no device; expected 'auto', 'cpu'"),
    ({"device": "mps"}, "device='mps' is not supported; expected 'auto', 'cpu' or 'cuda'"),
    (
        {"prior": {0: 1.0}},
        "prior={0: 1.0} is not valid; expected 'uniform', 'train' or one fraction",
    ),
    ({"device": "cuda:99"}, "device='cuda:99' was asked for, but torch sees"),
]


@pytest.mark.parametrize(("rows", "labels", "message"), BAD_DATA)
@pytest.mark.parametrize("fitted_before", [False, True])
def test_bad_data_changes_nothing(rows, labels, message, fitted_before):
    estimator = PrototypeClassifier(max_steps=5, random_state=0)
    if fitted_before:
        estimator.fit(X, Y)
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=message):
        estimator.fit(rows, labels)
    assert vars(estimator).keys() == before.keys()
    assert all(vars(estimator)[name] is value for name, value in before.items())


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_change_nothing(arguments, message):
    estimator = PrototypeClassifier(**arguments)
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, Y)
    assert vars(estimator) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_where_there_is_none():
    with pytest.raises(ValueError, match=r"device='cuda' was asked for, but torch sees 0 CUDA"):
        PrototypeClassifier(device="cuda").fit(X, Y)


@pytest.mark.parametrize(
    "method", ["predict", "predict_proba", "decision_function", "distances", "novelty_score"]
)
def test_other_width_at_predict(method):
    fitted = PrototypeClassifier(max_steps=5).fit(X, Y)
    with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 5 features"):
        getattr(fitted, method)(X[:, :3])


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_k_out_of_range(k):
    fitted = PrototypeClassifier(max_steps=5).fit(X, Y)
    with pytest.raises(ValueError, match=f"k={k} is not valid; expected a whole number"):
        fitted.top_k(X, k)
    assert fitted.top_k(X, 9)[0].shape == (40, 4)


def test_a_rate_that_diverges_is_named():
    with pytest.raises(ValueError, match=r"loss was .* lr=1e\+300.*Lower the rates"):
        PrototypeClassifier(lr=1e300, temperature="dense", temperature_lr=1e300).fit(X, Y)


def test_zero_rows_stay_zero_with_one_warning():
    rows = X.copy()
    rows[[3, 9]] = 0
    estimator = PrototypeClassifier(normalize=4.0, max_steps=5, random_state=0)
    with pytest.warns(UserWarning, match="2 rows of X are all zeros") as caught:
        estimator.fit(rows, Y)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="2 rows of X are all zeros") as caught:
        found = estimator.distances(rows)
    assert len(caught) == 1
    lengths = np.linalg.norm(estimator.prototypes_, axis=1)
    np.testing.assert_allclose(found[3], lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrototypeClassifier(normalize=None, max_steps=5).fit(rows, Y).predict(rows)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full(40, 1 / 40), "sums to 1, and y has 4 classes; .*Multiply weights"),
        (np.full(40, 2e9), r"largest 2000000000\.0; expected how often .*from 0 to 1e\+09"),
        (np.full(40, np.nan), "smallest number nan"),
        (-np.ones(40), r"smallest number -1\.0"),
        (np.zeros(40), "not every weight zero"),
        (np.ones(3), r"shape == \(3,\), and X has 40 rows"),
    ],
)
def test_weights_that_count_nothing(weights, message):
    with pytest.raises(ValueError, match=f"sample_weight.*{message}"):
        PrototypeClassifier().fit(X, Y, weights)


def test_rows_of_zeros_are_told_by_what_is_taken_off_them():
    rows = X + 3
    rows[[3, 9]] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = PrototypeClassifier(method="whitened").fit(rows, Y)
        fitted.choices_["preparation"] = "centred-l2"
        assert np.isfinite(fitted.predict_proba(rows)).all()
    fitted.choices_["preparation"] = "l2"
    with pytest.warns(UserWarning, match="2 rows of X are all zeros"):
        fitted.predict(rows)

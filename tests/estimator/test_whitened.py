"""The classifier of frozen features: its parts put together, and what it must never do."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score, recall_score

from protail import PrototypeClassifier
from protail.baselines import logit_adjusted_regression, nearest_class_mean
from protail.estimator import _whitened
from protail.estimator._features import PREPARATIONS, Features, Placement
from protail.estimator._gaussian import ClosedForm
from protail.estimator._whitened import choose, even_sample, harmless


def gaussian_rows(counts, n_channels, spread, n_test=40, seed=0):
    rng = np.random.default_rng(seed)
    centres = spread * rng.normal(size=(len(counts), n_channels))
    y, y_test = np.repeat(np.arange(len(counts)), counts), np.repeat(np.arange(len(counts)), n_test)
    x, x_test = (centres[part] + rng.normal(size=(len(part), n_channels)) for part in (y, y_test))
    return tuple(torch.from_numpy(part) for part in (x, y, x_test, y_test))


def fitted(x, y, n_classes, learn=True):
    features = Features(x, Placement(), torch.device("cpu"))
    return harmless(*choose(features, np.asarray(y), n_classes), learn=learn)


def logits(model, x):
    return torch.addmm(model.bias_c, model.preparation(x.to(model.bias_c)), model.weight_cd.mT)


@pytest.mark.parametrize(("n_channels", "learn"), [(6, True), (60, True), (60, False)])
@pytest.mark.parametrize("kind", PREPARATIONS)
def test_one_matrix_says_what_the_parts_say(kind, n_channels, learn, monkeypatch):
    monkeypatch.setattr("protail.estimator._whitened.PREPARATIONS", (kind,))
    x, y, x_test, _ = gaussian_rows([12, 6, 3, 1], n_channels, 1.0)
    model = fitted(x, y, 4, learn=learn)
    choice, prepared = model.choice, model.preparation
    # The form, made again from all channels: with few rows it was found in their span.
    form = ClosedForm.of(model.statistics, choice.form.ridge)
    expected = choice.calibration(form.logits(form.mapped(prepared(x_test))), form.weight_c)
    if model.learned:  # then something is added
        assert (logits(model, x_test) - expected).abs().max() > 0
    else:
        torch.testing.assert_close(logits(model, x_test), expected, rtol=1e-6, atol=1e-6)
    assert prepared(x).mean(0).abs().max() < 1e-9


def test_rows_not_seen_are_as_likely_as_was_said():
    x, y, x_test, y_test = gaussian_rows([300, 200, 100, 80, 60], 8, 0.7, n_test=400)
    model = fitted(x, y, 5, learn=False)
    log_p = torch.log_softmax(logits(model, x_test), 1).gather(1, y_test.unsqueeze(1))
    assert -log_p.mean() == pytest.approx(model.choice.calibration.surprise, abs=0.1)


@pytest.mark.parametrize(
    ("counts", "n_channels", "spread"),
    [
        ([2000, 400, 80, 20, 5, 1], 32, 3.0),
        ([500, 150, 50, 15, 5], 32, 1.0),
        ([500, 150, 50, 15, 5], 32, 4.0),
        ([500, 10], 64, 4.0),
        ([1, 1, 1], 16, 3.0),
        ([300, 1], 16, 3.0),
    ],
)
def test_easy_classes_are_all_right(counts, n_channels, spread):
    x, y, x_test, y_test = gaussian_rows(counts, n_channels, spread)
    predicted = logits(fitted(x, y, len(counts)), x_test).argmax(1)
    assert recall_score(y_test, predicted, average=None).min() >= 0.9


@pytest.mark.parametrize("spread", [0.5, 1.0])
@pytest.mark.parametrize("n_channels", [32, 200])
def test_where_classes_overlap_it_is_not_behind_its_rivals(n_channels, spread):
    counts = np.round(100 * 50 ** (-np.arange(10) / 9)).astype(int)
    x, y, x_test, y_test = gaussian_rows(counts, n_channels, spread)
    ours = balanced_accuracy_score(y_test, logits(fitted(x, y, 10), x_test).argmax(1))
    for make in (nearest_class_mean, logit_adjusted_regression):
        theirs = make().fit(x.numpy(), y.numpy()).predict(x_test.numpy())
        assert ours >= balanced_accuracy_score(y_test, theirs) - 0.01


def test_rare_digits_gain():
    X, y = load_digits(return_X_y=True)
    train = np.random.default_rng(0).random(len(y)) < 0.6**y
    rows, codes = torch.from_numpy(X[train]), torch.from_numpy(y[train])
    ours = logits(fitted(rows, codes, 10), torch.from_numpy(X[~train])).argmax(1)
    theirs = nearest_class_mean().fit(X[train], y[train]).predict(X[~train])
    assert balanced_accuracy_score(y[~train], ours) > balanced_accuracy_score(y[~train], theirs)


def test_a_class_without_rows_is_never_predicted():
    x, y, x_test, _ = gaussian_rows([8, 5], 4, 1.0)
    scores = logits(fitted(x, 2 * y, 3), x_test)
    assert (scores[:, 1] == -torch.inf).all()
    assert scores[:, [0, 2]].isfinite().all()


def test_the_same_rows_give_the_same_bits():
    x, y, _, _ = gaussian_rows([40, 20, 10, 3, 1], 16, 1.0)
    first, second = (fitted(x, y, 5) for _ in range(2))
    assert torch.equal(first.weight_cd, second.weight_cd)
    assert torch.equal(first.bias_c, second.bias_c)


def test_a_sample_is_even_over_the_classes():
    codes = np.repeat(np.arange(4), [500, 100, 7, 1])
    chosen = codes[even_sample(codes, 30, np.random.default_rng(0), among=codes < 3)]
    counts = np.bincount(chosen, minlength=4).tolist()
    assert sum(counts) == 30
    assert counts[3] == 0
    assert counts[2] == 7
    assert abs(counts[0] - counts[1]) <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_classes", "n_channels"), [(300, 64), (5, 50), (20, 200)])
@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_rows_that_do_not_scatter(dtype, n_classes, n_channels):
    """One row a class, or each row twice: the covariance is rounding."""
    for seed in range(5):
        rows = np.random.default_rng(seed).normal(size=(n_classes, n_channels)).astype(dtype)
        labels = np.arange(n_classes)
        for times in (1, 2):
            fitted = PrototypeClassifier().fit(np.tile(rows, (times, 1)), np.tile(labels, times))
            assert fitted.score(rows, labels) == 1


@pytest.mark.parametrize(("n_rows", "n_classes"), [(300, 2), (700, 3)])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4])
def test_rows_that_are_nearly_the_same(n_rows, n_classes, noise):
    """Wide rows of float32 whose products depend on each other up to rounding."""
    rng = np.random.default_rng(0)
    labels = np.arange(n_rows) % n_classes
    rows = rng.normal(size=(n_classes, 1024))[labels] + noise * rng.normal(size=(n_rows, 1024))
    rows = (rows + 100).astype(np.float32)
    fitted = PrototypeClassifier(method="closed-form").fit(rows, labels)
    assert fitted.score(rows, labels) == 1
    assert np.isfinite(fitted.distances(rows)).all()
    fitted.partial_fit(rows[:9], labels[:9])
    assert fitted.score(rows, labels) == 1


def test_classes_that_come_one_after_the_other():
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(4, 8))
    labels = np.repeat(range(4), (60, 40, 20, 10))
    rows = centres[labels] + rng.normal(size=(len(labels), 8))
    fitted = PrototypeClassifier()
    with pytest.warns(UserWarning, match="the first rows say nothing"):
        fitted.partial_fit(rows[labels == 0], labels[labels == 0], classes=range(4))
    for label in (1, 2, 3):
        fitted.partial_fit(rows[labels == label], labels[labels == label])
    assert fitted.score(rows, labels) > 0.95
    assert fitted.predict_proba(rows).max(1).mean() > 0.8


@pytest.mark.parametrize("local", [False, True])
def test_steps_on_as_many_coordinates_as_rows_come_to_the_same(local, monkeypatch):
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(20), 6)
    x = (rng.normal(size=(20, 300))[codes] + 3 * rng.normal(size=(120, 300))).astype(np.float32)
    found = []
    for pays in (True, False):
        monkeypatch.setattr(_whitened, "_pays", lambda *_, pays=pays: pays)
        fitted = PrototypeClassifier(local=local, memorised=False).fit(x, codes)
        assert fitted.choices_["learned"]
        found.append(fitted.decision_function(x))
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [[0.3], [0.1], [1, 1e-9], [0.3, 1e-9]])
def test_the_only_row_of_a_class_may_weigh_little(dtype, weights):
    rng = np.random.default_rng(0)
    y = np.r_[np.repeat([0, 1], 50), [2] * len(weights)]
    x = (rng.normal(size=(len(y), 4)) + 2 * (y == 1)[:, None]).astype(dtype)
    fitted = PrototypeClassifier().fit(x, y, sample_weight=np.r_[np.ones(100), weights])
    assert np.isfinite(fitted.coef_).all()
    assert fitted.score(x[:100], y[:100]) > 0.9


def test_weights_that_make_classes_equal():
    y = np.repeat([0, 1, 2], [47, 47, 7])
    x = np.random.default_rng(0).normal(size=(101, 2))
    PrototypeClassifier().fit(x, y, sample_weight=1 / np.bincount(y)[y])


@pytest.mark.parametrize("weight", [1e6, 1e8, 1e9])
def test_equal_classes_need_no_offset_however_much_rows_weigh(weight):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 40)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    x[:, 0] += 3 * y
    fitted = PrototypeClassifier().fit(x, y, sample_weight=np.full(80, weight))
    assert abs(fitted.choices_["logit_adjustment"]) < 1e-3


@pytest.mark.parametrize("weight", [0.25, 1.0, 3.0])
def test_a_half_has_half_of_every_class(weight):
    code = torch.arange(3).repeat_interleave(4)
    weight_n = torch.full((12,), weight).double()
    rows = _whitened.Rows(torch.randn(12, 2), code, weight_n)
    half_n = _whitened._first_half(rows)
    assert torch.bincount(code, half_n).tolist() == [2 * weight] * 3
    assert bool(((half_n >= 0) & (half_n <= weight_n)).all())


def test_many_classes_are_declared_of_which_few_have_come():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.repeat([0, 1, 2], 20)
    x += 3 * np.eye(4)[y]
    fitted = PrototypeClassifier().partial_fit(x, y, classes=np.arange(5000))
    assert fitted.score(x, y) > 0.8


def test_one_channel_and_one_row_a_class():
    x, y = [[1.0], [3.0], [7.0]], [0, 1, 2]
    assert PrototypeClassifier().fit(x, y).predict(x).tolist() == y


def test_a_fit_as_published_leaves_nothing_of_a_fit_before():
    x, y = load_digits(return_X_y=True)
    fitted = PrototypeClassifier(method="whitened").fit(x[:300], y[:300])
    fitted.set_params(method="paper", max_steps=2).fit(x[:300], y[:300])
    alone = PrototypeClassifier(method="paper", max_steps=2).fit(x[:300], y[:300])
    assert set(vars(fitted)) == set(vars(alone))

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    recall_score,
    roc_auc_score,
)

from protail.evaluation import Evaluation
from reference import evaluation as naive
from reference.counting import calls

KNOWN = {"classes": ["a", "b", "c", "d"], "counts": [300, 100, 50, 3]}
TRUTH = ["a", "a", "a", "a", "b", "b", "c", "d", "d", "x"]
GUESS = ["a", "a", "a", "d", "b", "a", "b", "d", "c", "a"]


def by_hand(**extra):
    return Evaluation.from_predictions(TRUTH, GUESS, **KNOWN, **extra)


def long_tail(seed=0, rows=2000, n_classes=12):
    rng = np.random.default_rng(seed)
    counts = np.geomspace(500, 3, n_classes).astype(int)
    logits = rng.normal(size=(rows, n_classes)) * 1.5
    truth = np.arange(rows) % n_classes
    logits[np.arange(rows), truth] += 2
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return truth, chances, counts


def test_a_hand_computation():
    result = by_hand()
    assert result.n_rows == 9
    assert result.n_unseen == 1
    assert result.all == 5 / 9
    np.testing.assert_array_equal(result.class_accuracy, [0.75, 0.5, 0.0, 0.5])
    assert result.balanced_accuracy == 1.75 / 4
    assert (result.many, result.medium, result.few) == (0.625, 0.0, 0.5)
    # F1: a 2*3/(4+4), b 2*1/(2+2), c 0, d 2*1/(2+2)
    assert result.macro_f1 == pytest.approx((0.75 + 0.5 + 0 + 0.5) / 4)
    # many has 6 rows: d->few once, b->a (many) once; medium: c->b; few: d->c
    np.testing.assert_allclose(result.confusion, [[1 / 6, 0, 1 / 6], [1, 0, 0], [0, 0.5, 0]])
    assert result.calibration_error is None
    assert result.group_calibration_error == {"many": None, "medium": None, "few": None}
    assert result.novelty_auroc is None


def test_calibration_of_groups_by_hand():
    confidence = [0.5, 0.5, 0.5, 0.5, 0.9, 0.9, 0.8, 1.0, 0.0, 0.3]
    result = by_hand(confidence=confidence)
    # many: bin of 0.5 has 3 of 4 right, bin of 0.9 has 1 of 2.
    assert result.group_calibration_error == {
        "many": pytest.approx((4 * 0.25 + 2 * 0.4) / 6),
        "medium": pytest.approx(0.8),
        "few": pytest.approx(0.0),
    }
    assert result.calibration_error == pytest.approx((4 * 0.25 + 2 * 0.4 + 0.8) / 9)


@settings(max_examples=150)
@given(naive.problems(), st.data())
def test_agrees_with_naive_loops(problem, data):
    truth, guess, known = problem["truth"], problem["first"], problem["known"]
    n = len(truth)
    confidence = data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
    novelty = data.draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))
    result = Evaluation.from_predictions(
        truth, guess, confidence=confidence, novelty=novelty, **known
    )
    expected = naive.accuracies(truth, guess, **known)
    expected["macro_f1"] = naive.macro_f1(truth, guess, known["classes"])
    for name, value in expected.items():
        assert getattr(result, name) == (None if value is None else pytest.approx(value))
    groups = {
        label: naive.group_of(count, known["many"], known["few"])
        for label, count in zip(known["classes"], known["counts"], strict=True)
    }
    for group in naive.GROUPS:
        own = [i for i in range(n) if groups.get(truth[i]) == group]
        error = naive.calibration_error(
            [confidence[i] for i in own], [truth[i] == guess[i] for i in own], 15
        )
        expected_error = pytest.approx(error, abs=1e-12) if own else None
        assert result.group_calibration_error[group] == expected_error
    table = naive.confusion(truth, guess, **known)
    expected_table = [[math.nan if x is None else x for x in row] for row in table]
    np.testing.assert_allclose(result.confusion, expected_table)
    strange = [t not in known["classes"] for t in truth]
    assert result.n_unseen == sum(strange)
    if any(strange):
        old = [x for x, new in zip(novelty, strange, strict=True) if not new]
        new = [x for x, new in zip(novelty, strange, strict=True) if new]
        assert result.novelty_auroc == pytest.approx(naive.auroc(old, new))
    else:
        assert result.novelty_auroc is None


@settings(max_examples=60)
@given(naive.problems())
def test_confusion_and_accuracy_of_a_group_sum_to_one(problem):
    result = Evaluation.from_predictions(problem["truth"], problem["first"], **problem["known"])
    for row, group in zip(result.confusion, naive.GROUPS, strict=True):
        own = result.groups[group]
        if result.class_rows[own].sum():
            right = result.class_right[own].sum() / result.class_rows[own].sum()
            assert row.sum() + right == pytest.approx(1)
        else:
            assert np.isnan(row).all()


@settings(max_examples=60)
@given(naive.problems())
def test_json_round_trip(problem):
    truth, known = problem["truth"], problem["known"]
    result = Evaluation.from_predictions(
        truth,
        problem["first"],
        confidence=np.linspace(0, 1, len(truth)),
        novelty=np.arange(len(truth)),
        **known,
    )
    restored = Evaluation.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert restored == result
    assert restored.to_dict() == result.to_dict()


def test_agrees_with_scikit_learn():
    truth, chances, counts = long_tail()
    guess = chances.argmax(axis=1)
    unseen = np.arange(len(truth)) % 7 == 0
    labels = np.where(unseen, 12, truth)
    novelty = -chances.max(axis=1).round(2)  # with ties
    result = Evaluation.from_predictions(
        labels, guess, classes=np.arange(12), counts=counts, novelty=novelty
    )
    t, g = truth[~unseen], guess[~unseen]
    assert result.all == pytest.approx(accuracy_score(t, g))
    assert result.balanced_accuracy == pytest.approx(balanced_accuracy_score(t, g))
    assert result.macro_f1 == pytest.approx(f1_score(t, g, average="macro", zero_division=0))
    np.testing.assert_allclose(result.class_accuracy, recall_score(t, g, average=None))
    assert result.novelty_auroc == pytest.approx(roc_auc_score(unseen, novelty))


def test_macro_f1_counts_a_class_that_was_only_predicted():
    truth, guess = ["a", "a", "b"], ["a", "c", "b"]
    result = Evaluation.from_predictions(truth, guess, **KNOWN)
    assert result.macro_f1 == pytest.approx(f1_score(truth, guess, average="macro"))


def test_agrees_with_torchmetrics():
    metrics = pytest.importorskip("torchmetrics.classification")
    truth, chances, counts = long_tail(seed=1)
    guess = chances.argmax(axis=1)
    result = Evaluation.from_predictions(
        truth, guess, classes=np.arange(12), counts=counts, confidence=chances.max(axis=1)
    )
    t, g = torch.from_numpy(truth), torch.from_numpy(guess)
    micro = metrics.MulticlassAccuracy(12, average="micro")(g, t)
    macro = metrics.MulticlassAccuracy(12, average="macro")(g, t)
    each = metrics.MulticlassAccuracy(12, average="none")(g, t).numpy()
    error = metrics.MulticlassCalibrationError(12, n_bins=15, norm="l1")
    assert result.all == pytest.approx(micro.item(), abs=1e-6)
    assert result.balanced_accuracy == pytest.approx(macro.item(), abs=1e-6)
    assert result.many == pytest.approx(each[counts >= 100].mean(), abs=1e-6)
    assert result.few == pytest.approx(each[counts < 20].mean(), abs=1e-6)
    assert result.calibration_error == pytest.approx(
        error(torch.from_numpy(chances), t).item(), abs=1e-6
    )


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list, tuple])
def test_any_container_of_numbers_will_do(kind):
    result = Evaluation.from_predictions(
        kind([5, 3, 3]), kind([5, 3, 5]), classes=kind([3, 5]), counts=kind([9, 1])
    )
    np.testing.assert_array_equal(result.class_accuracy, [0.5, 1.0])


def test_object_arrays_and_series_of_text_will_do():
    pandas = pytest.importorskip("pandas")
    for kind in (pandas.Series, lambda values: np.array(values, dtype=object)):
        other = Evaluation.from_predictions(kind(TRUTH), kind(GUESS), **KNOWN)
        assert other == by_hand()


def test_large_class_ids_are_told_apart():
    ids = np.array([2**60, 2**60 + 1], dtype=np.int64)
    result = Evaluation.from_predictions(
        ids.astype(np.uint64), ids, classes=ids, counts=[1, 1], many=2, few=1
    )
    assert result.all == 1


def test_the_result_cannot_be_altered():
    with pytest.raises(ValueError, match="read-only"):
        by_hand().class_rows[0] = 7
    with pytest.raises(AttributeError):
        by_hand().n_unseen = 3


def test_results_differ_when_a_number_does():
    assert by_hand() == by_hand()
    assert by_hand() != by_hand(few=2)
    assert by_hand() != "something else"


def test_a_million_rows_and_8000_classes_take_no_more_calls_than_a_few():
    """No loop goes over rows or classes: then it takes about a second."""

    def calls_for(n_rows, n_classes):
        rng = np.random.default_rng(0)
        truth, guess = rng.integers(n_classes, size=(2, n_rows))
        return calls(
            Evaluation.from_predictions,
            truth,
            guess,
            classes=np.arange(n_classes),
            counts=rng.integers(500, size=n_classes),
            confidence=rng.random(n_rows),
        )

    assert calls_for(1_000_000, 8000) < 1.5 * calls_for(1000, 10)

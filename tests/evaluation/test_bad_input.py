import copy

import numpy as np
import pytest

from protail.evaluation import Comparison, Evaluation, calibration_error, novelty_auroc

GOOD = {
    "truth": ["a", "b", "x"],
    "predicted": ["a", "a", "b"],
    "classes": ["a", "b"],
    "counts": [100, 5],
}

BAD = [
    ({"predicted": ["a"]}, ValueError, "predicted has 1 rows and truth has 3"),
    ({"truth": [], "predicted": []}, ValueError, "truth is empty"),
    ({"classes": [], "counts": []}, ValueError, "classes is empty"),
    ({"counts": [1, 2, 3]}, ValueError, "counts has 3 values and classes has 2"),
    ({"counts": [0, 0]}, ValueError, "at least one sample"),
    ({"counts": [1.5, 2]}, TypeError, "counts .* expected whole numbers"),
    ({"predicted": ["a", "x", "b"]}, ValueError, r"predicted contains 'x' \(row 1\)"),
    ({"truth": ["x", "y", "z"]}, ValueError, "none of them is of a class in classes"),
    ({"truth": ["a", 1, "b"]}, TypeError, "truth mixes numbers and text"),
    ({"classes": ["a", 1]}, TypeError, "classes mixes numbers and text"),
    ({"classes": ["a", "a"]}, ValueError, "only 1 different"),
    ({"truth": [0, 1, 2]}, TypeError, "truth holds numbers and classes holds text"),
    ({"truth": [["a"], ["b"], ["x"]]}, TypeError, "truth holds values of type list"),
    ({"truth": np.array([["a", "b", "x"]])}, ValueError, r"truth has shape \(1, 3\)"),
    ({"few": 50, "many": 20}, ValueError, "few=50 and many=20"),
    ({"many": "lots"}, ValueError, "many='lots'"),
]

BAD_SCORES = [
    ({"confidence": [0.5, np.nan, 0.5]}, ValueError, r"confidence has 1 NaN \(first: row 1\)"),
    ({"confidence": [0.5, 1.5, 0.5]}, ValueError, "confidence runs from 0.5 to 1.5"),
    ({"confidence": [0.5, 0.5, -0.1]}, ValueError, "confidence runs from -0.1 to 0.5"),
    ({"confidence": [0.5, 0.5]}, ValueError, "confidence has 2 rows and truth has 3"),
    ({"confidence": ["high", "low", "low"]}, TypeError, "confidence has dtype"),
    ({"novelty": [1.0, np.nan, 2.0]}, ValueError, "novelty has 1 NaN"),
    ({"novelty": [1.0]}, ValueError, "novelty has 1 rows and truth has 3"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD + BAD_SCORES)
def test_an_evaluation_refuses(change, error, words):
    with pytest.raises(error, match=words):
        Evaluation.from_predictions(**GOOD | change)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        *((c, e, w.replace("predicted", "first")) for c, e, w in BAD),
        ({"n_resamples": 0}, ValueError, "n_resamples=0; expected a whole number >= 1"),
        ({"n_resamples": 2.5}, ValueError, "n_resamples=2.5"),
        ({"confidence_level": 95}, ValueError, "confidence_level=95"),
        ({"confidence_level": "high"}, ValueError, "confidence_level='high'"),
        ({"second": ["a"]}, ValueError, "second has 1 rows and truth has 3"),
        ({"second": ["a", "b", "q"]}, ValueError, "second contains 'q'"),
    ],
)
def test_a_comparison_refuses(change, error, words):
    given = GOOD | {"second": ["a", "b", "a"]} | change
    given["first"] = given.pop("predicted")
    with pytest.raises(error, match=words):
        Comparison.from_predictions(**given)


def test_labels_that_are_nan_are_refused():
    with pytest.raises(ValueError, match="truth contains NaN"):
        Evaluation.from_predictions([1.0, np.nan], [1, 1], classes=[1, 2], counts=[3, 4])


def test_calibration_error_refuses():
    with pytest.raises(ValueError, match=r"right has shape \(1,\) and confidence \(2,\)"):
        calibration_error([0.5, 0.5], [True])
    with pytest.raises(TypeError, match="right holds other values"):
        calibration_error([0.5], [2])
    with pytest.raises(ValueError, match="n_bins=0"):
        calibration_error([0.5], [True], n_bins=0)
    with pytest.raises(ValueError, match="at least one row"):
        calibration_error([], [])


def test_novelty_auroc_refuses():
    with pytest.raises(ValueError, match="unseen has shape"):
        novelty_auroc([1.0], [])
    with pytest.raises(ValueError, match="known has 1 NaN"):
        novelty_auroc([np.nan], [1.0])


def _without(key):
    return lambda record: record.pop(key)


def _with(value, *path):
    def change(record):
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without("classes"), "record has no 'classes'"),
        (_without("errors"), "record has no 'errors'"),
        (_without("macro_f1"), "record has no 'macro_f1'"),
        (_with({}, "classes"), "no list of dicts"),
        (_with([], "classes"), "classes is empty"),
        (_with([3], "classes"), "no list of dicts"),
        (_with({"label": "a"}, "classes", 0), r"record\['classes'\]\[0\] has no 'train_rows'"),
        (_with("many", "classes", 0, "train_rows"), "counts has shape"),
        (_with(-1, "classes", 0, "test_rows"), "class_rows has shape"),
        (_with(0.5, "classes", 0, "right_rows"), "class_right has shape"),
        (_with(9, "classes", 0, "right_rows"), "do not fit together"),
        (_with([[1, 2], [3, 4]], "errors"), "errors has shape"),
        (_with([[1, 2], [3]], "errors"), "errors has shape"),
        (_with([[0] * 3] * 3, "errors"), "do not fit together"),
        (_with(0.99, "all"), r"record\['all'\] is 0.99"),
        (_with("good", "few"), r"record\['few'\] is 'good'"),
        (_with(7, "calibration_error"), "calibration_error=7"),
        (_with({}, "group_calibration_error"), "group_calibration_error"),
        (_with("x", "group_calibration_error", "few"), "group_calibration_error"),
        (_with(-3, "n_unseen"), "n_unseen=-3"),
        (_with(None, "many_from"), "many_from=None"),
    ],
)
def test_a_damaged_record_is_refused(damage, words):
    good = Evaluation.from_predictions(**GOOD).to_dict()
    record = copy.deepcopy(good)
    damage(record)
    with pytest.raises(ValueError, match=words):
        Evaluation.from_dict(record)
    assert Evaluation.from_dict(good).to_dict() == good


def test_a_record_must_be_a_dict():
    with pytest.raises(TypeError, match="record is a list"):
        Evaluation.from_dict([])

"""An evaluation as plain values and back, and what its numbers must satisfy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protail.evaluation._checks import GROUPS, ClassCodes, class_groups, whole_number

if TYPE_CHECKING:
    from protail.evaluation._evaluation import Evaluation

SCORES = ("all", "balanced_accuracy", *GROUPS, "macro_f1")
# Name in the record of a class, name of the attribute that holds it for all classes.
_CLASS_COLUMNS = {
    "train_rows": "counts",
    "test_rows": "class_rows",
    "right_rows": "class_right",
    "predicted_rows": "class_predicted",
}


def record_of(evaluation: Evaluation) -> dict[str, Any]:
    """Turn an evaluation into plain values; NaN becomes None."""
    columns = {
        "label": evaluation.classes.tolist(),
        **{key: getattr(evaluation, name).tolist() for key, name in _CLASS_COLUMNS.items()},
        "accuracy": _plain(evaluation.class_accuracy.tolist()),
    }
    return {
        **{name: getattr(evaluation, name) for name in SCORES},
        "calibration_error": evaluation.calibration_error,
        "group_calibration_error": dict(evaluation.group_calibration_error),
        "novelty_auroc": evaluation.novelty_auroc,
        "n_rows": evaluation.n_rows,
        "n_unseen": evaluation.n_unseen,
        "many_from": evaluation.many_from,
        "few_below": evaluation.few_below,
        "errors": evaluation.errors.tolist(),
        "confusion": [_plain(row) for row in evaluation.confusion.tolist()],
        "classes": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
    }


def _plain(numbers: list[float]) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers]


def fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of an evaluation from its record."""
    if not isinstance(record, Mapping):
        raise TypeError(
            f"record is a {type(record).__name__}; expected a dict as Evaluation.to_dict gives it."
        )
    rows = _entry(record, "classes")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("record['classes'] is no list of dicts; expected one dict a class.")
    fields = {
        name: [_entry(row, key, f"record['classes'][{i}]") for i, row in enumerate(rows)]
        for key, name in (("label", "classes"), *_CLASS_COLUMNS.items())
    }
    same = ("errors", "n_unseen", "many_from", "few_below", "novelty_auroc")
    calibration = ("calibration_error", "group_calibration_error")
    return fields | {name: _entry(record, name) for name in (*same, *calibration)}


def _entry(record: Mapping[str, Any], key: str, where: str = "record") -> Any:
    if key not in record:
        raise ValueError(
            f"{where} has no {key!r}; expected everything that Evaluation.to_dict writes."
        )
    return record[key]


def check_scores(evaluation: Evaluation, record: Mapping[str, Any]) -> None:
    """Refuse a record whose scores differ from what its classes' rows give."""
    for name in SCORES:
        given, found = _entry(record, name), getattr(evaluation, name)
        if given is None or found is None:
            agree = given is found
        else:
            agree = _is_number(given) and math.isclose(given, found, abs_tol=1e-9)
        if not agree:
            raise ValueError(
                f"record[{name!r}] is {given!r}, but the rows of its classes give {found!r}; "
                "expected numbers that agree. The record was altered: evaluate again."
            )


def check_numbers(evaluation: Evaluation) -> None:
    """Check the fields of a new evaluation and make its arrays read-only."""
    classes = ClassCodes(evaluation.classes).labels
    n = classes.size
    counts, group_of = class_groups(
        _whole_array(evaluation.counts, "counts", (n,)),
        n,
        whole_number(evaluation.many_from, "many_from", least=0),
        whole_number(evaluation.few_below, "few_below", least=0),
    )
    rows = _whole_array(evaluation.class_rows, "class_rows", (n,))
    right = _whole_array(evaluation.class_right, "class_right", (n,))
    predicted = _whole_array(evaluation.class_predicted, "class_predicted", (n,))
    errors = _whole_array(evaluation.errors, "errors", (3, 3))
    wrong_by_group = np.bincount(group_of, weights=rows - right, minlength=3)
    if (
        rows.sum() == 0
        or (right > np.minimum(rows, predicted)).any()
        or predicted.sum() != rows.sum()
        or (errors.sum(axis=1) != wrong_by_group).any()
    ):
        raise ValueError(
            "class_rows, class_right, class_predicted and errors do not fit together; expected "
            "counts of the same test rows, at least one. Make them with from_predictions."
        )
    whole_number(evaluation.n_unseen, "n_unseen", least=0)
    for name in ("calibration_error", "novelty_auroc"):
        _check_share(getattr(evaluation, name), name)
    by_group = evaluation.group_calibration_error
    if not isinstance(by_group, Mapping) or set(by_group) != set(GROUPS):
        raise ValueError(
            f"group_calibration_error={by_group!r}; expected a dict with the keys {GROUPS}."
        )
    for group, share in by_group.items():
        _check_share(share, f"group_calibration_error[{group!r}]")
    arrays = {
        "classes": classes,
        "counts": counts,
        "class_rows": rows,
        "class_right": right,
        "class_predicted": predicted,
        "errors": errors,
    }
    for name, array in arrays.items():
        array.setflags(write=False)
        object.__setattr__(evaluation, name, array)


def _whole_array(values: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    try:
        array = np.array(values)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.shape != shape or array.dtype.kind not in "iu" or array.min() < 0:
        raise ValueError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; expected whole numbers, "
            f"0 or more, of shape {shape}."
        )
    return array.astype(np.int64)


def _check_share(value: Any, name: str) -> None:
    if value is not None and not (_is_number(value) and 0 <= value <= 1):
        raise ValueError(f"{name}={value!r}; expected a number from 0 to 1, or None.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""What a classifier's predictions on a test set are worth, class by class and group by group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.evaluation._checks import (
    GROUPS,
    ClassCodes,
    class_groups,
    fractions,
    probabilities,
    row_scores,
    scores,
    truth_codes,
)
from protail.evaluation._tables import results_table
from protail.options import Range
from protail.profile import ClassProfile, host_array

if TYPE_CHECKING:
    from rich.table import Table


def calibration_error(
    confidence: ArrayLike | torch.Tensor, right: ArrayLike | torch.Tensor, n_bins: int = 15
) -> float:
    """Measure the expected calibration error of top-1 predictions.

    Rows fall into bins of equal width by their confidence; the result is the mean of
    abs(accuracy - mean confidence) over the bins, weighted by their rows.

    Parameters
    ----------
    confidence : array-like or tensor of float, shape (n_samples,)
        The probability of the predicted class.
    right : array-like or tensor of bool, shape (n_samples,)
        Whether the prediction is right.
    n_bins : int
        How many bins there are. A confidence on an edge is in the upper bin, 1 in the last.

    Returns
    -------
    float
        From 0 (confidence says how often the classifier is right) to 1.

    Examples
    --------
    >>> from protail.evaluation import calibration_error
    >>> calibration_error([0.75, 0.75, 0.75, 0.75], [True, True, True, False])
    0.0
    >>> calibration_error([0.75, 0.75, 0.5, 0.5], [True, True, False, False])
    0.375
    """
    confidence = probabilities(confidence, "confidence")
    hits = host_array(right)
    Range(1, kind=int).check("n_bins", n_bins)
    if hits.shape != confidence.shape:
        raise ValueError(
            f"right has shape {hits.shape} and confidence {confidence.shape}; expected one value "
            "a row in both."
        )
    if hits.dtype.kind not in "biuf" or not np.isin(hits, (0, 1)).all():
        raise TypeError("right holds other values than True and False; expected one bool a row.")
    edges = np.arange(1, n_bins) / n_bins
    bins = np.searchsorted(edges, confidence, side="right")
    gaps = np.bincount(bins, weights=hits - confidence)
    return float(np.abs(gaps).sum() / confidence.size)


def known_confidence(
    confidence: ArrayLike | torch.Tensor | None, known: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Check the confidence of every row and keep that of the known rows."""
    if confidence is None:
        return None
    return probabilities(row_scores(confidence, "confidence", known.size), "confidence")[known]


def calibration_by_group(
    confidence: NDArray[np.float64] | None, right: NDArray[np.bool_], group: NDArray[np.int64]
) -> tuple[float | None, dict[str, float | None]]:
    """Measure the calibration error of all rows and of each group's; None where there are none."""
    if confidence is None:
        return None, dict.fromkeys(GROUPS)
    by_group: dict[str, float | None] = {}
    for index, name in enumerate(GROUPS):
        inside = group == index
        by_group[name] = (
            calibration_error(confidence[inside], right[inside]) if inside.any() else None
        )
    return calibration_error(confidence, right), by_group


def novelty_auroc(known: ArrayLike | torch.Tensor, unseen: ArrayLike | torch.Tensor) -> float:
    """Measure the area under the ROC curve of a novelty score.

    It is the fraction of pairs (known row, unseen row) in which the unseen row has the larger
    score; a tie counts half.

    Parameters
    ----------
    known : array-like or tensor of float, shape (n_known,)
        Scores of rows whose class was in the training set.
    unseen : array-like or tensor of float, shape (n_unseen,)
        Scores of rows whose class was not. Larger means stranger.

    Returns
    -------
    float
        1 when every unseen row is stranger than every known row, 0.5 by chance.

    Examples
    --------
    >>> from protail.evaluation import novelty_auroc
    >>> novelty_auroc(known=[1.0, 2.0], unseen=[2.0, 3.0])
    0.875
    """
    ranked = np.sort(scores(known, "known"))
    strange = np.sort(scores(unseen, "unseen"))  # sorted needles are found several times faster
    below = int(np.searchsorted(ranked, strange, side="left").sum())
    not_above = int(np.searchsorted(ranked, strange, side="right").sum())
    return (below + not_above) / (2 * ranked.size * strange.size)


def unseen_auroc(
    novelty: ArrayLike | torch.Tensor | None, known: NDArray[np.bool_]
) -> float | None:
    """Measure how well novelty finds the rows that are not known; None where that says nothing."""
    if novelty is None:
        return None
    strangeness = row_scores(novelty, "novelty", known.size)
    return None if known.all() else novelty_auroc(strangeness[known], strangeness[~known])


_SCORES = ("all", "balanced_accuracy", *GROUPS, "macro_f1")
# Name in the record of a class, name of the attribute that holds it for all classes.
_CLASS_COLUMNS = {
    "train_rows": "counts",
    "test_rows": "class_rows",
    "right_rows": "class_right",
    "predicted_rows": "class_predicted",
}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation:
    """Hold the results of one classifier on one test set.

    Made by `from_predictions`. Every fraction is a fraction from 0 to 1. A number that the
    test set cannot give is None (in ``class_accuracy`` and ``confusion`` it is NaN).

    Attributes
    ----------
    classes : ndarray, shape (n_classes,)
        The labels, in class order.
    counts : ndarray of int, shape (n_classes,)
        Training rows of every class.
    class_rows, class_right, class_predicted : ndarray of int, shape (n_classes,)
        Test rows of every class, how many of them are right, and how many test rows were
        predicted to be of the class.
    errors : ndarray of int, shape (3, 3)
        Wrong rows by group (many, medium, few) of the true and of the predicted class.
    n_unseen : int
        Test rows of a class that is not in ``classes``; they are in no other number than
        ``novelty_auroc``.
    many_from, few_below : int
        Training rows from which a class is in "many", and below which it is in "few".
    calibration_error : float or None
        Expected calibration error, 15 bins; None without ``confidence``.
    group_calibration_error : dict of str to float or None
        The same for the rows whose true class is in each group.
    novelty_auroc : float or None
        How well the novelty score finds the unseen rows.

    Examples
    --------
    >>> from protail.evaluation import Evaluation
    >>> result = Evaluation.from_predictions(
    ...     truth=["cat", "cat", "cat", "lynx"],
    ...     predicted=["cat", "cat", "lynx", "cat"],
    ...     classes=["cat", "lynx"],
    ...     counts=[500, 5],
    ... )
    >>> result
    Evaluation(4 rows, 2 classes, all 50.0 %, many 66.7 %, few 0.0 %)
    >>> result.balanced_accuracy
    0.3333333333333333
    """

    classes: NDArray[Any]
    counts: NDArray[np.int64]
    class_rows: NDArray[np.int64]
    class_right: NDArray[np.int64]
    class_predicted: NDArray[np.int64]
    errors: NDArray[np.int64]
    n_unseen: int
    many_from: int
    few_below: int
    calibration_error: float | None
    group_calibration_error: Mapping[str, float | None]
    novelty_auroc: float | None

    def __post_init__(self) -> None:
        _check_numbers(self)

    @classmethod
    def from_predictions(
        cls,
        truth: ArrayLike | torch.Tensor,
        predicted: ArrayLike | torch.Tensor,
        *,
        classes: ArrayLike | torch.Tensor,
        counts: ArrayLike | torch.Tensor,
        confidence: ArrayLike | torch.Tensor | None = None,
        novelty: ArrayLike | torch.Tensor | None = None,
        many: int = 100,
        few: int = 20,
    ) -> Evaluation:
        """Evaluate predictions.

        Parameters
        ----------
        truth, predicted : array-like, shape (n_samples,)
            The true and the predicted label of every test row, numbers or text. A true label
            that is not in ``classes`` marks a row of an unseen class.
        classes : array-like, shape (n_classes,)
            The labels the classifier knows, as its ``classes_``.
        counts : array-like of int, shape (n_classes,)
            Training rows of every class, in the order of ``classes``; 0 is allowed.
        confidence : array-like of float, shape (n_samples,), optional
            The probability of the predicted label.
        novelty : array-like of float, shape (n_samples,), optional
            A score that is larger the stranger the row is.
        many, few : int
            A class with ``many`` training rows or more is in "many", one with fewer than
            ``few`` is in "few".

        Returns
        -------
        Evaluation
            The results.

        Examples
        --------
        >>> result = Evaluation.from_predictions(
        ...     [0, 1, 7], [0, 0, 1], classes=[0, 1], counts=[9, 3], novelty=[0.1, 0.3, 0.2]
        ... )
        >>> result.all, result.n_unseen, result.novelty_auroc
        (0.5, 1, 0.5)
        """
        codes = ClassCodes(classes)
        n_classes = codes.labels.size
        training_rows, group_of = class_groups(counts, n_classes, many, few)
        y, known = truth_codes(truth, codes)
        guess = codes.known(predicted, "predicted", y.size)
        auroc = unseen_auroc(novelty, known)
        sure = known_confidence(confidence, known)
        y, guess = y[known], guess[known]
        right = y == guess
        pairs = 3 * group_of[y[~right]] + group_of[guess[~right]]
        calibration, by_group = calibration_by_group(sure, right, group_of[y])
        return cls(
            classes=codes.labels,
            counts=training_rows,
            class_rows=np.bincount(y, minlength=n_classes),
            class_right=np.bincount(y[right], minlength=n_classes),
            class_predicted=np.bincount(guess, minlength=n_classes),
            errors=np.bincount(pairs, minlength=9).reshape(3, 3),
            n_unseen=int((~known).sum()),
            many_from=int(many),
            few_below=int(few),
            calibration_error=calibration,
            group_calibration_error=by_group,
            novelty_auroc=auroc,
        )

    @property
    def n_rows(self) -> int:
        """How many test rows are of a known class."""
        return int(self.class_rows.sum())

    @property
    def groups(self) -> dict[str, NDArray[np.intp]]:
        """The class codes in "many", "medium" and "few"."""
        return ClassProfile(self.counts).groups(self.many_from, self.few_below)

    @property
    def all(self) -> float:
        """The fraction of rows that are right."""
        return float(self.class_right.sum() / self.n_rows)

    @property
    def class_accuracy(self) -> NDArray[np.float64]:
        """The fraction of every class's rows that are right; NaN for a class without test rows."""
        return fractions(self.class_right, self.class_rows)

    @property
    def balanced_accuracy(self) -> float:
        """The mean accuracy of the classes that have test rows."""
        return float(np.nanmean(self.class_accuracy))

    @property
    def many(self) -> float | None:
        """The mean accuracy of the classes with many training rows."""
        return self._group_accuracy("many")

    @property
    def medium(self) -> float | None:
        """The mean accuracy of the classes in between."""
        return self._group_accuracy("medium")

    @property
    def few(self) -> float | None:
        """The mean accuracy of the classes with few training rows."""
        return self._group_accuracy("few")

    def _group_accuracy(self, group: str) -> float | None:
        accuracy = self.class_accuracy[self.groups[group]]
        tested = accuracy[~np.isnan(accuracy)]
        return float(tested.mean()) if tested.size else None

    @property
    def macro_f1(self) -> float:
        """The mean F1 score of the classes that have test rows or were predicted."""
        met = self.class_rows + self.class_predicted
        return float((2 * self.class_right[met > 0] / met[met > 0]).mean())

    @property
    def confusion(self) -> NDArray[np.float64]:
        """Where errors go, shape (3, 3), groups in the order many, medium, few.

        ``confusion[g, h]`` is the fraction of the rows of group g that are wrong and were predicted
        to be of a class of group h. A row of it and the fraction of that group's rows that are
        right sum to 1; it is NaN for a group without test rows.
        """
        rows = np.array([self.class_rows[self.groups[group]].sum() for group in GROUPS])
        return fractions(self.errors, rows[:, None])

    def to_dict(self) -> dict[str, Any]:
        """Turn the results into plain values that strict JSON can hold.

        Returns
        -------
        dict
            Scores under their names, and "classes": a dict a class with its label and numbers.

        Examples
        --------
        >>> result = Evaluation.from_predictions([0, 1], [0, 0], classes=[0, 1], counts=[9, 3])
        >>> result.to_dict()["classes"][0]["accuracy"]
        1.0
        """
        return _record_of(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evaluation:
        """Restore the results from what `to_dict` gave.

        Parameters
        ----------
        record : mapping
            The plain values.

        Returns
        -------
        Evaluation
            An equal object. Scores follow from the rows of every class; a record whose scores
            say something else is refused.

        Examples
        --------
        >>> result = Evaluation.from_predictions([0, 1], [0, 0], classes=[0, 1], counts=[9, 3])
        >>> Evaluation.from_dict(result.to_dict()) == result
        True
        """
        restored = cls(**_fields_of(record))
        _check_scores(restored, record)
        return restored

    def table(self, name: str = "model") -> Table:
        """Make a rich table with one row, in per cent.

        Parameters
        ----------
        name : str
            What the row is called.

        Returns
        -------
        rich.table.Table
            Print it with `rich.print`.

        Examples
        --------
        >>> result = Evaluation.from_predictions([0, 1], [0, 0], classes=[0, 1], counts=[9, 3])
        >>> result.table("nearest mean").row_count
        1
        """
        return results_table({name: self})

    def __rich__(self) -> Table:
        return self.table()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in ("all", *GROUPS)}
        parts = [
            f"{name} {100 * value:.1f} %" for name, value in shown.items() if value is not None
        ]
        return f"Evaluation({self.n_rows} rows, {self.classes.size} classes, {', '.join(parts)})"


def _record_of(evaluation: Evaluation) -> dict[str, Any]:
    """Turn an evaluation into plain values; NaN becomes None."""
    columns = {
        "label": evaluation.classes.tolist(),
        **{key: getattr(evaluation, name).tolist() for key, name in _CLASS_COLUMNS.items()},
        "accuracy": _plain(evaluation.class_accuracy.tolist()),
    }
    return {
        **{name: getattr(evaluation, name) for name in _SCORES},
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


def _fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
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


def _check_scores(evaluation: Evaluation, record: Mapping[str, Any]) -> None:
    """Refuse a record whose scores differ from what its classes' rows give."""
    for name in _SCORES:
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


def _check_numbers(evaluation: Evaluation) -> None:
    """Check the fields of a new evaluation and make its arrays read-only."""
    arrays: dict[str, NDArray[Any]] = {"classes": ClassCodes(evaluation.classes).labels}
    n = arrays["classes"].size
    for name in (*_CLASS_COLUMNS.values(), "errors"):
        shape = (3, 3) if name == "errors" else (n,)
        arrays[name] = _whole_array(getattr(evaluation, name), name, shape)
    for name in ("many_from", "few_below", "n_unseen"):
        Range(kind=int).check(name, getattr(evaluation, name))
    many, few = evaluation.many_from, evaluation.few_below
    _, group_of = class_groups(arrays["counts"], n, many, few)
    rows, right, predicted = (arrays[f"class_{each}"] for each in ("rows", "right", "predicted"))
    wrong_by_group = np.bincount(group_of, weights=rows - right, minlength=3)
    if (
        rows.sum() == 0
        or (right > np.minimum(rows, predicted)).any()
        or predicted.sum() != rows.sum()
        or (arrays["errors"].sum(axis=1) != wrong_by_group).any()
    ):
        raise ValueError(
            "class_rows, class_right, class_predicted and errors do not fit together; expected "
            "counts of the same test rows, at least one. Make them with from_predictions."
        )
    by_group = evaluation.group_calibration_error
    if not isinstance(by_group, Mapping) or set(by_group) != set(GROUPS):
        raise ValueError(
            f"group_calibration_error={by_group!r}; expected a dict with the keys {GROUPS}."
        )
    given = {name: getattr(evaluation, name) for name in ("calibration_error", "novelty_auroc")}
    given |= {f"group_calibration_error[{group!r}]": by_group[group] for group in GROUPS}
    for name, value in given.items():
        if value is not None and not (_is_number(value) and 0 <= value <= 1):
            raise ValueError(f"{name}={value!r}; expected a number from 0 to 1, or None.")
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

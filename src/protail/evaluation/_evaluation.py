"""What a classifier's predictions on a test set are worth, class by class and group by group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.evaluation._calibration import calibration_by_group, known_confidence
from protail.evaluation._checks import GROUPS, ClassCodes, class_groups, shares, truth_codes
from protail.evaluation._novelty import unseen_auroc
from protail.evaluation._records import check_numbers, check_scores, fields_of, record_of
from protail.evaluation._tables import results_table
from protail.profile import ClassProfile

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation:
    """Hold the results of one classifier on one test set.

    Made by `from_predictions`. Every share is a fraction from 0 to 1. A number that the
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
        check_numbers(self)

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
        """Judge predictions.

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
        """The share of rows that are right."""
        return float(self.class_right.sum() / self.n_rows)

    @property
    def class_accuracy(self) -> NDArray[np.float64]:
        """The share of every class's rows that are right; NaN for a class without test rows."""
        return shares(self.class_right, self.class_rows)

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

        ``confusion[g, h]`` is the share of the rows of group g that are wrong and were predicted
        to be of a class of group h. A row of it and the share of that group's rows that are
        right sum to 1; it is NaN for a group without test rows.
        """
        rows = np.array([self.class_rows[self.groups[group]].sum() for group in GROUPS])
        return shares(self.errors, rows[:, None])

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
        return record_of(self)

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
        restored = cls(**fields_of(record))
        check_scores(restored, record)
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

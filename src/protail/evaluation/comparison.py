"""Two classifiers on the same test rows: who is better, and how sure is that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from protail.evaluation._checks import GROUPS, ClassCodes, class_groups, truth_codes
from protail.evaluation._tables import comparison_table
from protail.options import Range

if TYPE_CHECKING:
    from rich.table import Table

_COMPARED = ("all", "balanced_accuracy", *GROUPS)
_CHUNK_BYTES = 2**25
# Numbers of 8 bytes held at once for each class of a resample: drawn and sorted cells (3 + 3),
# rows, net, change, present, and one to spare.
_NUMBERS_A_CLASS = 11


@dataclass(frozen=True)
class Difference:
    """Hold one score of two classifiers and how sure their difference is.

    Attributes
    ----------
    first, second : float
        The score of each, from 0 to 1.
    difference : float
        Second minus first.
    low, high : float
        The bootstrap percentile interval of the difference.

    Examples
    --------
    >>> from protail.evaluation import Difference
    >>> Difference(first=0.50, second=0.53, difference=0.03, low=0.01, high=0.05).verdict
    'better'
    """

    first: float
    second: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the second is: "better" or "worse" if the interval excludes 0."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no clear difference"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold the paired comparison of two classifiers on one test set.

    Made by `from_predictions`. Rows of a class that is not in ``classes`` are left out of
    every number but ``n_unseen``.

    Attributes
    ----------
    all, balanced_accuracy : Difference
        As in `Evaluation`.
    many, medium, few : Difference or None
        As in `Evaluation`; None where no class of the group has test rows.
    only_first, only_second : int
        Rows that only the first, only the second classifier has right.
    changed : dict of str to dict of str to int
        The same two numbers for the rows whose true class is in each group.
    group_classes : dict of str to int
        How many classes are in each group.
    n_rows, n_unseen : int
        Test rows of known and of unseen classes.
    n_resamples : int
        How many resamples the intervals come from.
    confidence_level : float
        How often such an interval holds the true difference.

    Examples
    --------
    >>> from protail.evaluation import Comparison
    >>> truth = ["cat", "lynx"] * 50
    >>> comparison = Comparison.from_predictions(
    ...     truth, ["cat"] * 100, truth, classes=["cat", "lynx"], counts=[500, 5]
    ... )
    >>> comparison.few.difference, comparison.few.verdict
    (1.0, 'better')
    >>> comparison.many.verdict
    'no clear difference'
    """

    all: Difference
    balanced_accuracy: Difference
    many: Difference | None
    medium: Difference | None
    few: Difference | None
    only_first: int
    only_second: int
    changed: Mapping[str, Mapping[str, int]]
    group_classes: Mapping[str, int]
    n_rows: int
    n_unseen: int
    n_resamples: int
    confidence_level: float

    @classmethod
    def from_predictions(
        cls,
        truth: ArrayLike | torch.Tensor,
        first: ArrayLike | torch.Tensor,
        second: ArrayLike | torch.Tensor,
        *,
        classes: ArrayLike | torch.Tensor,
        counts: ArrayLike | torch.Tensor,
        many: int = 100,
        few: int = 20,
        n_resamples: int = 2000,
        confidence_level: float = 0.95,
        random_state: int | np.random.Generator | None = 0,
    ) -> Comparison:
        """Compare the predictions of two classifiers row by row.

        Parameters
        ----------
        truth, first, second : array-like, shape (n_samples,)
            The true label of every test row and what each classifier predicted.
        classes, counts, many, few
            As in `Evaluation.from_predictions`.
        n_resamples : int
            How many times the test rows are drawn again, with replacement.
        confidence_level : float
            How often an interval shall hold the true difference, between 0 and 1.
        random_state : int, Generator or None
            The seed of the resamples; None takes a new one each time.

        Returns
        -------
        Comparison
            Scores, differences and their intervals.

        Examples
        --------
        >>> comparison = Comparison.from_predictions(
        ...     [0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], classes=[0, 1], counts=[9, 3]
        ... )
        >>> comparison.only_first, comparison.only_second, comparison.all.difference
        (1, 1, 0.0)
        """
        Range(1, kind=int).check("n_resamples", n_resamples)
        Range(high=1, closed="neither").check("confidence_level", confidence_level)
        codes = ClassCodes(classes)
        _, group_of = class_groups(counts, codes.labels.size, many, few)
        y, known = truth_codes(truth, codes)
        first_right = (codes.known(first, "first", y.size) == y)[known]
        second_right = (codes.known(second, "second", y.size) == y)[known]
        # Four cells a class: only the first right, only the second, both, none.
        cell = np.select(
            [first_right & ~second_right, ~first_right & second_right, first_right], [0, 1, 2], 3
        )
        cells = np.bincount(4 * y[known] + cell, minlength=4 * codes.labels.size).reshape(-1, 4)
        changed = np.zeros((3, 2), dtype=np.int64)
        np.add.at(changed, group_of, cells[:, :2])
        differences = _compare(cells, group_of, n_resamples, confidence_level, random_state)
        return cls(
            **differences,
            only_first=int(cells[:, 0].sum()),
            only_second=int(cells[:, 1].sum()),
            changed={
                group: dict(zip(("only_first", "only_second"), row, strict=True))
                for group, row in zip(GROUPS, changed.tolist(), strict=True)
            },
            group_classes=dict(
                zip(GROUPS, np.bincount(group_of, minlength=3).tolist(), strict=True)
            ),
            n_rows=int(known.sum()),
            n_unseen=int((~known).sum()),
            n_resamples=int(n_resamples),
            confidence_level=float(confidence_level),
        )

    @property
    def differences(self) -> dict[str, Difference | None]:
        """Every difference under its name, in the order of the table."""
        return {name: getattr(self, name) for name in _COMPARED}

    def to_dict(self) -> dict[str, Any]:
        """Turn the comparison into plain values that strict JSON can hold.

        Returns
        -------
        dict
            Every attribute under its name; a difference is a dict with its verdict.

        Examples
        --------
        >>> comparison = Comparison.from_predictions(
        ...     [0, 1], [0, 0], [0, 1], classes=[0, 1], counts=[9, 3]
        ... )
        >>> comparison.to_dict()["all"]["difference"]
        0.5
        """
        record = asdict(self)
        for name, difference in self.differences.items():
            if difference is not None:
                numbers = {
                    key: None if math.isnan(number) else number
                    for key, number in record[name].items()
                }
                record[name] = numbers | {"verdict": difference.verdict}
        return record

    def table(self, first_name: str = "first", second_name: str = "second") -> Table:
        """Make a rich table with one row for each score, in per cent.

        Parameters
        ----------
        first_name, second_name : str
            What the two classifiers are called.

        Returns
        -------
        rich.table.Table
            Print it with `rich.print`.

        Examples
        --------
        >>> comparison = Comparison.from_predictions(
        ...     [0, 1], [0, 0], [0, 1], classes=[0, 1], counts=[9, 3]
        ... )
        >>> comparison.table("softmax", "prototypes").row_count  # all, balanced, few
        3
        """
        return comparison_table(self, first_name, second_name)

    def __rich__(self) -> Table:
        return self.table()


def _compare(
    cells: NDArray[np.int64],
    group_of: NDArray[np.int64],
    n_resamples: int,
    confidence_level: float,
    random_state: int | np.random.Generator | None,
) -> dict[str, Any]:
    tested = cells.sum(axis=1) > 0
    cells = cells[tested]
    members = np.column_stack([np.ones(len(cells)), group_of[tested, None] == np.arange(3)])
    rows = cells.sum(axis=1)
    # Column 2 counts rows both have right: each model's own are added to it.
    right = cells[:, :2] + cells[:, 2:3]
    overall = right.sum(axis=0) / rows.sum()
    with np.errstate(invalid="ignore"):
        means = (members.T @ (right / rows[:, None])) / members.sum(axis=0)[:, None]
    scores = np.vstack([overall, means]).tolist()

    merged = np.column_stack([cells[:, :2], cells[:, 2:].sum(axis=1)])
    rng = np.random.default_rng(random_state)
    samples = resampled_differences(merged, members, n_resamples, rng)
    tail = (1 - confidence_level) / 2
    return {
        name: None if math.isnan(one) else Difference(one, two, two - one, *_interval(drawn, tail))
        for name, (one, two), drawn in zip(_COMPARED, scores, samples.T, strict=True)
    }


def _interval(drawn: NDArray[np.float64], tail: float) -> tuple[float, float]:
    drawn = drawn[~np.isnan(drawn)]
    if not drawn.size:
        return math.nan, math.nan
    low, high = np.quantile(drawn, [tail, 1 - tail]).tolist()
    return low, high


def resampled_differences(
    cells: NDArray[np.int64],
    members: NDArray[np.float64],
    n_resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw the paired bootstrap of differences in accuracy.

    Accuracies see a row only through its class and whether the one, the other or neither of the
    models alone is right. So a resample of rows with replacement is, exactly in distribution,
    one multinomial draw over these cells.

    Parameters
    ----------
    cells : ndarray of int, shape (n_classes, 3)
        Rows of every class that only the first model has right, only the second, and the rest;
        every class has at least one row.
    members : ndarray of float, shape (n_classes, n_sets)
        1 where a class is in a set of classes, else 0.
    n_resamples : int
        How many resamples to draw.
    rng : numpy.random.Generator
        Where random numbers come from.

    Returns
    -------
    ndarray of float, shape (n_resamples, 1 + n_sets)
        The difference (second minus first) in the fraction of right rows, then in the mean accuracy
        of each set. Classes that drop out of a resample leave the mean; NaN where all do.
    """
    n_classes, n_rows = len(cells), int(cells.sum())
    filled = np.flatnonzero(cells)
    # The largest cell last: the probability left for the remaining cells, which numpy keeps by
    # subtraction, is then never so small that rounding shows.
    filled = filled[np.argsort(cells.ravel()[filled], kind="stable")]
    fractions = cells.ravel()[filled] / n_rows
    step = max(1, _CHUNK_BYTES // (8 * _NUMBERS_A_CLASS * n_classes))
    chunks = []
    for start in range(0, n_resamples, step):
        size = min(step, n_resamples - start)
        drawn = np.zeros((size, n_classes * 3), dtype=np.int64)
        drawn[:, filled] = rng.multinomial(n_rows, fractions, size=size)
        chunks.append(_differences(drawn.reshape(size, n_classes, 3), members, n_rows))
    # Sums of fractions such as 1/3 - 1/3 may miss 0 by a rounding error; 0 must be 0 here.
    return np.concatenate(chunks).round(12)


def _differences(
    drawn: NDArray[np.int64], members: NDArray[np.float64], n_rows: int
) -> NDArray[np.float64]:
    rows = drawn.sum(axis=2)
    net = drawn[:, :, 1] - drawn[:, :, 0]
    present = (rows > 0).astype(np.float64)
    change = net / np.maximum(rows, 1)
    with np.errstate(invalid="ignore"):
        means = (change @ members) / (present @ members)
    return np.column_stack([net.sum(axis=1) / n_rows, means])

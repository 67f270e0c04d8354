"""The class counts of a training set and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:  # counting classes needs no torch, which takes a second to import
    import torch


def host_array(values: ArrayLike | torch.Tensor) -> NDArray[Any]:
    """Turn anything array-like, a tensor on a GPU included, into a numpy array.

    Parameters
    ----------
    values : array-like or tensor
        What came from the user.

    Returns
    -------
    ndarray
        The same values; no copy where none is needed.

    Examples
    --------
    >>> import torch
    >>> from protail.profile import host_array
    >>> host_array(torch.tensor([3, 1]))
    array([3, 1])
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def class_codes(
    labels: ArrayLike | torch.Tensor, n_classes: int | None = None
) -> NDArray[np.int64]:
    """Check that labels are class codes: integers from 0 to ``n_classes - 1``.

    Parameters
    ----------
    labels : array-like or tensor of int, shape (n_samples,)
        The class of every row.
    n_classes : int, optional
        How many classes there are; by default the largest label plus one.

    Returns
    -------
    ndarray of int64, shape (n_samples,)
        The same codes; no copy where they came as an int64 array.

    Examples
    --------
    >>> from protail.profile import class_codes
    >>> class_codes([0, 2, 1])
    array([0, 2, 1])
    """
    codes = host_array(labels)
    if codes.ndim != 1 or codes.size == 0:
        raise ValueError(
            f"labels has shape {codes.shape}; expected one label a row, shape (n_samples,), "
            "and at least one row."
        )
    if codes.dtype.kind not in "iu":
        raise TypeError(
            f"labels has dtype {codes.dtype}; expected integer class codes 0, 1, 2, ... "
            "Turn other labels into codes with numpy.unique(labels, return_inverse=True)."
        )
    low, high = int(codes.min()), int(codes.max())
    if low < 0 or (n_classes is not None and high >= n_classes):
        top = "n_classes - 1" if n_classes is None else f"{n_classes - 1} (n_classes={n_classes})"
        raise ValueError(
            f"labels run from {low} to {high}; expected class codes from 0 to {top}. "
            "Drop the rows outside, or correct n_classes."
        )
    return codes.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False, repr=False)
class ClassProfile:
    """Hold the class counts of a training set: imbalance, prior, shot groups.

    Parameters
    ----------
    counts : ndarray of int, shape (n_classes,)
        Training rows of every class, in class order; a class may be empty.

    Attributes
    ----------
    counts : ndarray of int64, shape (n_classes,)
        The same numbers, as a read-only copy.

    Examples
    --------
    >>> from protail import ClassProfile
    >>> profile = ClassProfile.from_labels([0, 0, 0, 0, 1, 1, 2])
    >>> profile
    ClassProfile(3 classes, 7 samples, imbalance 4)
    >>> profile.counts
    array([4, 2, 1])
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        given = host_array(self.counts)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise TypeError(
                f"counts has shape {given.shape} and dtype {given.dtype}; expected whole numbers, "
                "one for each class, shape (n_classes,)."
            )
        counts = given.astype(np.int64)
        if counts.min(initial=0) < 0 or counts.sum() == 0:
            raise ValueError(
                f"counts={counts.tolist()[:10]} has {counts.sum()} samples in all; expected no "
                "negative count and at least one sample."
            )
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, counts: Counts) -> ClassProfile:
        """Take class counts, in whatever form they came, for a profile.

        Parameters
        ----------
        counts : array-like of int, tensor or ClassProfile, shape (n_classes,)
            Training rows of every class, in class order.

        Returns
        -------
        ClassProfile
            The profile of these counts; a profile is given back as it is.

        Examples
        --------
        >>> ClassProfile.of([4, 2, 1])
        ClassProfile(3 classes, 7 samples, imbalance 4)
        """
        return counts if isinstance(counts, ClassProfile) else cls(host_array(counts))

    @classmethod
    def from_labels(
        cls, labels: ArrayLike | torch.Tensor, n_classes: int | None = None
    ) -> ClassProfile:
        """Count the rows of every class.

        Parameters
        ----------
        labels : array-like or tensor of int, shape (n_samples,)
            Class codes from 0 to ``n_classes - 1``.
        n_classes : int, optional
            How many classes there are; by default the largest label plus one.

        Returns
        -------
        ClassProfile
            The profile of these labels.

        Examples
        --------
        >>> ClassProfile.from_labels([0, 2, 2], n_classes=4).counts
        array([1, 0, 2, 0])
        """
        return cls(np.bincount(class_codes(labels, n_classes), minlength=n_classes or 0))

    @property
    def n_classes(self) -> int:
        """How many classes there are, empty ones included."""
        return self.counts.size

    @property
    def n_samples(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    @property
    def imbalance(self) -> float:
        """The largest count over the smallest, empty classes aside."""
        return float(self.counts.max() / self.counts[self.counts > 0].min())

    @property
    def prior(self) -> NDArray[np.float64]:
        """The fraction of every class in the training set; sums to 1."""
        return self.counts / np.float64(self.n_samples)

    @property
    def log_counts(self) -> NDArray[np.float64]:
        """The natural logarithm of every count, as logit adjustment needs it."""
        empty = np.flatnonzero(self.counts == 0)
        if empty.size:
            raise ValueError(
                f"counts has {empty.size} empty of {self.n_classes} classes "
                f"(first: {empty[:5].tolist()}); log_counts expects at least one sample of "
                "every class. Leave the empty classes out, or add samples of them."
            )
        return np.log(self.counts)

    @property
    def log_prior(self) -> NDArray[np.float64]:
        """The natural logarithm of every class's fraction of the training set."""
        return self.log_counts - math.log(self.n_samples)

    def groups(
        self, many: int = 100, few: int = 20, many_inclusive: bool = True
    ) -> dict[str, NDArray[np.intp]]:
        """Split the classes into many, medium and few shots.

        Parameters
        ----------
        many : int
            A class with this many samples or more is in "many".
        few : int
            A class with fewer samples than this is in "few".
        many_inclusive : bool
            True follows the paper's text (``count >= many``); False follows its published
            code (``count > many``).

        Returns
        -------
        dict of str to ndarray of int
            The class codes in "many", "medium" and "few", each in class order; every class,
            empty ones included, is in exactly one.

        Examples
        --------
        >>> profile = ClassProfile([500, 100, 20, 5])
        >>> {name: classes.tolist() for name, classes in profile.groups().items()}
        {'many': [0, 1], 'medium': [2], 'few': [3]}
        """
        if not 0 <= few <= many:
            raise ValueError(
                f"few={few!r} and many={many!r}; expected 0 <= few <= many, as in few=20, many=100."
            )
        in_many = self.counts >= many if many_inclusive else self.counts > many
        in_few = self.counts < few
        members = {"many": in_many, "medium": ~in_many & ~in_few, "few": in_few}
        return {name: np.flatnonzero(member) for name, member in members.items()}

    def head_first(self) -> NDArray[np.intp]:
        """Order the classes from the largest to the smallest.

        Returns
        -------
        ndarray of int, shape (n_classes,)
            Class codes; classes of equal size stay in class order.

        Examples
        --------
        >>> ClassProfile([2, 9, 2, 4]).head_first()
        array([1, 3, 0, 2])
        """
        return np.argsort(-self.counts, kind="stable")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassProfile):
            return NotImplemented
        return np.array_equal(self.counts, other.counts)

    def __reduce__(self) -> tuple[type[ClassProfile], tuple[NDArray[np.int64]]]:
        # A copy or a pickle is built again, so that its counts are read-only too.
        return ClassProfile, (self.counts,)

    def __hash__(self) -> int:
        return hash(self.counts.tobytes())

    def __repr__(self) -> str:
        return (
            f"ClassProfile({self.n_classes} classes, {self.n_samples} samples, "
            f"imbalance {self.imbalance:.4g})"
        )


# What stands for the class counts of a training set wherever they are asked for.
if TYPE_CHECKING:
    Counts = ArrayLike | torch.Tensor | ClassProfile
else:
    Counts = Any

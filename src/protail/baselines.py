"""Classifiers to compare with: scikit-learn's, each in one line, prepared for frozen features.

Rows are scaled to unit length first (`Normalizer`), which is what most people do with the features
of a network. Every one is an ordinary scikit-learn estimator.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

__all__ = [
    "LogitAdjustedRegression", "balanced_logistic_regression", "balanced_ridge",
    "k_nearest_neighbours", "logit_adjusted_regression", "nearest_class_mean", "shrinkage_lda",
]  # fmt: skip


class LogitAdjustedRegression(LogisticRegression):  # type: ignore[misc]
    """Logistic regression with post-hoc logit adjustment.

    Learned as it is, it predicts with ``tau`` times the logarithm of the class counts taken off its
    logits, so that rare classes are predicted as if all were equally frequent.

    Parameters
    ----------
    tau : float, default=1.0
        How much is taken off; 0 is plain logistic regression.
    C : float, default=100.0
        Inverse regularisation.
    max_iter : int, default=200
        Most steps of the solver.

    References
    ----------
    A. K. Menon and others: Long-Tail Learning via Logit Adjustment. ICLR 2021.

    Examples
    --------
    >>> from protail.baselines import LogitAdjustedRegression
    >>> X, y = [[0.0], [0.1], [0.2], [0.3], [0.9]], ["ant", "ant", "ant", "ant", "bee"]
    >>> LogitAdjustedRegression(C=1.0).fit(X, y).predict([[0.7]])
    array(['bee'], dtype='<U3')
    """

    def __init__(self, *, tau: float = 1.0, C: float = 100.0, max_iter: int = 200) -> None:
        super().__init__(C=C, max_iter=max_iter)
        self.tau = tau

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn, and count the rows of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Feature rows.
        y : array-like of shape (n_samples,)
            Class labels.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts.

        Returns
        -------
        LogitAdjustedRegression
            This estimator.
        """
        super().fit(X, y, sample_weight)
        codes = np.searchsorted(self.classes_, np.asarray(y))
        self.class_counts_ = np.bincount(codes, sample_weight, minlength=len(self.classes_))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Give adjusted logits.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) of two classes
            As logistic regression's, less ``tau`` times the logarithm of the counts.
        """
        scores: NDArray[np.float64] = super().decision_function(X)
        offset = self.tau * np.log(np.maximum(self.class_counts_, 1e-12))
        return scores - (offset if scores.ndim == 2 else offset[1] - offset[0])


def logit_adjusted_regression(C: float = 100.0, tau: float = 1.0) -> Pipeline:
    """Make logistic regression with post-hoc logit adjustment.

    Parameters
    ----------
    C : float, default=100.0
        Inverse regularisation; rows of unit length want a large one.
    tau : float, default=1.0
        How much of the logarithm of the counts is taken off.

    Returns
    -------
    sklearn.pipeline.Pipeline
        A classifier.

    Examples
    --------
    >>> from protail.baselines import logit_adjusted_regression
    >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], [0, 0, 1]
    >>> logit_adjusted_regression().fit(X, y).predict([[1.0, 0.0]])
    array([1])
    """
    return make_pipeline(Normalizer(), LogitAdjustedRegression(C=C, tau=tau))


def balanced_logistic_regression(C: float = 100.0) -> Pipeline:
    """Make logistic regression in which every class weighs the same.

    Parameters
    ----------
    C : float, default=100.0
        Inverse regularisation.

    Returns
    -------
    sklearn.pipeline.Pipeline
        A classifier.

    Examples
    --------
    >>> from protail.baselines import balanced_logistic_regression
    >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], [0, 0, 1]
    >>> balanced_logistic_regression().fit(X, y).predict([[1.0, 0.0]])
    array([1])
    """
    return make_pipeline(
        Normalizer(), LogisticRegression(C=C, class_weight="balanced", max_iter=200)
    )


def shrinkage_lda() -> Pipeline:
    """Make linear discriminant analysis, its covariance shrunk as Ledoit and Wolf say.

    Every class has the same prior probability.

    Returns
    -------
    sklearn.pipeline.Pipeline
        A classifier.

    Examples
    --------
    >>> from protail.baselines import shrinkage_lda
    >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.1], [1.0, 0.2]], [0, 0, 1, 1]
    >>> shrinkage_lda().fit(X, y).predict([[1.0, 0.0]])
    array([1])
    """
    return make_pipeline(Normalizer(), _UniformLDA(solver="lsqr", shrinkage="auto"))


class _UniformLDA(LinearDiscriminantAnalysis):  # type: ignore[misc]
    """LDA whose priors are uniform over whatever classes there are."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        n_classes = len(np.unique(y))
        self.priors = np.full(n_classes, 1 / n_classes)
        super().fit(X, y)
        return self


def balanced_ridge(alpha: float = 1.0) -> Pipeline:
    """Make ridge regression on labels of -1 and 1, in which every class weighs the same.

    Parameters
    ----------
    alpha : float, default=1.0
        Regularisation.

    Returns
    -------
    sklearn.pipeline.Pipeline
        A classifier.

    Examples
    --------
    >>> from protail.baselines import balanced_ridge
    >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], [0, 0, 1]
    >>> balanced_ridge().fit(X, y).predict([[1.0, 0.0]])
    array([1])
    """
    return make_pipeline(Normalizer(), RidgeClassifier(alpha=alpha, class_weight="balanced"))


def nearest_class_mean() -> Pipeline:
    """Make the classifier of the nearest class mean.

    Returns
    -------
    sklearn.pipeline.Pipeline
        A classifier.

    Examples
    --------
    >>> from protail.baselines import nearest_class_mean
    >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], [0, 0, 1]
    >>> nearest_class_mean().fit(X, y).predict([[1.0, 0.0]])
    array([1])
    """
    return make_pipeline(Normalizer(), NearestCentroid())


def k_nearest_neighbours(n_neighbours: int = 5) -> Pipeline:
    """Make the classifier of the nearest rows, the nearer the more they count.

    Parameters
    ----------
    n_neighbours : int, default=5
        How many rows are asked; no more than there are.

    Returns
    -------
    sklearn.pipeline.Pipeline
        A classifier.

    Examples
    --------
    >>> from protail.baselines import k_nearest_neighbours
    >>> X, y = [[0.0, 1.0], [0.1, 1.0], [1.0, 0.1]], [0, 0, 1]
    >>> k_nearest_neighbours(1).fit(X, y).predict([[1.0, 0.0]])
    array([1])
    """
    return make_pipeline(Normalizer(), KNeighborsClassifier(n_neighbours, weights="distance"))

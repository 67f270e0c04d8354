"""The questions a fitted classifier answers."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from protail.estimator._checks import check_device, check_prior, check_rows, warn_of_zeros
from protail.estimator._features import Features, Placement
from protail.estimator._inference import Inference

Array = NDArray[Any]


class PredictingMixin:
    """Labels, scores, probabilities and distances, from prototypes alone."""

    choices_: dict[str, Any]
    prior: str | ArrayLike
    device: str | torch.device
    classes_: Array
    class_counts_: NDArray[np.int64]
    normalize_: float | None
    feature_scale_: float
    class_means_: Array
    prototypes_: Array
    temperature_: Array | None
    scale_: float
    n_features_in_: int

    def predict(self, X: Any) -> Array:
        """Give the most likely label of each row: with a uniform prior, the nearest prototype's.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels.
        """
        codes = self._inference(X).best()
        labels: Array = self.classes_[codes]
        return labels

    def decision_function(self, X: Any) -> Array:
        """Give calibrated logits, the prior included.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
            For two classes, how much the second one's logit exceeds the first one's.
        """
        inference = self._inference(X)
        return inference.lead() if len(self.classes_) == 2 else inference.scores()

    def predict_proba(self, X: Any) -> Array:
        """Give the probability of each class.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows that sum to 1.
        """
        return self._inference(X).probabilities()

    @overload
    def top_k(
        self, X: Any, k: int = 5, *, return_distance: Literal[False] = False
    ) -> tuple[Array, Array]: ...

    @overload
    def top_k(
        self, X: Any, k: int = 5, *, return_distance: Literal[True]
    ) -> tuple[Array, Array, Array]: ...

    def top_k(
        self, X: Any, k: int = 5, *, return_distance: bool = False
    ) -> tuple[Array, Array] | tuple[Array, Array, Array]:
        """Give the k most likely labels of each row, likeliest first.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.
        k : int, default=5
            How many; all of them where there are fewer classes.
        return_distance : bool, default=False
            Whether to give the distances from their prototypes too.

        Returns
        -------
        labels, probabilities[, distances] : ndarray of shape (n_samples, k)
            What they are, how likely, and how far.
        """
        if not (isinstance(k, (int, np.integer)) and k >= 1):
            raise ValueError(f"k={k!r} is not valid; expected a whole number of at least 1.")
        inference = self._inference(X)
        k = min(int(k), len(self.classes_))
        codes, probabilities, distances = inference.top_k(k)
        if return_distance:
            return self.classes_[codes], probabilities, distances
        return self.classes_[codes], probabilities

    def distances(self, X: Any) -> Array:
        """Measure each row's distance from each prototype, in the space of the prototypes.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Distances; infinite from a class that has had no rows yet.
        """
        return self._inference(X).distances()

    def novelty_score(self, X: Any) -> Array:
        """Say how little each row looks like any known class: how far the nearest mean is.

        Prototypes stand where they tell classes apart; class means stand where the classes are.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Larger for rows that belong to no class.
        """
        return self._inference(X).novelty()

    def _inference(self, X: Any) -> Inference:
        check_is_fitted(self)
        device = check_device(self.device, X)
        rows, n_zeros = check_rows(self, X, reset=False)
        if self.normalize_ is not None:
            warn_of_zeros(n_zeros)
        prior = check_prior(self.prior, self.class_counts_)
        return Inference(self, Features(rows, self._placement, device, keep=False), prior)

    @property
    def _placement(self) -> Placement:
        return Placement(self.normalize_, self.feature_scale_)

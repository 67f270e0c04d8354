"""The questions a fitted classifier answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from protail import ops
from protail.estimator._checks import check_device, check_prior, check_rows, warn_of_zeros
from protail.estimator._features import Features, Placement

Array = NDArray[Any]

_SCORES_AT_A_TIME = 2**22
# Prototypes in float32 whose squares are far from the ends of its range.
_USUAL_SIZES = 1e-15, 1e15


class Inference:
    """Distances, scores and choices of rows under fitted prototypes."""

    def __init__(
        self, fitted: PredictingMixin, features: Features, prior: NDArray[np.float64]
    ) -> None:
        self._fitted = fitted
        self._features = features
        self._dtype = _dtype_for(fitted.prototypes_, features.dtype)
        self._is_seen = fitted.class_counts_ > 0
        self._is_possible = self._is_seen & (prior > 0)
        self._scale = fitted.scale_
        log_prior = np.log(prior[self._is_possible])
        self._highest_log_prior = float(log_prior.max())
        # Zero where it is uniform: no rounding then hides which class is nearer.
        relative = torch.from_numpy(log_prior - self._highest_log_prior)
        self._log_prior = relative.to(features.device, self._dtype)
        self._nearest_wins = not bool(self._log_prior.any())

    @cached_property
    def _possible(self) -> _Places:
        """The prototypes of the classes that may be predicted."""
        return self._places(self._fitted.prototypes_, self._is_possible)

    @cached_property
    def _seen(self) -> _Places:
        """The prototypes of the classes that have had rows."""
        if np.array_equal(self._is_seen, self._is_possible):
            return self._possible
        return self._places(self._fitted.prototypes_, self._is_seen)

    @cached_property
    def _means(self) -> _Places:
        return self._places(self._fitted.class_means_, self._is_seen)

    def _places(self, vectors: Array, members: NDArray[np.bool_]) -> _Places:
        codes = torch.from_numpy(np.flatnonzero(members)).to(self._features.device)
        temperature = self._fitted.temperature_
        if not members.all():
            vectors = vectors[members]
            if temperature is not None and len(temperature) > 1:
                temperature = temperature[members]
        placed = torch.from_numpy(vectors).to(codes.device, self._dtype)
        scale = None if temperature is None else torch.from_numpy(temperature).to(placed)
        return _Places(placed, scale, self._fitted.choices_["distance"], codes, len(members))

    def best(self) -> Array:
        """Give the class code of each row."""
        if self._nearest_wins:
            return self._collect(self._possible.nearest)
        return self._collect(lambda rows: self._scores(rows).argmax(1))

    def scores(self) -> Array:
        """Give calibrated logits with the prior."""
        return self._collect(self._logits)

    def lead(self) -> Array:
        """Give how much the second class's logit exceeds the first one's."""

        def lead(rows: Tensor) -> Tensor:
            scores = self._scores(rows)
            return _held(scores[:, 1] - scores[:, 0])

        return self._collect(lead)

    def probabilities(self) -> Array:
        """Give class probabilities."""
        return self._collect(lambda rows: torch.softmax(self._scores(rows), 1))

    def distances(self) -> Array:
        """Give the distances from all prototypes."""
        return self._collect(self._distances)

    def novelty(self) -> Array:
        """Give the distance from the nearest class mean."""
        return self._collect(lambda rows: _held(self._means.gaps(rows).nearest_b))

    @torch.no_grad()
    def top_k(self, k: int) -> tuple[Array, Array, Array]:
        """Give the codes, probabilities and distances of the k likeliest classes."""
        # Filled piece by piece, as in _collect.
        shape = (len(self._features), k)
        codes = torch.empty(shape, dtype=torch.int64)
        values = torch.empty(shape, dtype=self._dtype)
        distances = torch.empty_like(values)
        begin = 0
        for rows in self._blocks():
            part = slice(begin, begin + len(rows))
            codes[part], values[part], distances[part] = self._top_k(rows, k)
            begin = part.stop
        return codes.numpy(), values.numpy(), distances.numpy()

    def _top_k(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        gaps = self._possible.gaps(rows)
        distances = (
            self._possible.spread(_held(gaps.distances()), torch.inf)
            if self._seen is self._possible
            else self._distances(rows)
        )
        scores = self._possible.spread(self._scores_of(gaps), -torch.inf)
        # Chosen by score: probabilities of classes far away are all 0 and have no order.
        codes = _largest(scores, k)
        return codes, scores.softmax(1).gather(1, codes), distances.gather(1, codes)

    def _scores(self, rows: Tensor) -> Tensor:
        """Give the logits with the prior, less what all logits of a row share."""
        return self._possible.spread(self._scores_of(self._possible.gaps(rows)), -torch.inf)

    def _scores_of(self, gaps: ops.Gaps) -> Tensor:
        return gaps.gap_bc.mul(-0.5 * self._scale).add_(self._log_prior)

    def _logits(self, rows: Tensor) -> Tensor:
        gaps = self._possible.gaps(rows)
        shared_b = gaps.nearest_b.mul(-0.5 * self._scale).add_(self._highest_log_prior)
        logits = _held(self._scores_of(gaps).add_(shared_b.unsqueeze(1)))
        return self._possible.spread(logits, -torch.inf)

    def _distances(self, rows: Tensor) -> Tensor:
        return self._seen.spread(_held(self._seen.gaps(rows).distances()), torch.inf)

    @torch.no_grad()
    def _collect(self, what: Callable[[Tensor], Tensor]) -> Array:
        # Filled piece by piece: small results between large temporaries would tear the heap.
        found = torch.empty(0)
        begin = 0
        for rows in self._blocks():
            part = what(rows)
            if begin == 0:
                found = torch.empty((len(self._features), *part.shape[1:]), dtype=part.dtype)
            found[begin : begin + len(part)] = part
            begin += len(part)
        array: Array = found.numpy()
        return array

    def _blocks(self) -> Iterator[Tensor]:
        step = max(1, _SCORES_AT_A_TIME // len(self._is_seen))
        for _, block in self._features.blocks():
            for rows in torch.split(block, step):
                yield rows.to(self._dtype)


@dataclass(frozen=True)
class _Places:
    """The vectors of some classes, from which distances are measured."""

    vectors: Tensor
    temperature: Tensor | None
    distance: str
    codes: Tensor
    n_classes: int

    def gaps(self, rows: Tensor) -> ops.Gaps:
        return ops.gaps(rows, self.vectors, self.distance, self.temperature)

    def nearest(self, rows: Tensor) -> Tensor:
        return self.codes[
            ops.nearest(rows, self.vectors, distance=self.distance, temperature=self.temperature)
        ]

    def spread(self, numbers: Tensor, other: float) -> Tensor:
        """Put what was found for these classes into a table of all of them."""
        if len(self.codes) == self.n_classes:
            return numbers
        whole = numbers.new_full((len(numbers), self.n_classes), other)
        return whole.index_copy_(1, self.codes, numbers)


def _dtype_for(prototypes: Array, given: torch.dtype) -> torch.dtype:
    """Compute in float64 where the rows ask for it, or squares of prototypes could not be told."""
    if prototypes.dtype != np.float32:
        return torch.float64
    least, most = _USUAL_SIZES
    return given if least <= max(prototypes.max(), -prototypes.min()) <= most else torch.float64


def _held(numbers: Tensor) -> Tensor:
    """Keep numbers inside their dtype: what is larger becomes the largest one."""
    largest = torch.finfo(numbers.dtype).max
    return numbers.clamp_(-largest, largest)


def _largest(scores: Tensor, k: int) -> Tensor:
    """Find the places of the k largest scores of each row, equal ones in their order."""
    n_classes = scores.shape[1]
    if k == 1:
        return scores.argmax(1, keepdim=True)
    values, places = scores.topk(min(k + 1, n_classes), dim=1)
    is_tied = values[:, k - 1] == values[:, k] if k < n_classes else None
    places, order = places[:, :k].sort(dim=1)
    order = values.gather(1, order).sort(dim=1, stable=True, descending=True).indices
    places = places.gather(1, order)
    if is_tied is not None and bool(is_tied.any()):
        whole = scores[is_tied].sort(dim=1, stable=True, descending=True).indices
        places[is_tied] = whole[:, :k]
    return places


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

"""The questions a fitted classifier answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from protail import ops
from protail.estimator._checks import (
    check_device,
    check_labels,
    check_prior,
    check_rows,
    check_weights,
    warn_of_zeros,
)
from protail.estimator._features import Features, Placement, Preparation, Rows, compute_dtype
from protail.estimator._local import Corrections
from protail.estimator._suspicion import Suspicious, suspicious
from protail.estimator._whitened import new_class_weight, space_map

Array = NDArray[Any]

_SCORES_AT_A_TIME = 2**22
# Blocks of rows stay in a CPU's cache, unless classes are so many that they do not stay there too.
_CACHED_BYTES, _MANY_CLASSES = 2**20, 256
# Expectation maximisation of the mix of classes ends after so many steps, or at so small a change.
_MIX_STEPS, _MIX_CHANGE = 200, 1e-5
# Rows that each class is given before any is seen.
_BEFOREHAND = (100.0, 30.0, 10.0, 3.0, 1.0)
# Mixes that go with a power of the class size are tried first, that of the training rows among
# them. A mix must make all rows so much likelier, and one of its own for each class every row.
_SIZE_POWERS, _LEAST_GAIN, _LEAST_GAIN_A_ROW = (-1.0, -0.5, 0.5, 1.0), 3.0, 0.1
_TINY = np.finfo(np.float64).tiny
# Prototypes in float32 whose squares are far from the ends of its range.
_USUAL_SIZES = 1e-15, 1e15


class Inference:
    """Scores and choices of rows under a fitted classifier, a block at a time."""

    def __init__(
        self, fitted: PredictingMixin, features: Features, prior: NDArray[np.float64]
    ) -> None:
        self._fitted = fitted
        self._features = features
        self._dtype = features.dtype
        self._is_seen = fitted.class_counts_ > 0
        self._is_possible = self._is_seen & (prior > 0)
        log_prior = np.log(prior[self._is_possible])
        self._highest_log_prior = float(log_prior.max())
        # Zero where it is uniform: no rounding then hides which class is nearer.
        self._relative_log_prior = torch.from_numpy(log_prior - self._highest_log_prior)

    def scores_of(self, rows: Tensor) -> Tensor:
        """Give the logits with the prior, less what all logits of a row share."""
        raise NotImplementedError

    def logits_of(self, rows: Tensor) -> Tensor:
        """Give the logits with the prior."""
        raise NotImplementedError

    def distances_of(self, rows: Tensor) -> Tensor:
        """Give the distances from all prototypes."""
        raise NotImplementedError

    def novelty_of(self, rows: Tensor) -> Tensor:
        """Say how little rows look like any class."""
        raise NotImplementedError

    def best_of(self, rows: Tensor) -> Tensor:
        """Give the class code of each row, however many there are."""
        parts = [_first_highest(self.scores_of(part)) for part in torch.split(rows, self._step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def lead_of(self, rows: Tensor) -> Tensor:
        """Give how much the second class's logit exceeds the first one's."""
        scores = self.scores_of(rows)
        return _held(scores[:, 1] - scores[:, 0])

    def probabilities_of(self, rows: Tensor) -> Tensor:
        """Give class probabilities."""
        return torch.softmax(self.scores_of(rows), 1)

    @torch.no_grad()
    def top_k(self, k: int) -> tuple[Array, Array, Array]:
        """Give the codes, probabilities and distances of the k likeliest classes."""
        # Filled piece by piece, as in collect.
        shape = (len(self._features), k)
        codes = torch.empty(shape, dtype=torch.int64)
        values = torch.empty(shape, dtype=self._dtype)
        distances = torch.empty_like(values)
        begin = 0
        for rows in self._blocks():
            part = slice(begin, begin + len(rows))
            scores, measured = self._scores_and_distances(rows)
            # Chosen by score: probabilities of classes far away are all 0 and have no order.
            codes[part] = chosen = _largest(scores, k)
            values[part] = scores.softmax(1).gather(1, chosen)
            distances[part] = measured.gather(1, chosen)
            begin = part.stop
        return codes.numpy(), values.numpy(), distances.numpy()

    def _scores_and_distances(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores_of(rows), self.distances_of(rows)

    @torch.no_grad()
    def collect(self, what: Callable[[Tensor], Tensor], *, whole: bool = False) -> Array:
        """Put together what is found for each block, of as many rows as can be with ``whole``."""
        # Filled piece by piece: small results between large temporaries would tear the heap.
        found = torch.empty(0)
        begin = 0
        for rows in self._blocks(whole=whole):
            part = what(rows)
            if begin == 0:
                found = torch.empty((len(self._features), *part.shape[1:]), dtype=part.dtype)
            found[begin : begin + len(part)] = part
            begin += len(part)
        array: Array = found.numpy()
        return array

    @property
    def _block_bytes(self) -> tuple[int, ...]:
        """Say how large blocks are, if not as large as they come."""
        return ()

    @property
    def _step(self) -> int:
        return max(1, _SCORES_AT_A_TIME // len(self._is_seen))

    def _blocks(self, *, whole: bool = False) -> Iterator[Tensor]:
        for _, block in self._features.blocks(*self._block_bytes):
            for rows in [block] if whole else torch.split(block, self._step):
                yield rows.to(self._dtype)

    def _spread(self, numbers: Tensor, members: NDArray[np.bool_], other: float) -> Tensor:
        """Put what was found for some classes into a table of all of them."""
        if members.all():
            return numbers
        codes = torch.from_numpy(np.flatnonzero(members)).to(numbers.device)
        whole = numbers.new_full((len(numbers), len(members)), other)
        return whole.index_copy_(1, codes, numbers)


class _Logits(NamedTuple):
    """Logits of some classes: linear in the prepared row, and corrected near landmarks."""

    weight_dc: Tensor
    bias_c: Tensor
    corrections: Corrections | None

    def __call__(self, rows: Tensor) -> Tensor:
        """Score prepared rows."""
        logits_bc = torch.addmm(self.bias_c, rows, self.weight_dc)
        return logits_bc if self.corrections is None else logits_bc.add_(self.corrections(rows))


class LinearInference(Inference):
    """Answers of prototypes in a whitened space."""

    @property
    def _block_bytes(self) -> tuple[int, ...]:
        cached = self._features.device.type == "cpu" and len(self._is_seen) < _MANY_CLASSES
        return (_CACHED_BYTES,) if cached else ()

    def _logits_of(self, members: NDArray[np.bool_]) -> _Logits:
        """Make the logits of some classes, without a prior."""

        def taken(array: Array) -> Tensor:
            part = torch.from_numpy(array if members.all() else array[members])
            return part.to(self._features.device, self._dtype)

        fitted, corrections = self._fitted, None
        if fitted.landmarks_ is not None and fitted.local_coef_ is not None:
            landmark_md = torch.from_numpy(fitted.landmarks_).to(self._features.device, self._dtype)
            width = fitted.choices_["local_width"]
            corrections = Corrections(landmark_md, width, taken(fitted.local_coef_))
        return _Logits(taken(fitted.coef_).mT, taken(fitted.intercept_), corrections)

    @cached_property
    def _possible(self) -> _Logits:
        """The logits of the possible classes, with the prior."""
        logits = self._logits_of(self._is_possible)
        prior_c = self._relative_log_prior.to(logits.bias_c)
        return logits._replace(bias_c=logits.bias_c + prior_c)

    @cached_property
    def _seen(self) -> _Logits:
        """The logits of the classes that have had rows, without a prior."""
        return self._logits_of(self._is_seen)

    def scores_of(self, rows: Tensor) -> Tensor:
        scores_bc = self._possible(rows)
        if not math.isfinite(scores_bc.sum()):
            far_b = ~scores_bc.isfinite().all(1)
            scores_bc[far_b] = _held(_far_scores(rows[far_b], self._possible.weight_dc))
        return self._spread(scores_bc, self._is_possible, -torch.inf)

    def best_of(self, rows: Tensor) -> Tensor:
        weight_dc, bias_c, corrections = self._possible
        linear = corrections is None
        found_b = ops.highest(rows, weight_dc.mT, bias_c) if linear else None
        if found_b is None:
            return super().best_of(rows)
        far_b = found_b < 0
        codes = torch.from_numpy(np.flatnonzero(self._is_possible))
        best_b = codes[found_b]
        if bool(far_b.any()):
            best_b[far_b] = super().best_of(rows[far_b])
        return best_b

    def logits_of(self, rows: Tensor) -> Tensor:
        return _held(self.scores_of(rows) + self._highest_log_prior)

    @property
    def _step(self) -> int:
        corrections = self._possible.corrections
        n_landmarks = 0 if corrections is None else len(corrections.landmark_md)
        return max(1, _SCORES_AT_A_TIME // (len(self._is_seen) + n_landmarks))

    @cached_property
    def _map(self) -> Tensor:
        return space_map(self._fitted, self._features.device)

    def _mapped(self, rows: Tensor) -> Tensor:
        """Take rows to the space of the prototypes."""
        z_db = torch.linalg.solve_triangular(self._map, rows.to(self._map).mT, upper=False)
        z_bd: Tensor = z_db.mT
        return z_bd

    @cached_property
    def _prototypes(self) -> Tensor:
        prototypes_cd = torch.from_numpy(self._fitted.prototypes_[self._is_seen])
        return self._mapped(prototypes_cd.to(self._map.device))

    @cached_property
    def _centre(self) -> Tensor:
        return self._mapped(torch.from_numpy(self._fitted.space_centre_).to(self._map).unsqueeze(0))

    def distances_of(self, rows: Tensor) -> Tensor:
        found = ops.distances(self._mapped(rows), self._prototypes, "euclidean")
        return self._spread(_held(found.to(self._dtype)), self._is_seen, torch.inf)

    def novelty_of(self, rows: Tensor) -> Tensor:
        length_b = (self._mapped(rows) - self._centre).square().sum(1)
        fitted = self._fitted
        weight = new_class_weight(fitted.scale_, fitted.choices_["shrinkage"])
        known_b = self._seen(rows).amax(1)
        return _held((weight * length_b).to(self._dtype) - known_b)

    def rejects(self, rows: Tensor) -> Tensor:
        """Say which rows are too new or too doubtful to be named."""
        scores_bc, choices = self.scores_of(rows), self._fitted.choices_
        doubt_b = 1 - scores_bc.softmax(1).amax(1)
        rejected_b: Tensor = self.novelty_of(rows) > choices["novelty_limit"]
        rejected_b |= doubt_b > choices["doubt_limit"]
        return rejected_b


class DistanceInference(Inference):
    """Answers of the paper's prototypes: distances from each, perhaps with temperatures."""

    def __init__(
        self, fitted: PredictingMixin, features: Features, prior: NDArray[np.float64]
    ) -> None:
        super().__init__(fitted, features, prior)
        self._dtype = _dtype_for(fitted.prototypes_, features.dtype)
        self._scale = fitted.scale_
        self._log_prior = self._relative_log_prior.to(features.device, self._dtype)
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
        return _Places(placed, scale, self._fitted.choices_["distance"], codes)

    def best_of(self, rows: Tensor) -> Tensor:
        return self._possible.nearest(rows) if self._nearest_wins else super().best_of(rows)

    def novelty_of(self, rows: Tensor) -> Tensor:
        return _held(self._means.gaps(rows).nearest_b)

    def _scores_and_distances(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        gaps = self._possible.gaps(rows)
        scores = self._spread(self._scores_of(gaps), self._is_possible, -torch.inf)
        if self._seen is not self._possible:
            return scores, self.distances_of(rows)
        return scores, self._spread(_held(gaps.distances()), self._is_seen, torch.inf)

    def scores_of(self, rows: Tensor) -> Tensor:
        scores = self._scores_of(self._possible.gaps(rows))
        return self._spread(scores, self._is_possible, -torch.inf)

    def _scores_of(self, gaps: ops.Gaps) -> Tensor:
        return gaps.gap_bc.mul(-0.5 * self._scale).add_(self._log_prior)

    def logits_of(self, rows: Tensor) -> Tensor:
        gaps = self._possible.gaps(rows)
        shared_b = gaps.nearest_b.mul(-0.5 * self._scale).add_(self._highest_log_prior)
        logits = _held(self._scores_of(gaps).add_(shared_b.unsqueeze(1)))
        return self._spread(logits, self._is_possible, -torch.inf)

    def distances_of(self, rows: Tensor) -> Tensor:
        return self._spread(_held(self._seen.gaps(rows).distances()), self._is_seen, torch.inf)


@dataclass(frozen=True)
class _Places:
    """The vectors of some classes, from which distances are measured."""

    vectors: Tensor
    temperature: Tensor | None
    distance: str
    codes: Tensor

    def gaps(self, rows: Tensor) -> ops.Gaps:
        return ops.gaps(rows, self.vectors, self.distance, self.temperature)

    def nearest(self, rows: Tensor) -> Tensor:
        return self.codes[
            ops.nearest(rows, self.vectors, distance=self.distance, temperature=self.temperature)
        ]


def class_mix(probabilities_nc: Array, counts_c: Array) -> Array:
    """Estimate the mix of classes from probabilities under a uniform mix.

    First a mix that goes with class size, if that makes the rows clearly likelier than a uniform
    one; from there, class by class, if each half of the rows is much likelier under the mix of the
    other. Less than that is what errors of the probabilities alone bring about.
    """
    seen_c, n_rows = counts_c > 0, len(probabilities_nc)
    log_count_c = np.log(np.where(seen_c, counts_c, 1))
    uniform_c = seen_c / seen_c.sum()
    start_c, clear = uniform_c, _log_likelihood(probabilities_nc, uniform_c) + _LEAST_GAIN
    for power in _SIZE_POWERS:
        mix_c = seen_c * np.exp(power * (log_count_c - log_count_c.max()))
        mix_c /= mix_c.sum()
        if (found := _log_likelihood(probabilities_nc, mix_c)) > clear:
            start_c, clear = mix_c, found
    halves = probabilities_nc[::2], probabilities_nc[1::2]
    most, beforehand = max(_LEAST_GAIN, _LEAST_GAIN_A_ROW * n_rows), np.inf
    for tried in _BEFOREHAND:
        gain = -_log_likelihood(probabilities_nc, start_c)
        for one_nc, other_nc in (halves, halves[::-1]):
            gain += _log_likelihood(one_nc, _likeliest_mix(other_nc, start_c, tried))
        if gain > most:
            most, beforehand = gain, tried
    # Whole, the rows are twice as many as in either half: so is what balances them.
    return _likeliest_mix(probabilities_nc, start_c, 2 * beforehand)


def _log_likelihood(probabilities_nc: Array, mix_c: Array) -> float:
    return float(np.log(np.maximum(probabilities_nc @ mix_c, _TINY)).sum())


def _likeliest_mix(probabilities_nc: Array, start_c: Array, beforehand: float) -> Array:
    """Maximise the likelihood where so many rows a class are given beforehand, mixed as first."""
    mix_c: Array = start_c
    for _ in range(_MIX_STEPS if np.isfinite(beforehand) else 0):
        # One division a row: what each class has of a row is never written down.
        share_n = 1 / np.maximum(probabilities_nc @ mix_c, _TINY)
        rows_c = mix_c * (share_n @ probabilities_nc) + beforehand * (start_c > 0).sum() * start_c
        before_c, mix_c = mix_c, rows_c / rows_c.sum()
        if np.abs(mix_c - before_c).max() < _MIX_CHANGE:
            break
    return mix_c


def _first_highest(scores: Tensor) -> Tensor:
    """Find the first of the highest scores of each row; numpy's argmax takes half as long."""
    return scores.argmax(1) if scores.is_cuda else torch.from_numpy(scores.numpy().argmax(1))


def _far_scores(rows: Tensor, weight_dc: Tensor) -> Tensor:
    """Score rows so far away that their products overflow: relative to the best class."""
    size_b1 = rows.abs().amax(1, keepdim=True)
    scores_bc = (rows / size_b1) @ weight_dc
    return (scores_bc - scores_bc.amax(1, keepdim=True)) * size_b1


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
    preparation_: dict[str, Array]
    coef_: Array
    intercept_: Array
    covariance_: Array
    space_centre_: Array
    landmarks_: Array | None
    local_coef_: Array | None
    n_features_in_: int

    def predict(self, X: Any) -> Array:
        """Give the most likely label of each row.

        With ``method="paper"`` and a uniform prior, it is that of the nearest prototype.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Labels; None where ``reject`` was set and a row is too new or too doubtful.
        """
        inference = self._inference(X)
        codes = inference.collect(inference.best_of, whole=True)
        labels: Array = self.classes_[codes]
        if isinstance(inference, LinearInference) and self.choices_["novelty_limit"] is not None:
            labels = labels.astype(object)
            labels[inference.collect(inference.rejects)] = None
        return labels

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Give the fraction of rows that get their label; a rejected row counts as wrong.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.
        y : array-like of shape (n_samples,)
            Their labels.
        sample_weight : array-like of shape (n_samples,), optional
            How much each row counts.

        Returns
        -------
        float
            From 0 to 1.
        """
        predicted = self.predict(X)
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        return float(np.average(predicted == check_labels(y, len(predicted)), weights=weights))

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
        two = len(self.classes_) == 2
        return inference.collect(inference.lead_of if two else inference.logits_of)

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
        inference = self._inference(X)
        return inference.collect(inference.probabilities_of)

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
        inference = self._inference(X)
        return inference.collect(inference.distances_of)

    def novelty_score(self, X: Any) -> Array:
        """Say how little each row looks like any known class.

        In a whitened space: how much likelier the row is in a class that nobody has seen, which
        lies where the known ones do, than in the likeliest known class (the logarithm of the
        ratio, sharpened as the logits are, up to a constant). With the paper's method: how far the
        nearest class mean is.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Larger for rows that belong to no class.
        """
        inference = self._inference(X, "uniform")
        return inference.collect(inference.novelty_of)

    def suspicious_rows(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Suspicious:
        """Find training rows whose label another class explains better.

        Each row is scored by the other rows, so that a wrong label cannot vouch for itself. The
        only row of a class cannot be told from a wrong one and is never listed. Not for
        ``method="paper"``.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            The rows that were fitted.
        y : array-like of shape (n_samples,)
            Their labels.
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counted in the fit.

        Returns
        -------
        rows, suggested, log_odds : ndarray
            Of the rows that another class explains better, most suspicious first: their places in
            ``X``, that class, and the logarithm of how much likelier it is.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from protail import PrototypeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> y[3] = 2
        >>> found = PrototypeClassifier().fit(X, y).suspicious_rows(X, y)
        >>> int(found.rows[0]), int(found.suggested[0])
        (3, 0)
        """
        check_is_fitted(self)
        if self.choices_["method"] == "paper":
            raise ValueError(
                "the classifier was learned by method='paper', which does not know its rows "
                "without each other; expected a whitened space. Set method='whitened' and fit."
            )
        device = check_device(self.device, X)
        rows, _ = check_rows(self, X, reset=False)
        labels = check_labels(y, len(rows))
        weights = check_weights(sample_weight, len(rows), "whitened")
        codes = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        if (unknown := self.classes_[codes] != labels).any():
            raise ValueError(
                f"y has the label {labels[unknown].tolist()[0]!r}, which the classifier has not "
                "learned; expected the labels it was fitted with."
            )
        return suspicious(self, self._placed(rows, device), codes, weights)

    def estimate_prior(self, X: Any) -> Array:
        """Estimate the mix of classes in rows without labels.

        It is uniform unless rows are clearly likelier under a mix that goes with class size, as
        that of the training rows does; from there it moves class by class, by expectation
        maximisation, if each half of the rows is much likelier under the mix of the other. A few
        rows leave it uniform. ``prior="estimate"`` uses it for the rows of each call.

        Parameters
        ----------
        X : array-like, tensor or frame of shape (n_samples, n_features)
            Feature rows, as they come in use.

        Returns
        -------
        ndarray of shape (n_classes,)
            A fraction for each class; they sum to 1.

        References
        ----------
        M. Saerens, P. Latinne, C. Decaestecker: Adjusting the Outputs of a Classifier to New a
        Priori Probabilities: A Simple Procedure. Neural Computation, 2002.
        """
        inference = self._inference(X, "uniform")
        return class_mix(inference.collect(inference.probabilities_of), self.class_counts_)

    def _inference(self, X: Any, prior: str | ArrayLike | None = None) -> Inference:
        check_is_fitted(self)
        device = check_device(self.device, X)
        rows, n_zeros = check_rows(self, X, reset=False)
        if self._keeps_zeros:
            warn_of_zeros(n_zeros)
        prior = self.prior if prior is None else prior
        fractions = check_prior(prior, self.class_counts_)
        if isinstance(prior, str) and prior == "estimate":
            fractions = self.estimate_prior(X)
        kind = DistanceInference if self.choices_["method"] == "paper" else LinearInference
        return kind(self, self._placed(rows, device, keep=False), fractions)

    def _placed(self, rows: Rows, device: torch.device, *, keep: bool = True) -> Features:
        """Rows as they are compared with prototypes."""
        placement: Placement | Preparation = Placement(self.normalize_, self.feature_scale_)
        if self.choices_["method"] != "paper":
            placement = self._preparation.to(device, compute_dtype(rows))
        return Features(rows, placement, device, keep=keep)

    @property
    def _keeps_zeros(self) -> bool:
        if self.choices_["method"] == "paper":
            return self.normalize_ is not None
        return self._preparation.keeps_zeros

    @property
    def _preparation(self) -> Preparation:
        return Preparation.from_arrays(self.choices_["preparation"], self.preparation_)

"""What a fitted classifier says about rows, a block of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protail import ops
from protail.estimator._features import Features

if TYPE_CHECKING:
    from protail.estimator._predicting import PredictingMixin

Array = NDArray[Any]

_SCORES_AT_A_TIME = 2**22


class Inference:
    """Distances, scores and choices of rows under fitted prototypes.

    Parameters
    ----------
    fitted : PredictingMixin
        Whose prototypes, temperature and scale to use.
    features : Features
        The rows, placed as its training rows were.
    prior : ndarray of shape (n_classes,)
        The mix of classes expected.
    """

    def __init__(
        self, fitted: PredictingMixin, features: Features, prior: NDArray[np.float64]
    ) -> None:
        prototypes = torch.from_numpy(fitted.prototypes_).to(features.device)
        self._fitted = fitted
        self._features = features
        self._prototypes = prototypes.to(torch.promote_types(prototypes.dtype, features.dtype))
        self._distance = fitted.choices_["distance"]
        self._temperature = (
            None
            if fitted.temperature_ is None
            else torch.from_numpy(fitted.temperature_).to(self._prototypes)
        )
        self._scale = fitted.scale_
        seen = fitted.class_counts_ > 0
        with np.errstate(divide="ignore"):
            log_prior = np.where(seen, np.log(prior), -np.inf)
        self._log_prior = torch.from_numpy(log_prior).to(self._prototypes)
        self._unseen = torch.from_numpy(~seen).to(features.device)
        self._nearest_wins = bool(seen.all() and np.all(prior == prior[0]))

    def best(self) -> Array:
        """Give the class code of each row."""
        if not self._nearest_wins:
            return self._collect(lambda rows: self._scores(rows).argmax(1))
        return self._collect(
            lambda rows: ops.nearest(
                rows, self._prototypes, distance=self._distance, temperature=self._temperature
            )
        )

    def scores(self) -> Array:
        """Give calibrated logits with the prior."""
        return self._collect(self._scores)

    def probabilities(self) -> Array:
        """Give class probabilities."""
        return self._collect(lambda rows: torch.softmax(self._scores(rows), 1))

    def distances(self) -> Array:
        """Give the distances from all prototypes."""
        return self._collect(lambda rows: self._distances(rows, self._prototypes))

    def novelty(self) -> Array:
        """Give the distance from the nearest class mean."""
        means = torch.from_numpy(self._fitted.class_means_).to(self._prototypes)
        return self._collect(lambda rows: self._distances(rows, means).amin(1))

    @torch.no_grad()
    def top_k(self, k: int) -> tuple[Array, Array, Array]:
        """Give the codes, probabilities and distances of the k likeliest classes."""
        # Filled piece by piece, as in _collect.
        shape = (len(self._features), k)
        codes = torch.empty(shape, dtype=torch.int64)
        values = torch.empty(shape, dtype=self._prototypes.dtype)
        distances = torch.empty_like(values)
        begin = 0
        for rows in self._blocks():
            part = slice(begin, begin + len(rows))
            codes[part], values[part], distances[part] = self._top_k(rows, k)
            begin = part.stop
        return codes.numpy(), values.numpy(), distances.numpy()

    def _top_k(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        logits = self._logits(rows)
        scores = logits * self._scale + self._log_prior
        # Chosen by score: probabilities of classes far away are all 0 and have no order.
        best, codes = scores.topk(k, dim=1)
        probabilities = (best - scores.logsumexp(1, keepdim=True)).exp()
        distances = -2 * logits.gather(1, codes)
        return codes, probabilities, distances.masked_fill_(self._unseen[codes], torch.inf)

    def _logits(self, rows: Tensor) -> Tensor:
        return ops.logits(rows, self._prototypes, self._distance, self._temperature)

    def _scores(self, rows: Tensor) -> Tensor:
        return self._logits(rows).mul_(self._scale).add_(self._log_prior)

    def _distances(self, rows: Tensor, places: Tensor) -> Tensor:
        found = ops.distances(rows, places, self._distance, self._temperature)
        return found.masked_fill_(self._unseen, torch.inf)

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
        step = max(1, _SCORES_AT_A_TIME // len(self._prototypes))
        for _, block in self._features.blocks():
            yield from torch.split(block, step)

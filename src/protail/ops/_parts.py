"""What a softmax or a nearest-class search over some of the classes leaves behind.

Chunks, kernels and shards each see only some classes. Each leaves parts, and parts merge in any
order and any grouping into what one pass over all classes would have left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NO_CLASS = torch.iinfo(torch.int64).max


class Parts(NamedTuple):
    """Everything the loss needs to know about some of the classes.

    Parameters
    ----------
    peak_b : Tensor
        Largest logit of each row; ``-inf`` where there was no class.
    total_b : Tensor
        Sum of ``exp(logit - peak)``.
    target_b : Tensor
        Logit of the row's target class; ``-inf`` where it is not among these classes.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import Parts
    >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
    >>> left = Parts.of(logits[:, :2], target_b=torch.tensor([2.0]))
    >>> right = Parts.of(logits[:, 2:])
    >>> left.merge(right).loss()
    tensor([1.4076])
    """

    peak_b: Tensor
    total_b: Tensor
    target_b: Tensor

    @classmethod
    def of(cls, logits_bc: Tensor, target_b: Tensor | None = None) -> Parts:
        """Summarise the logits of some classes.

        Parameters
        ----------
        logits_bc : Tensor
            Logits; ``-inf`` hides a class, and there may be no class at all.
        target_b : Tensor, optional
            Logit of the target class, where it is among these.

        Returns
        -------
        Parts
            Their summary.
        """
        missing_b = logits_bc.new_full(logits_bc.shape[:1], -torch.inf)
        target_b = missing_b if target_b is None else target_b
        if logits_bc.shape[1] == 0:
            return cls(missing_b, torch.zeros_like(missing_b), target_b)
        peak_b = logits_bc.amax(1)
        total_b = (logits_bc - _shift(peak_b).unsqueeze(1)).exp_().sum(1)
        return cls(peak_b, total_b, target_b)

    def merge(self, other: Parts) -> Parts:
        """Join two summaries of different classes: associative and commutative.

        Parameters
        ----------
        other : Parts
            The summary of other classes for the same rows.

        Returns
        -------
        Parts
            The summary of both.
        """
        peak_b = torch.maximum(self.peak_b, other.peak_b)
        shift_b = _shift(peak_b)
        total_b = self.total_b * (self.peak_b - shift_b).exp()
        total_b += other.total_b * (other.peak_b - shift_b).exp()
        return Parts(peak_b, total_b, torch.maximum(self.target_b, other.target_b))

    def log_total(self) -> Tensor:
        """Give the logarithm of the softmax's denominator.

        Returns
        -------
        Tensor
            One number a row; ``-inf`` where there was no class.
        """
        return self.total_b.log() + _shift(self.peak_b)

    def loss(self) -> Tensor:
        """Give the cross-entropy of each row, once all classes are merged.

        Returns
        -------
        Tensor
            One number a row.
        """
        return self.log_total() - self.target_b


def _shift(peak_b: Tensor) -> Tensor:
    """Keep ``-inf - -inf`` out of the exponent: a row without classes shifts by nothing."""
    return peak_b.masked_fill(peak_b == -torch.inf, 0)


class TopK(NamedTuple):
    """The k nearest of some classes, nearest first, equal distances by class index.

    Parameters
    ----------
    distances_bk : Tensor
        Distances, ascending; ``inf`` where there were fewer than k classes.
    classes_bk : Tensor
        Their class indices.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import TopK
    >>> left = TopK(torch.tensor([[0.5, 2.0]]), torch.tensor([[3, 0]]))
    >>> right = TopK(torch.tensor([[0.5, 0.7]]), torch.tensor([[1, 2]]))
    >>> left.merge(right).classes_bk
    tensor([[1, 3]])
    """

    distances_bk: Tensor
    classes_bk: Tensor

    @classmethod
    def of_pairs(
        cls, distances_p: Tensor, rows_p: Tensor, classes_p: Tensor, n_rows: int, k: int
    ) -> TopK:
        """Choose from a list of (row, class) pairs.

        Parameters
        ----------
        distances_p, rows_p, classes_p : Tensor
            Distance, row and class of each pair.
        n_rows, k : int
            Rows to give, and classes to give a row.

        Returns
        -------
        TopK
            Padded with ``inf`` where a row has fewer than k pairs.
        """
        order_p = classes_p.argsort(stable=True)
        order_p = order_p[distances_p[order_p].argsort(stable=True)]
        order_p = order_p[rows_p[order_p].argsort(stable=True)]
        row_p = rows_p[order_p]
        ends_b = torch.bincount(row_p, minlength=n_rows).cumsum(0)
        starts_b = torch.cat([ends_b.new_zeros(1), ends_b[:-1]])
        rank_p = torch.arange(len(row_p), device=row_p.device) - starts_b[row_p]
        kept_p = rank_p < k
        place = (row_p[kept_p], rank_p[kept_p])
        order_p = order_p[kept_p]
        distances_bk = distances_p.new_full((n_rows, k), torch.inf)
        classes_bk = classes_p.new_full((n_rows, k), NO_CLASS)
        distances_bk[place] = distances_p[order_p]
        classes_bk[place] = classes_p[order_p]
        return cls(distances_bk, classes_bk)

    def merge(self, other: TopK) -> TopK:
        """Join the nearest of different classes: associative and commutative.

        Parameters
        ----------
        other : TopK
            The nearest of other classes for the same rows, of the same k.

        Returns
        -------
        TopK
            The k nearest of both.
        """
        k = self.distances_bk.shape[1]
        distances = torch.cat([self.distances_bk, other.distances_bk], dim=1)
        classes = torch.cat([self.classes_bk, other.classes_bk], dim=1)
        classes, by_class = classes.sort(dim=1)
        distances, by_distance = distances.gather(1, by_class).sort(dim=1, stable=True)
        return TopK(distances[:, :k], classes.gather(1, by_distance)[:, :k])

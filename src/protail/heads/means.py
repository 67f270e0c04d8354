"""Class means of large arrays, a slice of rows at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protail.ops import add_rows_

# Bytes of float64 rows that are added up at a time.
_SLICE_BYTES = 16 * 2**20


def class_means(
    features: Any,
    labels: Any,
    n_classes: int | None = None,
    *,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Average the rows of each class, in float64, without copying the array.

    Parameters
    ----------
    features : Tensor or numpy array
        One vector a row; may be memory-mapped.
    labels : Tensor or numpy array
        Class index of each row, from 0.
    n_classes : int, optional
        Number of classes; by default one more than the largest label.
    transform : callable, optional
        Applied to every slice of rows first.

    Returns
    -------
    Tensor
        (classes, channels), float64, on the features' device.

    Examples
    --------
    >>> import torch
    >>> from protail.heads import class_means
    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
    tensor([[2.],
            [5.]], dtype=torch.float64)
    """
    if len(np.shape(features)) != 2:
        raise ValueError(
            f"features has shape {tuple(np.shape(features))}; "
            "expected two dimensions, one vector a row."
        )
    device = features.device if isinstance(features, Tensor) else torch.device("cpu")
    index_n = _checked_labels(labels, len(features), n_classes).to(device)
    n_classes = int(index_n.max()) + 1 if n_classes is None else n_classes
    count_c = torch.bincount(index_n, minlength=n_classes)
    if not bool(count_c.all()):
        empty = count_c.eq(0).nonzero().squeeze(1)[:5].tolist()
        raise ValueError(
            f"labels has no row of class {', '.join(map(str, empty))}; expected at least one row "
            f"of each of the {n_classes} classes, because a class without rows has no mean."
        )
    sum_cd = torch.zeros(n_classes, features.shape[1], dtype=torch.float64, device=device)
    step = max(1, _SLICE_BYTES // (8 * max(1, features.shape[1])))
    for start in range(0, len(features), step):
        rows_nd = _as_tensor(features[start : start + step])
        rows_nd = rows_nd if transform is None else transform(rows_nd)
        add_rows_(sum_cd, index_n[start : start + step], rows_nd.to(torch.float64))
    return sum_cd / count_c.unsqueeze(1)


def _checked_labels(labels: Any, n_rows: int, n_classes: int | None) -> Tensor:
    index_n = _as_tensor(labels)
    if index_n.shape != (n_rows,):
        raise ValueError(
            f"labels has shape {tuple(index_n.shape)}; expected ({n_rows},), one a row of features."
        )
    if index_n.is_floating_point() or index_n.is_complex():
        raise TypeError(f"labels has dtype {index_n.dtype}; expected integer class indices.")
    if n_rows == 0:
        raise ValueError("features has no rows; expected at least one of each class.")
    low, high = int(index_n.min()), int(index_n.max())
    if low < 0 or (n_classes is not None and high >= n_classes):
        end = "" if n_classes is None else f" to {n_classes - 1}"
        raise ValueError(f"labels runs from {low} to {high}; expected class indices from 0{end}.")
    return index_n.long()


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    return torch.tensor(np.asarray(values))  # a copy: the array may be read-only

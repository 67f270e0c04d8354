"""Distances, logits and loss in plain differentiable torch: the form all others must equal."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from protail.ops._arguments import check_inputs, compute_dtype
from protail.ops._gaps import measured
from protail.ops._precision import full_precision, own_temperature, take_rows, whole_products
from protail.ops._space import Inputs
from protail.ops.distance import Distance, as_distance


def distances(
    x: Tensor,
    prototypes: Tensor,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    *,
    target: Tensor | None = None,
) -> Tensor:
    """Measure the distance of every row from every prototype.

    Every entry is within 1e-4 of its row's largest distance, in float32 and with features far
    from the origin too. With gradients (or inside ``torch.compile`` or a captured graph), where
    shapes may not depend on data, entries that small come out at their rounding error instead,
    and only the target class, if ``target`` tells it, is recomputed by subtraction.

    Parameters
    ----------
    x : Tensor
        Feature vectors (batch, channels), of any floating dtype.
    prototypes : Tensor
        One a class (classes, channels).
    distance : str or Distance
        ``"euclidean"``, ``"sqeuclidean"``, ``"cosine"``, or an object: see `protail.ops.distance`.
    temperature : Tensor, optional
        Positive: (1, channels), (classes, 1) or (classes, channels). Divides each squared
        difference; for cosine both vectors are divided by its root first.
    target : Tensor, optional
        Class index of each row, whose distance is then computed by subtraction.

    Returns
    -------
    Tensor
        (batch, classes), float64 if an input is, otherwise float32.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> x = torch.tensor([[3.0, 0.0]])
    >>> prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> distances(x, prototypes)
    tensor([[3., 4.]])
    >>> distances(x, prototypes, "sqeuclidean", torch.tensor([[1.0, 2.0]]))
    tensor([[9., 8.]])
    """
    distance = as_distance(distance)
    temperature = check_inputs(x, prototypes, distance, temperature)
    dtype = compute_dtype(x, prototypes, temperature)
    # Once, here: gradients then add up in this dtype and are rounded to the inputs' at the end.
    x, prototypes = x.to(dtype), prototypes.to(dtype)
    temperature = None if temperature is None else temperature.to(dtype)
    tracked = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad
        for tensor in (x, prototypes, temperature, *distance.tensors())
    )
    measurable = not tracked and _shapes_may_depend_on_data(x)
    with whole_products(x.device) if measurable else full_precision(x.device):
        space = distance.space(distance, x, prototypes, temperature, any_length=measurable)
        if measurable:
            distance_bc = measured(space, Inputs(x, prototypes, temperature)).distances()
        else:
            placed = space.rows(x, temperature), space.classes(prototypes, temperature)
            distance_bc = space.distances(*placed, floor=tracked)
        if temperature is not None and space.scheme is None:
            # Without effect, but not unused: its gradient is zero rather than missing.
            distance_bc = distance_bc + 0 * temperature.mT
        if target is None:
            return distance_bc
        own_b = space.pairs(x, take_rows(prototypes, target), own_temperature(temperature, target))
        return distance_bc.scatter(1, target.unsqueeze(1), own_b.unsqueeze(1))


def _shapes_may_depend_on_data(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def logits(
    x: Tensor,
    prototypes: Tensor,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    *,
    target: Tensor | None = None,
) -> Tensor:
    """Give the classifier's logits: minus half the distances.

    Parameters
    ----------
    x, prototypes, distance, temperature, target
        As in `distances`.

    Returns
    -------
    Tensor
        (batch, classes), float64 if an input is, otherwise float32.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import logits
    >>> logits(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[-1.5000, -2.0000]])
    """
    return -0.5 * distances(x, prototypes, distance, temperature, target=target)


def loss(
    x: Tensor,
    prototypes: Tensor,
    target: Tensor,
    *,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    adjustment: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Give the cross-entropy of the distance logits.

    Parameters
    ----------
    x, prototypes, distance, temperature
        As in `distances`.
    target : Tensor
        Class index of each row.
    adjustment : Tensor, optional
        Added to every row of logits: one number a class.
    reduction : str
        ``"mean"``, ``"sum"`` or ``"none"``.

    Returns
    -------
    Tensor
        A number, or one a row for ``"none"``.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import reference
    >>> x, prototypes = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> reference.loss(x, prototypes, torch.tensor([0]))
    tensor(0.4741)
    """
    scores_bc = logits(x, prototypes, distance, temperature, target=target)
    if adjustment is not None:
        scores_bc = scores_bc + adjustment.to(scores_bc.dtype)
    # Cross-entropy of logits in one call: also under autocast, which would run it in float32.
    return F.cross_entropy(scores_bc, target, reduction=reduction)

"""The loss in whichever form is fastest and fits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from protail._messages import unknown_name
from protail.ops import chunked, fused, reference
from protail.ops._arguments import check_inputs, check_target, compute_dtype, scheme_of
from protail.ops._memory import Blocks
from protail.ops.distance.base import Distance, as_distance

_REDUCTIONS = ("mean", "none", "sum")


def loss(
    x: Tensor,
    prototypes: Tensor,
    target: Tensor,
    *,
    distance: str | Distance = "euclidean",
    temperature: Tensor | None = None,
    adjustment: Tensor | None = None,
    reduction: str = "mean",
    memory_budget: int | None = None,
) -> Tensor:
    """Give the cross-entropy of the distance logits, and a gradient bounded as they are.

    With Euclidean distances and no temperature the gradient on a prototype has length
    ``(1 - p) / 2`` for the target class and ``p / 2`` for any other, however far away the row is.

    Parameters
    ----------
    x : Tensor
        Feature vectors (batch, channels), of any floating dtype.
    prototypes : Tensor
        One a class (classes, channels).
    target : Tensor
        Class index of each row.
    distance : str or Distance
        ``"euclidean"``, ``"sqeuclidean"``, ``"cosine"``, or an object: see `protail.ops.distance`.
    temperature : Tensor, optional
        Positive: (1, channels), (classes, 1) or (classes, channels).
    adjustment : Tensor, optional
        Added to every row of logits: one number a class.
    reduction : str
        ``"mean"``, ``"sum"`` or ``"none"``.
    memory_budget : int, optional
        Bytes to use at most beside inputs and gradients; by default `MEMORY_BUDGET`, and on a GPU
        half of what is free there. Inside ``torch.compile`` the compiler plans memory and the
        budget is not kept.

    Returns
    -------
    Tensor
        A number, or one a row for ``"none"``.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import loss
    >>> x, prototypes = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> loss(x, prototypes.requires_grad_(), torch.tensor([0])).backward()
    >>> prototypes.grad.norm(dim=1)
    tensor([0.1888, 0.1888])
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(unknown_name("reduction", reduction, _REDUCTIONS))
    distance = as_distance(distance)
    temperature = check_inputs(x, prototypes, distance, temperature)
    target = check_target(target, x.shape[0])
    form = _form(x, prototypes, temperature, reduction, memory_budget)
    return form(
        x,
        prototypes,
        target,
        distance=distance,
        temperature=temperature,
        adjustment=adjustment,
        reduction=reduction,
    )


def _form(
    x: Tensor,
    prototypes: Tensor,
    temperature: Tensor | None,
    reduction: str,
    memory_budget: int | None,
) -> Callable[..., Tensor]:
    if torch.compiler.is_compiling():
        return reference.loss  # the compiler fuses it, and can see through nothing else
    dense = scheme_of(temperature) == "dense"
    wide = dense or compute_dtype(x, prototypes, temperature) == torch.float64
    blocks = Blocks.within(memory_budget, x, prototypes, 8 if wide else 4)
    if blocks.rows < x.shape[0] or blocks.classes < prototypes.shape[0]:
        return partial(chunked.loss, memory_budget=memory_budget)
    return reference.loss if dense or reduction == "none" else fused.loss

"""The loss in whichever form is fastest and fits: kernels, fused, reference or chunked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from protail._messages import unknown_name
from protail.ops import chunked, fused, kernels, reference
from protail.ops._arguments import Blocks, check_inputs, check_target, compute_dtype, scheme_of
from protail.ops.distance import Distance, as_distance

_REDUCTIONS = ("mean", "none", "sum")
FORMS = ("auto", "kernels", "fused", "chunked", "reference")


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
    form: str = "auto",
    precision: str | None = None,
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
    form : {"auto", "kernels", "fused", "chunked", "reference"}
        What computes it: Triton kernels (an NVIDIA GPU, temperatures by channel or none), torch
        with a gradient by hand, in pieces, or by autograd. "auto" takes the fastest that fits.
    precision : {"float32", "tf32", "bfloat16"}, optional
        How kernels take products, see `protail.ops.kernels.loss`; plain torch follows
        ``torch.set_float32_matmul_precision``.

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
    if form not in FORMS:
        raise ValueError(unknown_name("form", form, FORMS))
    forms: dict[str, Callable[..., Tensor]] = {
        "kernels": partial(kernels.loss, precision=precision),
        "fused": fused.loss,
        "chunked": partial(chunked.loss, memory_budget=memory_budget),
        "reference": reference.loss,
    }
    if form == "auto":
        form = _form(x, prototypes, temperature, reduction, memory_budget, distance, adjustment)
    return forms[form](
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
    distance: Distance | None = None,
    adjustment: Tensor | None = None,
) -> str:
    if torch.compiler.is_compiling():
        return "reference"  # the compiler fuses it, and can see through nothing else
    if (
        x.is_cuda
        and distance is not None
        and (memory_budget is None or memory_budget >= kernels.MOST_BYTES)
        and not (adjustment is not None and adjustment.requires_grad)
        and kernels.unsupported(x, prototypes, temperature, distance) is None
    ):
        return "kernels"
    dense = scheme_of(temperature) == "dense"
    wide = dense or compute_dtype(x, prototypes, temperature) == torch.float64
    blocks = Blocks.within(memory_budget, x, prototypes, 8 if wide else 4)
    if blocks.rows < x.shape[0] or blocks.classes < prototypes.shape[0]:
        return "chunked"
    return "reference" if dense or reduction == "none" else "fused"

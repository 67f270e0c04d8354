"""The loss with a hand-written gradient, for everything that fits into memory at once.

A training step of a small head spends its time on starting kernels, not in them. This form starts
far fewer than autograd does on the reference form; its gradients need one matrix product (two if
the features want one as well) and are computed along with the loss. The gradient of the distance
itself is the ``pull_`` of its class, in `protail.ops.distance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from protail._messages import unknown_name
from protail.ops._arguments import check_inputs, compute_dtype, scheme_of
from protail.ops._precision import full_precision, rounding, smallest_length, sum_rows
from protail.ops._space import Inputs
from protail.ops.distance import Distance, as_distance

_REDUCTIONS = ("mean", "sum")


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
    """Give the cross-entropy of the distance logits; see `protail.ops.reference.loss`.

    Parameters
    ----------
    x, prototypes, target, distance, adjustment
        As in the reference form.
    temperature : Tensor, optional
        (1, channels) or (classes, 1); dense temperatures have only the reference form.
    reduction : str
        ``"mean"`` or ``"sum"``: a loss by row has only the reference form.

    Returns
    -------
    Tensor
        A number.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import fused
    >>> x, prototypes = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> fused.loss(x, prototypes, torch.tensor([0]))
    tensor(0.4741)
    """
    distance = as_distance(distance)
    temperature = check_inputs(x, prototypes, distance, temperature)
    if scheme_of(temperature) == "dense":
        raise ValueError("temperature is dense; expected a channel or class temperature, or None.")
    if reduction not in _REDUCTIONS:
        raise ValueError(unknown_name("reduction", reduction, _REDUCTIONS))
    dtype = compute_dtype(x, prototypes, temperature)
    x, prototypes = x.to(dtype), prototypes.to(dtype)
    temperature = None if temperature is None else temperature.to(dtype)
    adjustment = None if adjustment is None else adjustment.to(dtype)
    with full_precision(x.device):
        inputs, adjustment, distance = distance.flat(Inputs(x, prototypes, temperature), adjustment)
        result: Tensor = _FusedLoss.apply(*inputs, adjustment, target, distance, reduction)
        return result


class _FusedLoss(torch.autograd.Function):
    """The loss, whose gradients are ready before anyone asks for them."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x_bd, prototypes_cd, temperature, adjustment_c, target_b, distance, reduction = given
        state = _measure(Inputs(x_bd, prototypes_cd, temperature), target_b, distance)
        if adjustment_c is None:
            logits_bc = state.distance_bc * -distance.rate
        else:
            logits_bc = torch.sub(adjustment_c, state.distance_bc, alpha=distance.rate)
        log_p_bc = logits_bc.log_softmax(1)
        result = F.nll_loss(log_p_bc, target_b, reduction=reduction)
        needs = ctx.needs_input_grad[:4]
        if any(needs):
            weight = 1 / max(x_bd.shape[0], 1) if reduction == "mean" else 1.0
            ctx.save_for_backward(*_gradients(state, log_p_bc.exp_(), weight, needs))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pulled = [None if saved is None else saved * grad for saved in ctx.saved_tensors]
        return *pulled, None, None, None


class _State(NamedTuple):
    """What the gradients need of the forward pass; the target class apart from the others."""

    distance: Distance
    u_bd: Tensor
    v_cd: Tensor
    distance_bc: Tensor
    own_bd: Tensor
    own_b1: Tensor
    target_b: Tensor
    by_channel: Tensor | None  # 1 / sqrt(T), (1, D)
    by_class: Tensor | None  # 1 / T, (C, 1)


def _measure(inputs: Inputs, target_b: Tensor, distance: Distance) -> _State:
    x_bd, prototypes_cd, temperature = inputs
    middle_d = prototypes_cd.mean(0)
    u_bd, v_cd = x_bd - middle_d, prototypes_cd - middle_d
    own_bd = x_bd - prototypes_cd.index_select(0, target_b)
    by_channel = by_class = None
    if temperature is not None and temperature.shape[0] == 1:
        by_channel = temperature.rsqrt()
        u_bd, v_cd, own_bd = u_bd * by_channel, v_cd * by_channel, own_bd * by_channel
    elif temperature is not None:
        by_class = temperature.reciprocal()
    # Lifted by its rounding error as in Space.expand.
    lift = rounding(x_bd.shape[1], x_bd.dtype, x_bd.device) if distance.lifts else 0.0
    square_c = torch.linalg.vector_norm(v_cd, dim=1).square_()
    length_b1 = torch.linalg.vector_norm(u_bd, dim=1, keepdim=True)
    # In place: addmm would copy what it adds to first.
    distance_bc = torch.addcmul(square_c, length_b1, length_b1)
    distance_bc.addmm_(u_bd, v_cd.mT, alpha=-2 * (1 - lift))
    own_b1 = torch.linalg.vector_norm(own_bd, dim=1, keepdim=True)
    if by_class is not None:
        distance_bc *= by_class.mT
        own_b1 *= by_class.index_select(0, target_b).sqrt_()
    distance.link_(distance_bc, own_b1)
    distance_bc.scatter_(1, target_b.unsqueeze(1), own_b1)
    return _State(distance, u_bd, v_cd, distance_bc, own_bd, own_b1, target_b, by_channel, by_class)


def _gradients(
    state: _State, p_bc: Tensor, weight: float, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Give the gradients by features, prototypes, temperature and adjustment; takes p_bc over."""
    needs_x, _, needs_temperature, needs_adjustment = needs
    distance, u_bd, v_cd, by_class = state.distance, state.u_bd, state.v_cd, state.by_class
    grad_x = grad_temperature = grad_adjustment = None
    target_b1 = state.target_b.unsqueeze(1)
    # By logit: every class pulls by p, the target class by p - 1. The factor, that of the distance
    # in the logit, comes last, where it costs nothing.
    factor = -distance.rate * weight
    pull_own_b1 = p_bc.gather(1, target_b1).sub_(1)
    if needs_adjustment or (needs_temperature and by_class is not None):
        all_bc = p_bc.scatter(1, target_b1, pull_own_b1)
        if needs_adjustment:
            grad_adjustment = all_bc.sum(0).mul_(weight)
        if by_class is not None:
            energy_c = all_bc.mul_(state.distance_bc).sum(0)
            energy_c.mul_(factor * -distance.power / 2)
            grad_temperature = energy_c.unsqueeze(1) * by_class

    # What multiplies (x - c): the distance knows. Cancellation would spoil the target class, the
    # nearest one, so its row goes by subtraction and not through the products.
    pull_bc = p_bc
    distance.pull_(pull_own_b1, state.own_b1.clamp_min(smallest_length(u_bd.dtype)))
    factor *= distance.pull_(pull_bc, state.distance_bc)
    pull_bc.scatter_(1, target_b1, 0)
    if by_class is not None:
        pull_bc *= by_class.mT
        pull_own_b1 *= by_class.index_select(0, state.target_b)
    pull_own_bd = state.own_bd * pull_own_b1

    sum_c1 = pull_bc.sum(0).unsqueeze(1)
    if needs_temperature and state.by_channel is not None:
        # Sum of pull * (u - v)^2 by channel.
        energy_d = (v_cd * (sum_c1 * v_cd - 2 * (pull_bc.mT @ u_bd))).sum(0)
        energy_d += pull_bc.sum(1) @ u_bd.square() + (state.own_bd * pull_own_bd).sum(0)
        grad_temperature = (-0.5 * factor) * energy_d * state.by_channel.square()
    grad_c = sum_rows(state.target_b, pull_own_bd, v_cd.shape[0]).addcmul_(sum_c1, v_cd, value=-1)
    grad_c.addmm_(pull_bc.mT, u_bd, beta=-factor, alpha=-factor)
    if needs_x:
        grad_x = pull_bc.sum(1, keepdim=True) * u_bd
        grad_x += pull_own_bd
        grad_x.addmm_(pull_bc, v_cd, beta=factor, alpha=-factor)
    if state.by_channel is not None:
        grad_c *= state.by_channel
        grad_x = None if grad_x is None else grad_x.mul_(state.by_channel)
    return [grad_x, grad_c, grad_temperature, grad_adjustment]

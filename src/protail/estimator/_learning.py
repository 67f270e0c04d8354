"""Calibration of closed-form logits, and learning of what they leave, on honest residuals.

Each training row is scored by the prototypes that the others give. From these scores follow, by a
convex fit of two numbers, the sharpness of the logits and the offset ``-tau log n`` of a class of
n rows. Prototypes then go on learning with logit adjustment: a row pulls only as far as the
prototypes without it were wrong about it, so rows that are known by heart say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_NEWTON_STEPS = 20
_LBFGS_STEPS = 25


@dataclass(frozen=True)
class Calibration:
    """Logits become ``sharpness * logit - tau * log n``."""

    sharpness: float
    tau: float
    surprise: float  # mean negative log-likelihood, classes alike

    def __call__(self, logits_nc: Tensor, weight_c: Tensor) -> Tensor:
        """Apply it."""
        return self.sharpness * logits_nc - self.tau * weight_c.clamp_min(1).log()


def calibrate(logits_nc: Tensor, code_n: Tensor, weight_c: Tensor) -> Calibration:
    """Find the sharpness and tau that make held-out rows most likely, each class weighing alike."""
    filled_c = weight_c > 0
    logits_nc = logits_nc[:, filled_c]
    code_n = (filled_c.cumsum(0) - 1)[code_n]
    weight_n = (
        torch.bincount(code_n, minlength=logits_nc.shape[1])[code_n].to(logits_nc).reciprocal()
    )
    weight_n = weight_n / weight_n.sum()
    # Two features a class, in units that make a first guess of (2, 1) fair.
    unit = logits_nc.std(1).mean().clamp_min(torch.finfo(logits_nc.dtype).tiny)
    size_nc = -weight_c[filled_c].log().expand_as(logits_nc)
    feature_nck = torch.stack([logits_nc / unit, size_nc], 2)
    own_nk = feature_nck[torch.arange(len(code_n), device=code_n.device), code_n]
    guess_k = logits_nc.new_tensor([2.0, 1.0])
    now = _surprise(feature_nck, own_nk, weight_n, guess_k)
    for _ in range(_NEWTON_STEPS):
        step_k = _newton_step(feature_nck, own_nk, weight_n, guess_k)
        part = 1.0
        while part > 1e-3 and not (
            (then := _surprise(feature_nck, own_nk, weight_n, guess_k - part * step_k)) < now
        ):
            part /= 2
        if part <= 1e-3 or now - then < 1e-7:
            break
        guess_k, now = guess_k - part * step_k, then
    return Calibration(max(float(guess_k[0] / unit), 1e-6), float(guess_k[1]), now)


def _surprise(feature_nck: Tensor, own_nk: Tensor, weight_n: Tensor, guess_k: Tensor) -> float:
    total_n = torch.logsumexp(feature_nck @ guess_k, 1)
    return float(weight_n @ (total_n - own_nk @ guess_k))


def _newton_step(feature_nck: Tensor, own_nk: Tensor, weight_n: Tensor, guess_k: Tensor) -> Tensor:
    p_nc = torch.softmax(feature_nck @ guess_k, 1)
    mean_nk = torch.einsum("nc,nck->nk", p_nc, feature_nck)
    gradient_k = weight_n @ (mean_nk - own_nk)
    square_kk = torch.einsum("n,nc,nck,ncl->kl", weight_n, p_nc, feature_nck, feature_nck)
    curvature_kk = square_kk - torch.einsum("n,nk,nl->kl", weight_n, mean_nk, mean_nk)
    ridge_kk = 1e-6 * torch.eye(2, dtype=p_nc.dtype, device=p_nc.device)
    step_k: Tensor = torch.linalg.solve(curvature_kk + ridge_kk, gradient_k)
    return step_k


def learn_residual(
    z_nd: Tensor, code_n: Tensor, base_nc: Tensor, ridge: float, n_steps: int = _LBFGS_STEPS
) -> Tensor:
    """Learn what to add to the prototypes so that ``base + z . added`` gives the labels.

    ``base_nc`` holds what is already known of each row without looking at it, and ``log n``, the
    logit adjustment of the training. The sum of the losses is minimised, plus ``ridge / 2`` times
    the squared length of what is added.
    """
    added_cd = z_nd.new_zeros(base_nc.shape[1], z_nd.shape[1], requires_grad=True)
    descent = torch.optim.LBFGS(
        [added_cd],
        max_iter=n_steps,
        max_eval=2 * n_steps,
        history_size=10,
        tolerance_grad=1e-6,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    at_n = torch.arange(len(code_n), device=code_n.device)

    def loss() -> Tensor:
        # The gradient is written down: autograd would keep three more tensors of this size.
        with torch.no_grad():
            logits_nc = torch.addmm(base_nc, z_nd, added_cd.mT)
            total_n = torch.logsumexp(logits_nc, 1)
            value = (total_n - logits_nc[at_n, code_n]).sum()
            value += ridge / 2 * added_cd.square().sum()
            p_nc = (logits_nc - total_n.unsqueeze(1)).exp_()
            p_nc[at_n, code_n] -= 1
            added_cd.grad = torch.addmm(ridge * added_cd, p_nc.mT, z_nd)
        return value

    descent.step(loss)  # type: ignore[no-untyped-call]
    return added_cd.detach()

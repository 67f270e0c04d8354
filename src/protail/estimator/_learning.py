"""Calibration of closed-form logits, and learning of what they leave, on honest residuals.

Each training row is scored by the prototypes that the others give. From these scores follow, by a
convex fit of two numbers, the sharpness of the logits and the offset ``-tau log n`` of a class of
n rows. Prototypes then go on learning with logit adjustment: a row pulls only as far as the
prototypes without it were wrong about it, so rows that are known by heart say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_NEWTON_STEPS = 50
_LEAST_SHARPNESS = 1e-3
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
    """Find the sharpness and tau that make held-out rows most likely, each class weighing alike.

    A sharpness of 1 and a tau of 0, what the model itself says, weigh as much as one row: where
    rows are few, or all of them right, it stays near these.
    """
    filled_c = weight_c > 0
    problem = _TwoNumbers.of(logits_nc[:, filled_c], (filled_c.cumsum(0) - 1)[code_n], weight_c)
    guess_k = logits_nc.new_tensor([1.0, 0.0])
    now = problem.objective(guess_k)
    for _ in range(_NEWTON_STEPS):
        step_k, part = problem.newton_step(guess_k), 1.0
        while (then := problem.objective(guess_k - part * step_k)) >= now and part > 1e-3:
            part /= 2
        if then >= now - 1e-9:
            break
        guess_k, now = guess_k - part * step_k, then
    sharpness, tau = guess_k.tolist()
    if sharpness <= 0:  # rows say nothing, or the opposite
        sharpness, tau = _LEAST_SHARPNESS, 0.0
    return Calibration(sharpness, tau, problem.surprise(logits_nc.new_tensor([sharpness, tau])))


class _TwoNumbers(NamedTuple):
    """A convex function of sharpness and tau: ``feature @ (sharpness, tau)`` are the logits."""

    feature_nck: Tensor
    own_nk: Tensor
    weight_n: Tensor

    @classmethod
    def of(cls, logits_nc: Tensor, code_n: Tensor, weight_c: Tensor) -> _TwoNumbers:
        count_c = torch.bincount(code_n, minlength=logits_nc.shape[1])
        weight_n = count_c[code_n].to(logits_nc).reciprocal()
        size_nc = -weight_c[weight_c > 0].log().expand_as(logits_nc)
        feature_nck = torch.stack([logits_nc, size_nc], 2)
        own_nk = feature_nck[torch.arange(len(code_n), device=code_n.device), code_n]
        return cls(feature_nck, own_nk, weight_n / weight_n.sum())

    def surprise(self, guess_k: Tensor) -> float:
        """Give the mean negative log-likelihood."""
        total_n = torch.logsumexp(self.feature_nck @ guess_k, 1)
        return float(self.weight_n @ (total_n - self.own_nk @ guess_k))

    def objective(self, guess_k: Tensor) -> float:
        """Add what keeps the two near 1 and 0."""
        away_k = guess_k - guess_k.new_tensor([1.0, 0.0])
        return self.surprise(guess_k) + float(away_k.square().sum()) / 2 / len(self.weight_n)

    def newton_step(self, guess_k: Tensor) -> Tensor:
        """Give the step of Newton's method."""
        p_nc = torch.softmax(self.feature_nck @ guess_k, 1)
        mean_nk = torch.einsum("nc,nck->nk", p_nc, self.feature_nck)
        gradient_k = self.weight_n @ (mean_nk - self.own_nk)
        weighted_nc = self.weight_n.unsqueeze(1) * p_nc
        square_kk = torch.einsum("nc,nck,ncl->kl", weighted_nc, self.feature_nck, self.feature_nck)
        curvature_kk = square_kk - (self.weight_n * mean_nk.mT) @ mean_nk
        n = len(self.weight_n)
        gradient_k = gradient_k + (guess_k - guess_k.new_tensor([1.0, 0.0])) / n
        own_kk = torch.eye(2, dtype=p_nc.dtype, device=p_nc.device) / n
        step_k: Tensor = torch.linalg.solve(curvature_kk + own_kk, gradient_k)
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

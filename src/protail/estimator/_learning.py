"""Calibration of closed-form logits, and learning of what they leave, on honest residuals.

Each training row is scored by the prototypes that the others give. From these scores follow, by a
convex fit of two numbers, the sharpness of the logits and the offset ``-tau log n`` of a class of
n rows. Prototypes then go on learning with logit adjustment: a row pulls only as far as the
prototypes without it were wrong about it, so rows that are known by heart say nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_NEWTON_STEPS, _SMALL_STEP = 50, 1e-6
LBFGS_STEPS, _NEAR = 25, 1e-3
# No step of L-BFGS is halved further than this.
_SMALLEST_PART = 1e-2
# How far the logarithm of a factor is sought below the likeliest.
_WIDEST = 12.0


@dataclass(frozen=True)
class Calibration:
    """Logits become ``sharpness * logit - tau * log n``."""

    sharpness: float
    tau: float
    surprise: float  # mean negative log-likelihood, classes alike

    def __call__(self, logits_nc: Tensor, weight_c: Tensor) -> Tensor:
        """Apply it."""
        return self.sharpness * logits_nc - self.tau * weight_c.clamp_min(1).log()

    def times(self, factor: float) -> Calibration:
        """Give that of logits that are so many times as large."""
        return Calibration(self.sharpness * factor, self.tau * factor, self.surprise)


def calibrate(
    logits_nc: Tensor,
    code_n: Tensor,
    weight_c: Tensor,
    weight_n: Tensor | None = None,
    *,
    towards: tuple[float, float] = (1.0, 0.0),
    certainty: float = 1.0,
    start: tuple[float, float] | None = None,
) -> Calibration:
    """Find the sharpness and tau that make held-out rows most likely, each class weighing alike.

    What they are drawn towards, at first what the model itself says, weighs as much as so many
    rows: where rows are few, or all of them right, they stay near that.
    """
    problem = _Likelihood.of(logits_nc, code_n, weight_c, weight_n)
    pull = max(certainty / problem.n_rows, 8 * torch.finfo(logits_nc.dtype).eps)
    # The sharpness by its logarithm: a factor says as much whatever the unit of the logits.
    towards_k = logits_nc.new_tensor([math.log(towards[0]), towards[1]])

    def objective(k: Tensor) -> tuple[float, Tensor, Tensor]:
        value, gradient_k, curvature_kk = problem.derivatives(k)
        away_k = k - towards_k
        curvature_kk.diagonal().add_(pull)
        return value + pull / 2 * float(away_k @ away_k), gradient_k + pull * away_k, curvature_kk

    guess_k = towards_k
    if start is not None and start[0] > 0:
        guess_k = logits_nc.new_tensor([math.log(start[0]), start[1]])
    now = objective(guess_k)
    for _ in range(_NEWTON_STEPS):
        value, gradient_k, curvature_kk = now
        step_k, part = torch.linalg.solve(curvature_kk, gradient_k).clamp(-1, 1), 1.0
        gain, seen = float(gradient_k @ step_k), 10 * torch.finfo(logits_nc.dtype).eps * abs(value)
        if float(step_k.abs().max()) < _SMALL_STEP or gain < seen:
            guess_k = guess_k - step_k  # too near to see it in the objective
            break
        while (then := objective(guess_k - part * step_k))[0] >= value and part * gain > seen:
            part /= 2
        if then[0] >= value:
            break
        guess_k, now = guess_k - part * step_k, then
    return Calibration(float(guess_k[0].exp()), float(guess_k[1]), problem.surprise(guess_k))


def final_factor(
    logits_nc: Tensor, code_n: Tensor, filled_c: Tensor, weight_n: Tensor, least: float
) -> float:
    """Find the factor on held-out logits that makes them likely, but no larger than it must be.

    Rows that are all right would be the likelier the larger it is: it stops where their mean
    negative log-likelihood is ``least``.
    """
    problem = _Likelihood.of(logits_nc, code_n, filled_c.to(logits_nc), weight_n)
    high = math.log(calibrate(logits_nc, code_n, filled_c.to(logits_nc), weight_n).sharpness)
    low = high - _WIDEST

    def surprise(log_factor: float) -> float:
        return problem.surprise(logits_nc.new_tensor([log_factor, 0.0]))

    if surprise(high) >= least:
        return math.exp(high)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if surprise(middle) > least else (low, middle)
    return math.exp(high)


class _Likelihood(NamedTuple):
    """The likelihood of rows by the logarithm of the sharpness, and tau."""

    logits_nc: Tensor
    log_count_c: Tensor
    own_nk: Tensor  # what sharpness and tau are multiplied by in the logit of the target class
    weight_n: Tensor
    n_rows: float

    @classmethod
    def of(
        cls, logits_nc: Tensor, code_n: Tensor, weight_c: Tensor, weight_n: Tensor | None
    ) -> _Likelihood:
        filled_c = weight_c > 0
        if not bool(filled_c.all()):
            logits_nc, weight_c = logits_nc[:, filled_c], weight_c[filled_c]
            code_n = (filled_c.cumsum(0) - 1)[code_n]
        weight_n = (torch.ones_like(code_n) if weight_n is None else weight_n).to(logits_nc)
        log_c = weight_c.log()
        log_c = log_c - log_c.mean()  # the same for softmax, and 0 where counts are equal
        own_n = logits_nc.gather(1, code_n.unsqueeze(1)).squeeze(1)
        own_nk = torch.stack([own_n, -log_c[code_n]], 1)
        return cls(
            logits_nc, log_c, own_nk, class_balanced(code_n, weight_n), float(weight_n.sum())
        )

    def calibrated(self, k: Tensor) -> Tensor:
        """Give the logits."""
        return torch.addcmul(-k[1] * self.log_count_c, self.logits_nc, k[0].exp())

    def own(self, k: Tensor) -> Tensor:
        """Give the logits of the target classes."""
        return self.own_nk @ torch.stack([k[0].exp(), k[1]])

    def surprise(self, k: Tensor) -> float:
        """Give the mean negative log-likelihood."""
        return float(self.weight_n @ (self.calibrated(k).logsumexp(1) - self.own(k)))

    def derivatives(self, k: Tensor) -> tuple[float, Tensor, Tensor]:
        """Give the surprise, its gradient, and a curvature that is never negative."""
        p_nc, log_c = self.calibrated(k), -self.log_count_c
        most_n1 = p_nc.amax(1, keepdim=True)
        p_nc.sub_(most_n1).exp_()
        # Sums over classes of p times a product of powers of the logit and of the logarithm.
        sum_nk = p_nc @ torch.stack([torch.ones_like(log_c), log_c, log_c.square()], 1)
        sum_n = sum_nk[:, 0]
        value = float(self.weight_n @ (most_n1.squeeze(1) + sum_n.log() - self.own(k)))
        p_nc *= self.logits_nc
        sum_l_nk = p_nc @ torch.stack([torch.ones_like(log_c), log_c], 1)
        mean_nk = torch.stack([sum_l_nk[:, 0], sum_nk[:, 1]], 1) / sum_n.unsqueeze(1)
        gradient_k = self.weight_n @ (mean_nk - self.own_nk)
        part_n = self.weight_n / sum_n
        cross, square = part_n @ sum_l_nk[:, 1], part_n @ p_nc.mul_(self.logits_nc).sum(1)
        square_kk = torch.stack([square, cross, cross, part_n @ sum_nk[:, 2]])
        curvature_kk = square_kk.view(2, 2) - (self.weight_n * mean_nk.mT) @ mean_nk
        inner_k = torch.stack([k[0].exp(), torch.ones_like(k[1])])
        return value, gradient_k * inner_k, curvature_kk * inner_k * inner_k.unsqueeze(1)


def class_balanced(code_n: Tensor, weight_n: Tensor) -> Tensor:
    """Weigh rows so that the classes among them weigh alike; the sum is 1."""
    weight_c = torch.bincount(code_n, weight_n)
    return weight_n / weight_c[code_n] / (weight_c > 0).sum()


def learn_residual(
    z_nd: Tensor,
    code_n: Tensor,
    base_nc: Tensor,
    ridge: float,
    *,
    weight_n: Tensor | None = None,
    n_steps: int = LBFGS_STEPS,
    near: float = _NEAR,
) -> Tensor:
    """Learn what to add to the prototypes so that ``base + z . added`` gives the labels.

    ``base_nc`` holds what is already known of each row without looking at it, and ``log n``, the
    logit adjustment of the training. The sum of the losses is minimised, plus ``ridge / 2`` times
    the squared length of what is added.
    """
    at_n = torch.arange(len(code_n), device=code_n.device)
    weight_n = z_nd.new_ones(len(z_nd)) if weight_n is None else weight_n.to(z_nd)

    def loss(added_cd: Tensor) -> tuple[float, Tensor]:
        # The gradient is written down: autograd would keep three more tensors of this size.
        p_nc = torch.addmm(base_nc, z_nd, added_cd.mT)
        own_n, most_n1 = p_nc[at_n, code_n], p_nc.amax(1, keepdim=True)
        sum_n = p_nc.sub_(most_n1).exp_().sum(1)
        value = weight_n @ (most_n1.squeeze(1) + sum_n.log() - own_n)
        value += ridge / 2 * added_cd.square().sum()
        p_nc *= (weight_n / sum_n).unsqueeze(1)
        p_nc[at_n, code_n] -= weight_n
        return float(value), torch.addmm(added_cd, p_nc.mT, z_nd, beta=ridge)

    return minimise(loss, z_nd.new_zeros(base_nc.shape[1], z_nd.shape[1]), n_steps, near)


def minimise(
    loss: Callable[[Tensor], tuple[float, Tensor]],
    at: Tensor,
    n_steps: int,
    near: float,
    *,
    memory: int = 10,
) -> Tensor:
    """Minimise a convex function that gives its value and gradient, by L-BFGS.

    It ends where the slope of a step says that not even ``near`` times the value can be gained.

    torch.optim's imports a compiler at its first use, which takes longer than most fits; scipy's
    spends more time on bounds that nobody has than the function takes.
    """
    value, gradient = loss(at)
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=memory)
    for _ in range(n_steps):
        step = _quasi_newton(gradient, pairs)
        slope = _dot(gradient, step)
        if not slope < -near * abs(value):
            break
        # By the length of the gradient: the same steps wherever axes point.
        part = first = 1.0 if pairs else min(1.0, _dot(gradient, gradient) ** -0.5)
        while not (found := loss(at + part * step))[0] <= value + 1e-4 * part * slope:
            part /= 2
            if part < _SMALLEST_PART * first:
                return at
        change, curved = part * step, found[1] - gradient
        at, value, gradient = at + change, *found
        if (bend := _dot(change, curved)) > 0:
            pairs.append((change, curved, bend))
    return at


def _quasi_newton(gradient: Tensor, pairs: Iterable[tuple[Tensor, Tensor, float]]) -> Tensor:
    """Give the step that the last changes of the gradient suggest."""
    step, parts = -gradient, []
    for change, curved, bend in reversed([*pairs]):
        parts.append(_dot(change, step) / bend)
        step.sub_(curved, alpha=parts[-1])
    for index, (change, curved, bend) in enumerate(pairs):
        if index == 0:
            *_, (_, last, last_bend) = pairs
            step *= last_bend / _dot(last, last)
        step.add_(change, alpha=parts.pop() - _dot(curved, step) / bend)
    return step


def _dot(one: Tensor, other: Tensor) -> float:
    return float(torch.dot(one.flatten(), other.flatten()))

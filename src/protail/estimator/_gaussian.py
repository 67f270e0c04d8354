"""Classes as Gaussians that share a covariance: prototypes in closed form, and without a row.

The rows of class y are Gaussian around ``m_y`` with a covariance ``W`` that all classes share; the
``m_y`` are Gaussian around ``g``. A linear map in which W is the identity makes the nearest
prototype the most likely class: the paper's diagonal metric (its Eq. 4), full and solved for. The
prototype of a class of n rows is its mean drawn towards ``g`` by ``n / (n + kappa)``.

Logits are ``p . z - |p|^2 / 2`` for the row ``z`` and the prototype ``p``, both less ``g`` and
mapped: ``-d^2 / 2`` but for a number that all classes have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """What the closed form has to know of the training rows; sums of two are those of all rows."""

    weight_c: Tensor
    sum_cd: Tensor
    square_dd: Tensor

    @classmethod
    def of(cls, x_nd: Tensor, code_n: Tensor, n_classes: int) -> Statistics:
        """Sum rows, in float64."""
        x_nd = x_nd.double()
        weight_c = torch.bincount(code_n, minlength=n_classes).double()
        sum_cd = x_nd.new_zeros(n_classes, x_nd.shape[1]).index_add_(0, code_n, x_nd)
        return cls(weight_c, sum_cd, x_nd.mT @ x_nd)

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.weight_c + other.weight_c,
            self.sum_cd + other.sum_cd,
            self.square_dd + other.square_dd,
        )

    @property
    def mean_cd(self) -> Tensor:
        """The mean of each class; zeros where there are no rows."""
        return self.sum_cd / self.weight_c.clamp_min(1).unsqueeze(1)

    @property
    def degrees(self) -> float:
        """Rows less classes that have any: what the scatter is divided by."""
        return float((self.weight_c.sum() - (self.weight_c > 0).sum()).clamp_min(1))

    def within(self) -> Tensor:
        """Give the pooled covariance of the rows around the means of their classes."""
        return (self.square_dd - self.mean_cd.mT @ self.sum_cd) / self.degrees


@dataclass(frozen=True)
class ClosedForm:
    """Prototypes of one regularisation, in the space where the shared covariance is the identity.

    ``map_dd`` is the lower triangle L with ``L L' = W``: rows are mapped by solving with it.
    """

    map_dd: Tensor
    centre_d: Tensor
    mean_cd: Tensor  # less the centre, mapped
    weight_c: Tensor
    kappa: float
    degrees: float

    @classmethod
    def of(cls, statistics: Statistics, ridge: float) -> ClosedForm:
        """Place prototypes; ``ridge`` is in units of the mean variance of a channel."""
        within_dd = statistics.within()
        filled_c = statistics.weight_c > 0
        mean_variance = within_dd.diagonal().mean()
        if mean_variance <= 0:  # no class has two rows that differ: how far classes are must do
            mean_variance = statistics.mean_cd[filled_c].var(0).mean()
        least = torch.finfo(within_dd.dtype).eps
        own_dd = torch.eye(len(within_dd), dtype=within_dd.dtype, device=within_dd.device)
        map_dd = torch.linalg.cholesky(
            within_dd + (ridge * mean_variance).clamp_min(least) * own_dd
        )
        centre_d = statistics.mean_cd[filled_c].mean(0)
        mean_cd = _mapped(map_dd, statistics.mean_cd - centre_d) * filled_c.unsqueeze(1)
        noise = _trace_of_noise(map_dd, within_dd)
        kappa = _kappa(mean_cd[filled_c], statistics.weight_c[filled_c], noise)
        return cls(map_dd, centre_d, mean_cd, statistics.weight_c, kappa, statistics.degrees)

    def mapped(self, x_nd: Tensor) -> Tensor:
        """Take rows to the space of the prototypes."""
        return _mapped(self.map_dd, x_nd.to(self.map_dd) - self.centre_d)

    def shrink(self, weight: Tensor) -> Tensor:
        """Say how much of its mean the prototype of a class of so many rows has."""
        return weight / (weight + self.kappa)

    @property
    def prototypes(self) -> Tensor:
        """The prototypes, less the centre, in the space of `mapped`."""
        return self.shrink(self.weight_c).unsqueeze(1) * self.mean_cd

    def logits(self, x_nd: Tensor) -> Tensor:
        """Score rows; a class without rows has minus infinity."""
        prototypes_cd = self.prototypes
        logits_nc = self.mapped(x_nd) @ prototypes_cd.mT - prototypes_cd.square().sum(1) / 2
        return logits_nc.masked_fill(self.weight_c == 0, -torch.inf)

    def logits_without(self, x_nd: Tensor, code_n: Tensor) -> Tensor:
        """Score each training row by the prototypes that the other rows give.

        Exact: covariance, mean of the class and centre are those without the row, by a downdate of
        rank one. Kept are kappa and the ridge in units of what the covariance was divided by. Rows
        must be of classes of two rows or more.
        """
        z_nd = self.mapped(x_nd)
        others = self.weight_c[code_n] - 1
        n_filled = int((self.weight_c > 0).sum())
        u_nd = z_nd - self.mean_cd[code_n]
        part_n = 1 / (n_filled * others)  # the centre moves by so much of -u
        uu_n = u_nd.square().sum(1)
        # With C = L L' without the row: v' C^-1 w = (v.w + gain (v.u) (u.w)) / ratio.
        loss_n = (others + 1) / (others * self.degrees)
        gain_n = loss_n / (1 - loss_n * uu_n).clamp_min(1e-6)
        ratio = self.degrees / (self.degrees - 1)
        z_u = (z_nd * u_nd).sum(1) + part_n * uu_n

        # Every prototype is an old one plus a part of u; that of the own class has its own.
        base_cd, keep_c = self.prototypes, self.shrink(self.weight_c)
        own_n = self.shrink(others)
        along_nc = part_n.unsqueeze(1) * keep_c
        p_u = u_nd @ base_cd.mT
        p_z = z_nd @ base_cd.mT + part_n.unsqueeze(1) * p_u
        p_p = base_cd.square().sum(1).expand_as(p_u).clone()
        at = code_n.unsqueeze(1)
        again_n = (own_n / keep_c[code_n]).unsqueeze(1)
        p_u.scatter_(1, at, p_u.gather(1, at) * again_n)
        p_z.scatter_(1, at, p_z.gather(1, at) * again_n)
        p_p.scatter_(1, at, p_p.gather(1, at) * again_n.square())
        along_nc.scatter_(1, at, (own_n * (part_n - 1 / others)).unsqueeze(1))

        product_nc = p_z + along_nc * z_u.unsqueeze(1)
        toward_nc = p_u + along_nc * uu_n.unsqueeze(1)
        square_nc = p_p + 2 * along_nc * p_u + along_nc.square() * uu_n.unsqueeze(1)
        product_nc += (gain_n * z_u).unsqueeze(1) * toward_nc
        square_nc += gain_n.unsqueeze(1) * toward_nc.square()
        logits_nc = (product_nc - square_nc / 2) / ratio
        return logits_nc.masked_fill(self.weight_c == 0, -torch.inf)


def _mapped(map_dd: Tensor, x_nd: Tensor) -> Tensor:
    mapped_dn: Tensor = torch.linalg.solve_triangular(map_dd, x_nd.mT, upper=False)
    return mapped_dn.mT


def _trace_of_noise(map_dd: Tensor, within_dd: Tensor) -> Tensor:
    """Sum the variances, in the mapped space, that a row has around its class mean."""
    half = torch.linalg.solve_triangular(map_dd, within_dd, upper=False)
    whole: Tensor = torch.linalg.solve_triangular(map_dd, half.mT, upper=False)
    return whole.diagonal().sum()


def _kappa(mean_cd: Tensor, weight_c: Tensor, noise: Tensor) -> float:
    """Estimate the variance of a row over that of class means, the means' own noise taken out."""
    trust_c = weight_c / (weight_c + 1)
    trust_c = trust_c / trust_c.sum()
    between = trust_c @ mean_cd.square().sum(1) - noise * (trust_c / weight_c).sum()
    # Means that lie no farther apart than their noise still differ a little.
    return float(noise / between.clamp_min(1e-3 * noise).clamp_min(torch.finfo(noise.dtype).tiny))

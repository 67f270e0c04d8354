"""Classes as Gaussians that share a covariance: prototypes in closed form, and without a row.

The rows of class y are Gaussian around ``m_y`` with a covariance ``W`` that all classes share; the
``m_y`` are Gaussian around ``g``. A linear map in which W is the identity makes the nearest
prototype the most likely class: the paper's diagonal metric (its Eq. 4), full and solved for. The
prototype of a class of n rows is its mean drawn towards ``g`` by ``n / (n + kappa)``.

Logits are ``p . z - |p|^2 / 2`` for the row ``z`` and the prototype ``p``, both less ``g`` and
mapped: ``-d^2 / 2`` but for a number that all classes have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """What the closed form has to know of the training rows; sums of two are those of all rows."""

    weight_c: Tensor
    sum_cd: Tensor
    square_dd: Tensor
    n_channels: int  # more than there are here, where these are axes of a wider space
    rounding: float = 0.0  # part of the squares that may be rounding

    @classmethod
    def of(
        cls,
        x_nd: Tensor,
        code_n: Tensor,
        n_classes: int,
        weight_n: Tensor | None = None,
        n_channels: int | None = None,
    ) -> Statistics:
        """Sum rows, each as often as its weight says."""
        weight_c = torch.bincount(code_n, weight_n, minlength=n_classes).double()
        weighted_nd = x_nd if weight_n is None else x_nd * weight_n.to(x_nd).unsqueeze(1)
        sum_cd = weight_c.new_zeros(n_classes, x_nd.shape[1])
        if x_nd.is_cuda:  # in an order of its own at every run, if added by index_add_
            sum_cd.index_put_((code_n,), weighted_nd.double(), accumulate=True)
        else:
            sum_cd.index_add_(0, code_n, weighted_nd.double())
        square_dd = (x_nd.mT @ weighted_nd).double()
        rounding = 8 * torch.finfo(x_nd.dtype).eps
        return cls(weight_c, sum_cd, square_dd, n_channels or x_nd.shape[1], rounding)

    @classmethod
    def restored(cls, weight_c: Tensor, mean_cd: Tensor, within_dd: Tensor) -> Statistics:
        """Go back from counts, means and `within`."""
        sum_cd = mean_cd * weight_c.unsqueeze(1)
        bare = cls(weight_c, sum_cd, torch.zeros_like(within_dd), len(within_dd))
        return replace(bare, square_dd=within_dd * bare.degrees + mean_cd.mT @ bare.sum_cd)

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.weight_c + other.weight_c,
            self.sum_cd + other.sum_cd,
            self.square_dd + other.square_dd,
            self.n_channels,
            max(self.rounding, other.rounding),
        )

    @cached_property
    def mean_cd(self) -> Tensor:
        """The mean of each class; zeros where there are no rows."""
        least = torch.finfo(self.weight_c.dtype).tiny
        return self.sum_cd / self.weight_c.clamp_min(least).unsqueeze(1)

    @property
    def centre(self) -> Tensor:
        """The mean of the class means."""
        return self.mean_cd[self.weight_c > 0].mean(0)

    @property
    def degrees(self) -> float:
        """Rows less classes that have any: what the scatter is divided by."""
        return float((self.weight_c.sum() - (self.weight_c > 0).sum()).clamp_min(1))

    @cached_property
    def within(self) -> Tensor:
        """The pooled covariance of the rows around the means of their classes."""
        scatter_dd = self.square_dd - self.mean_cd.mT @ self.sum_cd
        if scatter_dd.diagonal().sum() <= self.rounding * self.square_dd.diagonal().sum():
            scatter_dd = torch.zeros_like(scatter_dd)
        return scatter_dd / self.degrees

    def covariance(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Give `within` with what a ridge adds to its diagonal, and that number."""
        within_dd = self.within
        variance = within_dd.diagonal().sum() / self.n_channels
        if variance <= 0:  # no class has two rows that differ: how far classes are must do
            between_d = self.mean_cd[self.weight_c > 0].var(0, correction=0)
            variance = between_d.sum() / self.n_channels
        added = (ridge * variance).clamp_min(torch.finfo(within_dd.dtype).tiny ** 0.5)
        covariance_dd = within_dd.clone()
        covariance_dd.diagonal().add_(added)
        return covariance_dd, added


@dataclass(frozen=True)
class ClosedForm:
    """Prototypes of one regularisation, in the space where the shared covariance is the identity.

    ``map_dd`` is the lower triangle L with ``L L' = W``: rows are mapped by solving with it.
    """

    map_dd: Tensor
    centre_d: Tensor
    mean_cd: Tensor  # less the centre, mapped
    weight_c: Tensor
    ridge: float
    kappa: float
    degrees: float

    @classmethod
    def of(
        cls,
        statistics: Statistics,
        ridge: float,
        dtype: torch.dtype = torch.float64,
        kappa: float | None = None,
    ) -> ClosedForm:
        """Place prototypes; ``ridge`` is in units of the mean variance of a channel."""
        covariance_dd, added = statistics.covariance(ridge)
        map_dd, failed = torch.linalg.cholesky_ex(covariance_dd.to(dtype))
        if int(failed):  # too nearly flat for float32
            map_dd = torch.linalg.cholesky(covariance_dd)
        weight_c, centre_d = statistics.weight_c.to(map_dd), statistics.centre.to(map_dd)
        filled_c = weight_c > 0
        mean_cd = (statistics.mean_cd - statistics.centre).to(map_dd) * filled_c.unsqueeze(1)
        mean_cd = _mapped(map_dd, mean_cd)
        form = cls(map_dd, centre_d, mean_cd, weight_c, ridge, kappa or 0.0, statistics.degrees)
        if kappa is not None:
            return form
        # The variances that a row has around its class mean: the trace of L^-1 W L^-T.
        inverse_dd = _mapped(map_dd, torch.eye(len(map_dd)).to(map_dd))
        return form.shrunk(len(map_dd) - added.to(map_dd) * inverse_dd.square().sum())

    def shrunk(self, noise: Tensor) -> ClosedForm:
        """Shrink means as much as the variance asks for that mapped rows have around them."""
        filled_c = self.weight_c > 0
        kappa = _kappa(self.mean_cd[filled_c], self.weight_c[filled_c], noise.clamp_min(0))
        return replace(self, kappa=kappa)

    def noise(self, z_nd: Tensor, code_n: Tensor, weight_n: Tensor) -> Tensor:
        """Give the variance of mapped rows around their class means, all channels together."""
        length_n = (z_nd - self.mean_cd[code_n]).square().sum(1)
        return weight_n.to(length_n) @ length_n / self.degrees

    def mapped(self, x_nd: Tensor) -> Tensor:
        """Take rows to the space of the prototypes."""
        return _mapped(self.map_dd, x_nd.to(self.map_dd) - self.centre_d)

    def shrink(self, weight: Tensor) -> Tensor:
        """Say how much of its mean the prototype of a class of so many rows has."""
        return weight / (weight + self.kappa).clamp_min(torch.finfo(weight.dtype).tiny)

    @property
    def prototypes(self) -> Tensor:
        """The prototypes, less the centre, in the space of `mapped`."""
        return self.shrink(self.weight_c).unsqueeze(1) * self.mean_cd

    def logits(self, z_nd: Tensor) -> Tensor:
        """Score mapped rows; a class without rows has minus infinity."""
        prototypes_cd = self.prototypes
        logits_nc = z_nd @ prototypes_cd.mT - prototypes_cd.square().sum(1) / 2
        return logits_nc.masked_fill(self.weight_c == 0, -torch.inf)

    def spare(self, code_n: Tensor, weight_n: Tensor) -> Tensor:
        """Say which rows can be taken out and leave their class some."""
        return self.weight_c[code_n] > weight_n.clamp_max(1)

    def without(self, z_nd: Tensor, code_n: Tensor, weight_n: Tensor | None = None) -> Without:
        """Look at each mapped training row as if it had not been there: a downdate of rank one.

        Of a row with a weight above 1 only one is taken out: it stands for several. Classes must
        have more than what is taken out.
        """
        taken_n = torch.ones_like(code_n).to(self.weight_c) if weight_n is None else weight_n
        taken_n = taken_n.to(self.weight_c).clamp_max(1)
        u_nd = z_nd - self.mean_cd[code_n]
        others_n = self.weight_c[code_n] - taken_n
        moved_n = taken_n / others_n
        part_n = moved_n / int((self.weight_c > 0).sum())
        loss_n = moved_n * self.weight_c[code_n] / self.degrees
        gain_n = loss_n / (1 - loss_n * u_nd.square().sum(1)).clamp_min(1e-6)
        ratio_n = self.degrees / (self.degrees - taken_n).clamp_min(0.5)
        v_nd = z_nd + part_n.unsqueeze(1) * u_nd
        along_n = gain_n * (v_nd * u_nd).sum(1)
        return Without(
            self, code_n, v_nd, u_nd, others_n, moved_n, part_n, gain_n, along_n, ratio_n
        )


@dataclass(frozen=True)
class Without:
    """Training rows, and what the other rows say of them.

    Exact: covariance, mean of the class and centre are those without the row. Kept are kappa and
    the ridge in units of what the covariance was divided by. With ``C = L L'`` without the row,
    ``a' C^-1 b = (a.b + gain (a.u) (u.b)) / ratio`` for a and b that L has mapped.
    """

    form: ClosedForm
    code_n: Tensor
    v_nd: Tensor  # the rows less the centre, as it is without them
    u_nd: Tensor  # the rows less their class means
    others_n: Tensor
    moved_n: Tensor  # the class mean moves by so much of -u
    part_n: Tensor  # and the centre by so much
    gain_n: Tensor
    along_n: Tensor  # gain (v.u)
    ratio_n: Tensor

    def lengths(self) -> Tensor:
        """Give the squared distance of each row from the centre."""
        u_v = (self.u_nd * self.v_nd).sum(1)
        return (self.v_nd.square().sum(1) + self.along_n * u_v) / self.ratio_n

    def products(self, direction_cd: Tensor) -> Tensor:
        """Give what some directions say of each row."""
        toward_nc = self.along_n.unsqueeze(1) * (self.u_nd @ direction_cd.mT)
        return (self.v_nd @ direction_cd.mT + toward_nc) / self.ratio_n.unsqueeze(1)

    def logits(self) -> Tensor:
        """Score each row by the prototypes that the others give."""
        form, u_nd, v_nd = self.form, self.u_nd, self.v_nd
        uu_n1 = u_nd.square().sum(1, keepdim=True)
        # Every prototype is an old one plus a part of u; that of the own class has its own.
        base_cd, keep_c = form.prototypes, form.shrink(form.weight_c)
        own_n = form.shrink(self.others_n)
        along_nc = self.part_n.unsqueeze(1) * keep_c
        p_u, p_v = u_nd @ base_cd.mT, v_nd @ base_cd.mT
        p_p = base_cd.square().sum(1).expand_as(p_u).clone()
        at = self.code_n.unsqueeze(1)
        again_n = (own_n / keep_c[self.code_n]).unsqueeze(1)
        p_u.scatter_(1, at, p_u.gather(1, at) * again_n)
        p_v.scatter_(1, at, p_v.gather(1, at) * again_n)
        p_p.scatter_(1, at, p_p.gather(1, at) * again_n.square())
        along_nc.scatter_(1, at, (own_n * (self.part_n - self.moved_n)).unsqueeze(1))

        toward_nc = p_u + along_nc * uu_n1
        product_nc = p_v + along_nc * (v_nd * u_nd).sum(1, keepdim=True)
        product_nc += self.along_n.unsqueeze(1) * toward_nc
        square_nc = p_p + 2 * along_nc * p_u + along_nc.square() * uu_n1
        square_nc += self.gain_n.unsqueeze(1) * toward_nc.square()
        logits_nc = (product_nc - square_nc / 2) / self.ratio_n.unsqueeze(1)
        return logits_nc.masked_fill(form.weight_c == 0, -torch.inf)


def _mapped(map_dd: Tensor, x_nd: Tensor) -> Tensor:
    mapped_dn: Tensor = torch.linalg.solve_triangular(map_dd, x_nd.mT, upper=False)
    return mapped_dn.mT


def _kappa(mean_cd: Tensor, weight_c: Tensor, noise: Tensor) -> float:
    """Estimate the variance of a row over that of class means, the means' own noise taken out."""
    trust_c = weight_c / (weight_c + 1)
    trust_c = trust_c / trust_c.sum()
    between = trust_c @ mean_cd.square().sum(1) - noise * (trust_c / weight_c).sum()
    # Means that lie no farther apart than their noise still differ a little.
    return float(noise / between.clamp_min(1e-3 * noise).clamp_min(torch.finfo(noise.dtype).tiny))

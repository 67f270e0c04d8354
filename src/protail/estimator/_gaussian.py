"""Classes as Gaussians that share a covariance: prototypes in closed form, and without a row.

The rows of class y are Gaussian around ``m_y`` with a covariance ``W`` that all classes share; the
``m_y`` are Gaussian around ``g``. A linear map in which W is the identity makes the nearest
prototype the most likely class: the paper's diagonal metric (its Eq. 4), full and solved for. The
prototype of a class of n rows is its mean drawn towards ``g`` by about ``n / (n + kappa)``: less
along the axes on which the other classes differ, more on all others.

Logits are ``p . z - |p|^2 / 2`` for the row ``z`` and the prototype ``p``, both less ``g`` and
mapped: ``-d^2 / 2`` but for a number that all classes have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

# Of the variance of class means, this part lies as the means do that were found, where they are
# many; the rest is alike in all directions. So many classes have half of the say.
_LENT, _FEW_CLASSES = 0.1, 10
# So many classes are placed at a time.
_AT_A_TIME = 4096
# Rows are added up, and symmetric matrices multiplied, so many rows at a time.
_SUMMED_AT_A_TIME, _BLOCK = 1024, 192
# Part of squares that may be rounding, in units of the precision.
ROUNDING = 8


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
        weighted_nd = x_nd
        if weight_n is not None and not bool((weight_n == 1).all()):
            weighted_nd = x_nd * weight_n.to(x_nd).unsqueeze(1)
        sum_cd = weight_c.new_zeros(n_classes, x_nd.shape[1])
        if x_nd.is_cuda:  # in an order of its own at every run, if added by index_add_
            sum_cd.index_put_((code_n,), weighted_nd.double(), accumulate=True)
        else:
            parts = (torch.split(each, _SUMMED_AT_A_TIME) for each in (code_n, weighted_nd))
            for code_b, weighted_bd in zip(*parts, strict=True):
                sum_cd.index_add_(0, code_b, weighted_bd.double())
        square_dd = symmetric(x_nd.mT, weighted_nd).double()
        rounding = ROUNDING * torch.finfo(x_nd.dtype).eps
        return cls(weight_c, sum_cd, square_dd, n_channels or x_nd.shape[1], rounding)

    @classmethod
    def restored(cls, weight_c: Tensor, mean_cd: Tensor, within_dd: Tensor) -> Statistics:
        """Go back from counts, means and `within`, in the precision of the rows."""
        rounding = ROUNDING * torch.finfo(within_dd.dtype).eps
        weight_c, mean_cd, within_dd = weight_c.double(), mean_cd.double(), within_dd.double()
        sum_cd = mean_cd * weight_c.unsqueeze(1)
        bare = cls(weight_c, sum_cd, torch.zeros_like(within_dd), len(within_dd), rounding)
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
        scatter_dd = self.square_dd - symmetric(self.mean_cd.mT, self.sum_cd)
        if scatter_dd.diagonal().sum() <= self.rounding * self.square_dd.diagonal().sum():
            scatter_dd = torch.zeros_like(scatter_dd)
        return scatter_dd / self.degrees

    def added(self, ridge: float, dtype: torch.dtype = torch.float64) -> Tensor:
        """Give what a ridge, in units of the mean variance of a channel, adds to each variance."""
        variance = self.within.diagonal().sum() / self.n_channels
        if variance <= 0:  # no class has two rows that differ: how far classes are must do
            between_d = self.mean_cd[self.weight_c > 0].var(0, correction=0)
            variance = between_d.sum() / self.n_channels
        # Less than what may be rounding would leave directions with a variance below 0.
        least = self.rounding * self.square_dd.diagonal().sum() / self.degrees
        added = torch.maximum(ridge * variance, least)
        return added.clamp_min(torch.finfo(dtype).tiny ** 0.5)

    def covariance(self, ridge: float, dtype: torch.dtype = torch.float64) -> Tensor:
        """Give `within` with what a ridge adds to its diagonal."""
        covariance_dd = self.within.to(dtype, copy=True)
        covariance_dd.diagonal().add_(self.added(ridge, dtype))
        return covariance_dd


def symmetric(left_dn: Tensor, right_nd: Tensor) -> Tensor:
    """Multiply what gives a symmetric matrix: blocks above the diagonal are copied."""
    n_channels = len(left_dn)
    product_dd = left_dn.new_empty(n_channels, n_channels)
    step = n_channels if left_dn.is_cuda else _BLOCK
    for start in range(0, n_channels, step):
        end = min(start + step, n_channels)
        torch.mm(left_dn[start:end], right_nd[:, :end], out=product_dd[start:end, :end])
        product_dd[:start, start:end] = product_dd[start:end, :start].mT
    return product_dd


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
    n_channels: int
    common: float
    means: Means  # of the classes that say how means differ
    like: ClosedForm | None = None  # new classes: of them, the known ones that say how means differ

    @classmethod
    def of(
        cls,
        statistics: Statistics,
        ridge: float,
        dtype: torch.dtype = torch.float64,
        kappa: float | None = None,
        common: float | None = None,
    ) -> ClosedForm:
        """Place prototypes; ``ridge`` is in units of the mean variance of a channel."""
        map_dd, failed = torch.linalg.cholesky_ex(statistics.covariance(ridge, dtype))
        if int(failed):  # too nearly flat for float32
            map_dd = torch.linalg.cholesky(statistics.covariance(ridge))
        weight_c, centre_d = statistics.weight_c.to(map_dd), statistics.centre.to(map_dd)
        filled_c = weight_c > 0
        mean_cd = (statistics.mean_cd - statistics.centre).to(map_dd) * filled_c.unsqueeze(1)
        mean_cd = _mapped(map_dd, mean_cd)
        if common is None:  # two means, or one, say nothing of how others differ
            n_more = max(int(filled_c.sum()) - 2, 0)
            common = 1 - _LENT * n_more / (n_more + _FEW_CLASSES)
        known = statistics.degrees, statistics.n_channels, common, Means.of(mean_cd)
        form = cls(map_dd, centre_d, mean_cd, weight_c, ridge, kappa or 0.0, *known)
        if kappa is not None:
            return form
        # The variances that a row has around its class mean: the trace of L^-1 W L^-T.
        inverse_dd = _mapped(map_dd, torch.eye(len(map_dd)).to(map_dd))
        added = statistics.added(ridge, map_dd.dtype).to(map_dd)
        return form.shrunk(len(map_dd) - added * inverse_dd.square().sum())

    def shrunk(self, noise: Tensor) -> ClosedForm:
        """Shrink means as much as the variance asks for that mapped rows have around them."""
        filled_c = self.weight_c > 0
        kappa = _kappa(self.mean_cd[filled_c], self.weight_c[filled_c], noise.clamp_min(0))
        return replace(self, kappa=kappa)

    def mapped(self, x_nd: Tensor) -> Tensor:
        """Take rows to the space of the prototypes."""
        return _mapped(self.map_dd, x_nd.to(self.map_dd) - self.centre_d)

    def shrink(self, weight: Tensor) -> Tensor:
        """Say how much of its mean the prototype of a class of so many rows has."""
        return weight / (weight + self.kappa).clamp_min(torch.finfo(weight.dtype).tiny)

    @cached_property
    def prototypes(self) -> Tensor:
        """The prototypes, less the centre, in the space of `mapped`."""
        every_c = torch.arange(len(self.weight_c), device=self.weight_c.device)
        return torch.cat(
            [
                self.placed(self.mean_cd[part_c], part_c, self.weight_c[part_c])
                for part_c in torch.split(every_c, _AT_A_TIME)
            ]
        )

    def placed(self, mean_nd: Tensor, code_n: Tensor, weight_n: Tensor) -> Tensor:
        """Place prototypes of some classes, known by means of so many rows."""
        axes_rd = self.means.axes_rd
        factor_n1, more_nr = self.drawn(mean_nd @ axes_rd.mT, code_n, weight_n)
        return torch.addmm(factor_n1 * mean_nd, more_nr, axes_rd)

    def drawn(self, at_nr: Tensor, code_n: Tensor, weight_n: Tensor) -> tuple[Tensor, Tensor]:
        """Say where prototypes of means go: the factor, and what is added along the axes.

        With ``B`` the variance of class means over its mean, as the other classes have it, the
        posterior mean is ``B (B + kappa / n)^-1 m``.
        """
        noise_n1 = (self.kappa / weight_n.clamp_min(1e-9)).unsqueeze(1)
        flat_n1 = self.common + noise_n1
        variance_r, part = self._lent
        full_nr = flat_n1 + variance_r
        more_nr = at_nr * variance_r / full_nr
        if self.like is None and part > 0:  # the class is taken out of B: a downdate of rank one
            own_nr = self.means.at_cr[code_n]
            gone_nr = own_nr / full_nr
            left_n1 = 1 / part - (own_nr * gone_nr).sum(1, keepdim=True)
            more_nr -= gone_nr * (flat_n1 * (gone_nr * at_nr).sum(1, keepdim=True) / left_n1)
        return self.common / flat_n1, more_nr.mul_(noise_n1 / flat_n1)

    @cached_property
    def _lent(self) -> tuple[Tensor, float]:
        """Say how much more means vary along each axis than on all, and a class's part in it."""
        square_r = self.means.at_cr.square().sum(0)
        least = torch.finfo(square_r.dtype).tiny ** 0.5
        scale = (1 - self.common) * self.n_channels / square_r.sum().clamp_min(least)
        # Without a class the centre moves away from it, so that it takes a little more along.
        n_filled = int(((self.like or self).weight_c > 0).sum())
        return scale * square_r, float(scale * n_filled / max(n_filled - 1, 1))

    def logits(self, z_nd: Tensor) -> Tensor:
        """Score mapped rows; a class without rows has minus infinity."""
        prototypes_cd = self.prototypes
        logits_nc = z_nd @ prototypes_cd.mT - prototypes_cd.square().sum(1) / 2
        return logits_nc.masked_fill(self.weight_c == 0, -torch.inf)

    def spare(self, code_n: Tensor, weight_n: Tensor) -> Tensor:
        """Say which rows can be taken out and leave their class some."""
        size_n = self.weight_c[code_n]
        left_n = size_n - weight_n.to(size_n).clamp_max(1)
        return left_n > ROUNDING * torch.finfo(size_n.dtype).eps * size_n

    def without(self, z_nd: Tensor, code_n: Tensor, weight_n: Tensor | None = None) -> Without:
        """Look at each mapped training row as if it had not been there: a downdate of rank one.

        Of a row with a weight above 1 only one is taken out: it stands for several. Classes must
        have more than what is taken out.
        """
        taken_n = torch.ones_like(code_n).to(self.weight_c) if weight_n is None else weight_n
        taken_n = taken_n.to(self.weight_c).clamp_max(1)
        u_nd = self.mean_cd[code_n]
        torch.sub(z_nd, u_nd, out=u_nd)
        return Without(
            self,
            code_n,
            u_nd @ self.means.axes_rd.mT,
            torch.linalg.vector_norm(u_nd, dim=1).square(),
            taken_n,
        )


class Means(NamedTuple):
    """Axes on which class means differ, orthogonal and of length 1, and where they lie on them."""

    axes_rd: Tensor
    at_cr: Tensor

    @classmethod
    def of(cls, mean_cd: Tensor) -> Means:
        """Find the principal axes."""
        if len(mean_cd) < mean_cd.shape[1]:
            basis_dr, upper_rc = torch.linalg.qr(mean_cd.mT)
            turn_rr = torch.linalg.eigh(upper_rc @ upper_rc.mT)[1]
            return cls((basis_dr @ turn_rr).mT, upper_rc.mT @ turn_rr)
        turn_dr = torch.linalg.eigh(mean_cd.mT @ mean_cd)[1]
        return cls(turn_dr.mT, mean_cd @ turn_dr)


@dataclass(frozen=True)
class Without:
    """Training rows, and what the other rows say of them.

    Exact: covariance, mean of the class and centre are those without the row. Kept are kappa, the
    ridge in units of what the covariance was divided by, and how class means differ. With
    ``C = L L'`` without the row,
    ``a' C^-1 b = (a.b + gain (a.u) (u.b)) / ratio`` for a and b that L has mapped.

    Of ``u``, a row less its class mean, only its length counts and where it lies on the axes of the
    class means. The row itself, less the centre as it is without it, is ``v = m + (1 + part) u``.
    """

    form: ClosedForm
    code_n: Tensor
    u_nr: Tensor
    uu_n: Tensor
    taken_n: Tensor  # so much of the row

    @cached_property
    def _moves(self) -> _Moves:
        """What changes without the row."""
        form, taken_n = self.form, self.taken_n
        size_n = form.weight_c[self.code_n]
        others_n = size_n - taken_n
        moved_n = taken_n / others_n
        part_n = moved_n / int((form.weight_c > 0).sum())
        loss_n = moved_n * size_n / form.degrees
        gain_n = loss_n / (1 - loss_n * self.uu_n).clamp_min(1e-6)
        ratio_n = form.degrees / (form.degrees - taken_n).clamp_min(0.5)
        mean_nr = form.means.at_cr[self.code_n]
        mu_n = (mean_nr * self.u_nr).sum(1)
        uv_n = mu_n + (1 + part_n) * self.uu_n
        moves = mean_nr, mu_n, uv_n, others_n, moved_n, part_n, gain_n, gain_n * uv_n, ratio_n
        return _Moves(*moves)

    def lengths(self) -> Tensor:
        """Give the squared distance of each row from the centre."""
        mean_nr, mu_n, uv_n, _, _, part_n, _, along_n, ratio_n = self._moves
        length_n = mean_nr.square().sum(1) + (1 + part_n) * (mu_n + uv_n)
        return (length_n + along_n * uv_n) / ratio_n

    def products(self, z_nd: Tensor, direction_cd: Tensor) -> Tensor:
        """Give what some directions say of each row, which is given mapped."""
        moves = self._moves
        along_n1 = (moves.part_n + moves.along_n).unsqueeze(1)
        said_nc = (1 + along_n1) * (z_nd @ direction_cd.mT)
        said_nc -= along_n1 * _products_of(self.code_n, self.form.mean_cd, direction_cd)
        return said_nc / moves.ratio_n.unsqueeze(1)

    def logits(self) -> Tensor:
        """Score each row by the prototypes that the others give."""
        form, moves = self.form, self._moves
        part_n, uu_n, gain_n1 = moves.part_n, self.uu_n, moves.gain_n.unsqueeze(1)
        base_cr = form.prototypes @ form.means.axes_rd.mT
        # Every prototype is an old one plus a part of u; that of the own class is placed anew.
        moved_c, part_n1 = form.shrink(form.weight_c), part_n.unsqueeze(1)
        toward_nc = torch.addmm((part_n * uu_n).unsqueeze(1) * moved_c, self.u_nr, base_cr.mT)
        logits_nc = (1 + part_n + moves.along_n).unsqueeze(1) - part_n1 * moved_c
        logits_nc = logits_nc.addcmul_(gain_n1, toward_nc, value=-0.5).mul_(toward_nc)
        logits_nc += _products_of(self.code_n, form.means.at_cr, base_cr)
        logits_nc -= base_cr.square().sum(1) / 2
        powers_2c = torch.stack([moved_c, moved_c.square()])
        logits_nc.addmm_(torch.stack([part_n * moves.mu_n, (part_n**2 * uu_n) / 2], 1), powers_2c)
        logits_nc.scatter_(1, self.code_n.unsqueeze(1), self._own().unsqueeze(1))
        logits_nc /= moves.ratio_n.unsqueeze(1)
        if not bool((form.weight_c > 0).all()):
            logits_nc.masked_fill_(form.weight_c == 0, -torch.inf)
        return logits_nc

    def _own(self) -> Tensor:
        """Score each row by the prototype that the others of its class give, times the ratio."""
        mean_nr, mu_n, _, others_n, moved_n, part_n, gain_n, along_n, _ = self._moves
        u_nr, uu_n, shift_n = self.u_nr, self.uu_n, part_n - moved_n
        at_nr = torch.addcmul(mean_nr, shift_n.unsqueeze(1), u_nr)
        factor_n1, more_nr = self.form.drawn(at_nr, self.code_n, others_n)
        factor_n, mm_n = factor_n1.squeeze(1), mean_nr.square().sum(1)
        own_u_n = factor_n * (mu_n + shift_n * uu_n) + (more_nr * u_nr).sum(1)
        own_m_n = factor_n * (mm_n + shift_n * mu_n) + (more_nr * mean_nr).sum(1)
        square_n = factor_n * (mm_n + 2 * shift_n * mu_n + shift_n**2 * uu_n)
        square_n = factor_n * (square_n + 2 * (more_nr * at_nr).sum(1)) + more_nr.square().sum(1)
        product_n = own_m_n + (1 + part_n + along_n) * own_u_n
        return product_n - (square_n + gain_n * own_u_n.square()) / 2


class _Moves(NamedTuple):
    """What changes without a row, and products of its parts."""

    mean_nr: Tensor
    mu_n: Tensor
    uv_n: Tensor
    others_n: Tensor
    moved_n: Tensor  # the class mean moves by so much of -u
    part_n: Tensor  # and the centre by so much
    gain_n: Tensor
    along_n: Tensor  # gain (v.u)
    ratio_n: Tensor


def _products_of(code_n: Tensor, one_cr: Tensor, other_cr: Tensor) -> Tensor:
    """Multiply the vector of each row's class with those of all classes."""
    if len(code_n) < len(one_cr):  # a table of classes x classes may be larger than memory
        return one_cr[code_n] @ other_cr.mT
    product_cc: Tensor = one_cr @ other_cr.mT
    return product_cc[code_n]


def _mapped(map_dd: Tensor, x_nd: Tensor) -> Tensor:
    mapped_nd: Tensor = torch.linalg.solve_triangular(map_dd.mT, x_nd, upper=True, left=False)
    return mapped_nd


def _kappa(mean_cd: Tensor, weight_c: Tensor, noise: Tensor) -> float:
    """Estimate the variance of a row over that of class means, the means' own noise taken out."""
    trust_c = weight_c / (weight_c + 1)
    trust_c = trust_c / trust_c.sum()
    between = trust_c @ mean_cd.square().sum(1) - noise * (trust_c / weight_c).sum()
    # Means that lie no farther apart than their noise still differ a little.
    return float(noise / between.clamp_min(1e-3 * noise).clamp_min(torch.finfo(noise.dtype).tiny))

"""The cosine distance, ``d = 1 - cos(x, c)``: half the square between unit vectors.

With ``u = x / |x|`` and ``v = c / |c|`` it is ``|u - v|^2 / 2``, so all that `SqEuclidean` knows
holds on the sphere; what is added here is the way there and back. Its gradient is that of the
square by ``u``, which autograd takes through ``x / |x|`` (`Cosine.flat` in the form written by
hand). A vector without direction is 1 from everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protail.ops._arguments import scheme_of
from protail.ops._rows import unit_rows
from protail.ops._space import Expansion, Inputs, Laid, Own, Points, Space
from protail.ops.distance.base import Flat, register_distance
from protail.ops.distance.sqeuclidean import SqEuclidean


class Sphere(Space):
    """Unit vectors, centred by their mean."""

    def _settle(self, device: torch.device) -> None:
        # A class temperature scales both vectors of a cosine alike: it has no effect.
        self.scheme = None if self.scheme == "class" else self.scheme
        # With a dense one the length of x differs from class to class: nothing can be centred.
        self.centred = self.scheme != "dense"
        if not self.centred and device.type != "mps":
            self.dtype = torch.float64

    def _lay(self, vectors_nd: Tensor, temperature: Tensor | None) -> Laid:
        if self.centred:
            return self._units(vectors_nd, self._scale(temperature))
        return self._of_any_length(vectors_nd), None

    def _place(self, vectors_nd: Tensor, temperature: Tensor | None) -> Laid:
        vectors_nd, zero_n = self._lay(vectors_nd, temperature)
        return vectors_nd - self.middle_d, zero_n

    def _of_any_length(self, vectors_nd: Tensor) -> Tensor:
        vectors_nd = vectors_nd.to(self.dtype)
        if not self.any_length:
            return vectors_nd
        # To a largest entry of 1, which changes no angle, so that no square overflows.
        largest_n1 = torch.linalg.vector_norm(vectors_nd, torch.inf, dim=-1, keepdim=True)
        scaled_nd: Tensor = vectors_nd / largest_n1.masked_fill_(largest_n1 == 0, 1)
        return scaled_nd

    def expand(self, rows: Points, classes: Points, *, floor: bool = False) -> Expansion:
        """Square the differences of unit vectors."""
        if self.centred:
            return super().expand(rows, classes, floor=floor)
        assert classes.weight is not None
        length_bc = rows.vectors_nd.square() @ classes.weight.mT * classes.square_n
        full_bc = length_bc > 0
        product_bc = rows.vectors_nd @ classes.vectors_nd.mT
        cosine_bc = product_bc * torch.where(full_bc, length_bc, 1).rsqrt() * full_bc
        return Expansion(2 - 2 * cosine_bc, torch.full_like(cosine_bc, 2))

    def error(self, size_bc: Tensor) -> Tensor:
        """Add the rounding error of unit vectors."""
        return super().error(size_bc) + size_bc.sqrt() * (8 * torch.finfo(self.dtype).eps)

    def pairs(self, x_pd: Tensor, prototypes_pd: Tensor, temperature: Tensor | None) -> Tensor:
        """Subtract unit vectors."""
        scale = self._scale(temperature)
        u_pd, no_u = self._units(x_pd, scale)
        v_pd, no_v = self._units(prototypes_pd, scale)
        distance_p = ((u_pd - v_pd).square().sum(-1) + no_u + no_v) / 2
        return torch.where((no_u + no_v) > 0, 1, distance_p).to(self.result_dtype)

    def _units(self, vectors_pd: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        vectors_pd = self._of_any_length(vectors_pd)
        return unit_rows(vectors_pd if scale is None else vectors_pd * scale)

    def beyond(self, x_pd: Tensor, one: Own, other: Own) -> Tensor:
        """Subtract the distances: on the sphere no row is far away."""
        return 2 * (self.pairs(x_pd, *one) - self.pairs(x_pd, *other))


@register_distance("cosine")
class Cosine(SqEuclidean):
    """One minus the cosine of the angle between x and c.

    References
    ----------
    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> from protail.ops.distance import Cosine
    >>> distances(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0], [2.0, 0.0]]), Cosine())
    tensor([[1., 0.]])
    """

    power = 0
    rate = 0.25  # `link_` leaves the square, twice the distance
    vector_copies = 4
    space = Sphere

    def between(self, x_pd: Tensor, prototypes_pd: Tensor) -> Tensor:
        """Take the cosine from 1."""
        return 1 - torch.cosine_similarity(x_pd, prototypes_pd, dim=-1)

    def link(self, square_bc: Tensor) -> Tensor:
        """Halve the square."""
        return super().link(square_bc) / 2

    def unlink(self, distance: Tensor) -> Tensor:
        """Double the distance."""
        return distance * 2

    def gaps(self, square_b: Tensor, beyond_bc: Tensor) -> tuple[Tensor, Tensor]:
        """Halve both."""
        return square_b / 2, beyond_bc.div_(2)

    def steepness(self, distance: float) -> float:
        """Give 1: nothing is farther than 2."""
        return 1.0

    def flat(self, inputs: Inputs, adjustment_c: Tensor | None) -> Flat:
        """Make unit vectors of both sides, so that the square is twice the cosine distance."""
        x_bd, prototypes_cd, temperature = inputs
        idle_c = torch.zeros((), dtype=x_bd.dtype, device=x_bd.device)
        if scheme_of(temperature) == "channel" and temperature is not None:
            scale = temperature.rsqrt()
            x_bd, prototypes_cd = x_bd * scale, prototypes_cd * scale
        elif temperature is not None:
            idle_c = 0 * temperature.squeeze(1)  # no effect; its gradient is zero, not missing
        units_bd, _ = unit_rows(x_bd)  # a row without direction moves all its logits alike
        units_cd, zero_c = unit_rows(prototypes_cd)
        offset_c = idle_c - self.rate * zero_c
        adjustment_c = offset_c if adjustment_c is None else adjustment_c + offset_c
        return Inputs(units_bd, units_cd, None), adjustment_c, self

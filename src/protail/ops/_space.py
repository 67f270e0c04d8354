"""Squared lengths between rows and classes by matrix products, and exactly, pair by pair.

Every distance here is a function of one square: the squared length of ``x - c`` (euclidean,
sqeuclidean) or of the difference of two unit vectors (cosine: ``1 - cos = |u - v|^2 / 2``). No
batch x class x channel tensor is built: the square is expanded into matrix products on vectors
centred by the mean of the prototypes. All of it is ordinary differentiable torch.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import compute_dtype, scheme_of
from protail.ops._precision import rounding
from protail.ops._rows import own_temperature, unit_rows

# Centring needs a point among the prototypes: where they are many, the mean of some of them,
# taken at equal steps, serves as well. In elements.
_CENTRING_SAMPLE = 2**16


class Points(NamedTuple):
    """Vectors placed in a space, ready for the matrix product."""

    vectors_nd: Tensor
    square_n: Tensor
    weight: Tensor | None = None  # 1/T: (n, 1) for class, (n, D) for dense temperatures
    zero_n: Tensor | None = None  # 1 where a vector has no direction (cosine)


class Expansion(NamedTuple):
    """Squares of the distances, and the sums they were subtracted from.

    The rounding error of ``square_bc`` is at most ``rounding() * size_bc``.
    """

    square_bc: Tensor
    size_bc: Tensor


class Ranking(NamedTuple):
    """What orders the classes of each row: the squares of the distances, less a part of the row's.

    ``score_bc + rest_b1`` are the squares. A score is off by at most ``error``, one number a row
    or one an entry; it is not finite where the row is too long for the dtype.
    """

    score_bc: Tensor
    rest_b1: Tensor
    error: Tensor


class Space:
    """Where the distances of one set of prototypes are squared lengths.

    Parameters
    ----------
    x_bd, prototypes_cd : Tensor
        Rows and prototypes; only their dtypes and the prototypes' mean are used.
    distance : str
        ``"euclidean"``, ``"sqeuclidean"`` or ``"cosine"``.
    temperature : Tensor or None
        (1, D), (C, 1) or (C, D), as ``check_inputs`` gives it.
    any_length : bool
        Whether cosine finds the direction of vectors whose squares over- or underflow too. That
        takes two passes over the vectors, which training can do without.

    Examples
    --------
    >>> import torch
    >>> from protail.ops._space import Space
    >>> x, prototypes = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> space = Space(x, prototypes, "euclidean", None)
    >>> space.link(space.expand(space.rows(x, None), space.classes(prototypes, None)).square_bc)
    tensor([[3., 4.]])
    """

    def __init__(
        self,
        x_bd: Tensor,
        prototypes_cd: Tensor,
        distance: str,
        temperature: Tensor | None,
        *,
        any_length: bool = False,
    ) -> None:
        self.distance = distance
        self._any_length = any_length
        self.on_sphere = distance == "cosine"
        scheme = scheme_of(temperature)
        # A class temperature scales both vectors of a cosine alike: it has no effect.
        self.scheme = None if self.on_sphere and scheme == "class" else scheme
        self.result_dtype = compute_dtype(x_bd, prototypes_cd, temperature)
        # The length of x differs from class to class here, so nothing can be centred.
        self.uncentred = self.on_sphere and scheme == "dense"
        wide = self.uncentred and x_bd.device.type != "mps"
        self.dtype = torch.float64 if wide else self.result_dtype
        self.rounding = rounding(prototypes_cd.shape[1], self.dtype, x_bd.device)
        # Below this size products underflow, and the error is no part of the size any more.
        self._least_size = 4 * prototypes_cd.shape[1] * torch.finfo(self.dtype).tiny / self.rounding
        self.middle_d: Tensor | float = 0.0
        if not self.uncentred:
            stride = max(1, -(-prototypes_cd.numel() // _CENTRING_SAMPLE))
            with torch.no_grad():
                self.middle_d = self._lay(prototypes_cd[::stride], temperature)[0].mean(0)

    def _lay(self, vectors_nd: Tensor, temperature: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Put cosine's vectors on the unit sphere; leave the others where they are."""
        vectors_nd = vectors_nd.to(self.dtype)
        if not self.on_sphere:
            return vectors_nd, None
        if self._any_length:
            vectors_nd = _of_largest_one(vectors_nd)
        if self.uncentred:
            return vectors_nd, None
        return unit_rows(self._by_channel(vectors_nd, temperature))

    def _by_channel(self, vectors_nd: Tensor, temperature: Tensor | None) -> Tensor:
        if self.scheme != "channel":
            return vectors_nd
        assert temperature is not None
        return vectors_nd * temperature.to(self.dtype).rsqrt()

    def _place(
        self, vectors_nd: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        vectors_nd, zero_n = self._lay(vectors_nd, temperature)
        vectors_nd = vectors_nd - self.middle_d
        if self.on_sphere:
            return vectors_nd, zero_n
        # After centring: far from the origin, scaling first would round x - c at the size of x.
        return self._by_channel(vectors_nd, temperature), zero_n

    def rows(self, x_bd: Tensor, temperature: Tensor | None) -> Points:
        """Place feature vectors.

        Parameters
        ----------
        x_bd : Tensor
            Feature vectors.
        temperature : Tensor or None
            As in `classes`; only that of channels matters here.

        Returns
        -------
        Points
            For `expand`.
        """
        vectors_bd, zero_b = self._place(x_bd, temperature)
        return Points(vectors_bd, _squares(vectors_bd), None, zero_b)

    def classes(self, prototypes_cd: Tensor, temperature: Tensor | None) -> Points:
        """Place prototypes: all of them or a chunk.

        Parameters
        ----------
        prototypes_cd : Tensor
            Some of the prototypes.
        temperature : Tensor or None
            Their temperature (a chunk of it, where it has a row for each class).

        Returns
        -------
        Points
            For `expand`.
        """
        vectors_cd, zero_c = self._place(prototypes_cd, temperature)
        if self.scheme not in ("class", "dense"):
            return Points(vectors_cd, _squares(vectors_cd), None, zero_c)
        assert temperature is not None
        weight = temperature.to(self.dtype).reciprocal()
        if self.scheme == "class":
            return Points(vectors_cd, _squares(vectors_cd), weight, zero_c)
        weighted_cd = weight * vectors_cd
        return Points(weighted_cd, (weighted_cd * vectors_cd).sum(1), weight, zero_c)

    def expand(self, rows: Points, classes: Points, *, floor: bool = False) -> Expansion:
        """Square the distances by matrix products.

        Parameters
        ----------
        rows, classes : Points
            What `rows` and `classes` gave.
        floor : bool
            Lift each square by its rounding error, which keeps it positive and keeps
            ``(x - c) / distance``, the gradient, no longer than 1.

        Returns
        -------
        Expansion
            Squares and their sizes.
        """
        if self.uncentred:
            return self._expand_cosine(rows, classes)
        if self.scheme == "dense":
            assert classes.weight is not None
            size_bc = rows.vectors_nd.square() @ classes.weight.mT + classes.square_n
        else:
            size_bc = rows.square_n.unsqueeze(1) + classes.square_n
        # Shrinking the product by the error lifts the difference by it: (1 - e) s + e size.
        factor = -2 * (1 - self.rounding) if floor and self.distance == "euclidean" else -2.0
        square_bc = torch.addmm(size_bc, rows.vectors_nd, classes.vectors_nd.mT, alpha=factor)
        if self.scheme == "class":
            assert classes.weight is not None
            square_bc, size_bc = square_bc * classes.weight.mT, size_bc * classes.weight.mT
        if rows.zero_n is not None and classes.zero_n is not None:
            # No direction: |u - v|^2 lacks the 1 that each missing unit vector would have added.
            square_bc = square_bc + rows.zero_n.unsqueeze(1) + classes.zero_n
        return Expansion(square_bc, size_bc)

    def rank(self, rows: Points, classes: Points) -> Ranking:
        """Give scores that order the classes of each row as their distances do.

        Parameters
        ----------
        rows, classes : Points
            What `rows` and `classes` gave.

        Returns
        -------
        Ranking
            Scores, what they lack, and how far they may be off.
        """
        if self.scheme in ("class", "dense"):
            square_bc, size_bc = self.expand(rows, classes)
            return Ranking(square_bc, rows.square_n.new_zeros(()), self.error(size_bc))
        offset_c = classes.square_n if classes.zero_n is None else classes.square_n + classes.zero_n
        score_bc = torch.addmm(offset_c, rows.vectors_nd, classes.vectors_nd.mT, alpha=-2)
        largest, rest_b = classes.square_n.amax(), rows.square_n
        if rows.zero_n is not None:
            size_b, rest_b = largest + rest_b, rest_b + rows.zero_n
        else:
            # The row's own square is no part of the score: however far a row is, this is small.
            size_b = torch.add(largest, (rest_b * largest).sqrt_(), alpha=2)
        return Ranking(score_bc, rest_b.unsqueeze(1), self.error(size_b).unsqueeze(1))

    def _expand_cosine(self, rows: Points, classes: Points) -> Expansion:
        assert classes.weight is not None
        length_bc = rows.vectors_nd.square() @ classes.weight.mT * classes.square_n
        full_bc = length_bc > 0
        product_bc = rows.vectors_nd @ classes.vectors_nd.mT
        cosine_bc = product_bc * torch.where(full_bc, length_bc, 1).rsqrt() * full_bc
        return Expansion(2 - 2 * cosine_bc, torch.full_like(cosine_bc, 2))

    def error(self, size_bc: Tensor) -> Tensor:
        """Bound the rounding error of squares of the given sizes, that of unit vectors included.

        Parameters
        ----------
        size_bc : Tensor
            Sizes that `expand` gave.

        Returns
        -------
        Tensor
            How far the squares may be off.
        """
        error_bc = size_bc.clamp_min(self._least_size) * self.rounding
        if not self.on_sphere:
            return error_bc
        return error_bc + size_bc.sqrt() * (8 * torch.finfo(self.dtype).eps)

    def in_double(self) -> Space:
        """Give the same space for `pairs` in float64 (float32 where a device has none).

        Returns
        -------
        Space
            A copy.
        """
        exact = copy(self)
        if not (isinstance(self.middle_d, Tensor) and self.middle_d.device.type == "mps"):
            exact.dtype = exact.result_dtype = torch.float64
        return exact

    def link(self, square_bc: Tensor) -> Tensor:
        """Turn squares into distances, in the result's dtype.

        Parameters
        ----------
        square_bc : Tensor
            Squares; those below zero by rounding become zero.

        Returns
        -------
        Tensor
            Distances, with a finite gradient at zero.
        """
        if self.distance == "euclidean":
            tiny = torch.finfo(self.dtype).tiny
            return torch.where(square_bc > tiny, square_bc, tiny).sqrt() * (square_bc > tiny)
        distance_bc = square_bc.clamp_min(0)
        return (distance_bc / 2 if self.on_sphere else distance_bc).to(self.result_dtype)

    def pairs(self, x_pd: Tensor, prototypes_pd: Tensor, temperature: Tensor | None) -> Tensor:
        """Give the distances of single pairs by subtraction: exact to the last bits.

        Parameters
        ----------
        x_pd, prototypes_pd : Tensor
            The two vectors of each pair, in the last dimension of any number.
        temperature : Tensor or None
            (1, D), or a row for each pair.

        Returns
        -------
        Tensor
            One distance a pair; its gradient is zero where the distance is.
        """
        x_pd, prototypes_pd = x_pd.to(self.dtype), prototypes_pd.to(self.dtype)
        scale = None
        if self.scheme is not None and temperature is not None:
            scale = temperature.to(self.dtype).rsqrt()
        if self.on_sphere:
            u_pd, no_u = self._units(x_pd, scale)
            v_pd, no_v = self._units(prototypes_pd, scale)
            distance_p = ((u_pd - v_pd).square().sum(-1) + no_u + no_v) / 2
            return torch.where((no_u + no_v) > 0, 1, distance_p).to(self.result_dtype)
        difference_pd = x_pd - prototypes_pd
        if scale is not None:
            difference_pd = difference_pd * scale
        if self.distance == "euclidean":
            length_p: Tensor = torch.linalg.vector_norm(difference_pd, dim=-1)
            return length_p
        return difference_pd.square().sum(-1)

    def _units(self, vectors_pd: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        if self._any_length:
            vectors_pd = _of_largest_one(vectors_pd)
        return unit_rows(vectors_pd if scale is None else vectors_pd * scale)

    def beyond(
        self,
        x_pd: Tensor,
        prototypes: Tensor,
        temperature: Tensor | None,
        class_p: Tensor,
        other_p: Tensor,
    ) -> Tensor:
        """Say how much larger the square of one distance is than that of another.

        ``|x - c|^2 - |x - o|^2 = (c - o) . (c + o - 2x)``: where a row is so far away that the two
        distances are equal in every digit, this still tells which is shorter.

        Parameters
        ----------
        x_pd : Tensor
            Rows.
        prototypes, temperature : Tensor, Tensor or None
            All of them.
        class_p, other_p : Tensor
            Which two classes to compare.

        Returns
        -------
        Tensor
            One number a row.
        """
        x_pd, class_pd, other_pd = (
            vectors.to(self.dtype) for vectors in (x_pd, prototypes[class_p], prototypes[other_p])
        )
        class_t, other_t = (own_temperature(temperature, index) for index in (class_p, other_p))
        if self.on_sphere:
            found_p = self.pairs(x_pd, class_pd, class_t)
            return 2 * (found_p - self.pairs(x_pd, other_pd, other_t))
        gap_pd = (class_pd - other_pd) * (class_pd + other_pd - 2 * x_pd)
        if class_t is None or other_t is None:
            return gap_pd.sum(1)
        class_w, other_w = (t.to(self.dtype).reciprocal() for t in (class_t, other_t))
        gap_pd = gap_pd * class_w
        if self.scheme in ("class", "dense"):
            gap_pd += (class_w - other_w) * (x_pd - other_pd).square()
        return gap_pd.sum(1)


def _of_largest_one(vectors_nd: Tensor) -> Tensor:
    """Scale rows to a largest entry of 1, which changes no angle, so that no square overflows."""
    largest_n1 = torch.linalg.vector_norm(vectors_nd, torch.inf, dim=-1, keepdim=True)
    scaled_nd: Tensor = vectors_nd / largest_n1.masked_fill_(largest_n1 == 0, 1)
    return scaled_nd


def _squares(vectors_nd: Tensor) -> Tensor:
    if vectors_nd.requires_grad:
        return vectors_nd.square().sum(1)
    square_n: Tensor = torch.linalg.vector_norm(vectors_nd, dim=1).square()  # without a copy
    return square_n

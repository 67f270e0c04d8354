"""Squared lengths between rows and classes by matrix products, and exactly, pair by pair.

Every distance is a function of one square: the squared length of ``x - c`` (cosine: of the
difference of two unit vectors). No batch x class x channel tensor is built: the square is expanded
into matrix products on vectors centred by the mean of the prototypes. All of it is ordinary
differentiable torch, but for what is exact, which is in float64.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from protail.ops._arguments import compute_dtype, memory_budget, pieces, scheme_of
from protail.ops._precision import own_temperature, rounding

if TYPE_CHECKING:
    from protail.ops.distance import Distance

# Centring needs a point among the prototypes: where they are many, the mean of some of them,
# taken at equal steps, serves as well. In elements.
_CENTRING_SAMPLE = 2**16
# Elements of the vectors that a CPU subtracts at a time; bytes that each of them takes.
_SUBTRACTED_AT_A_TIME = 2**20
_BYTES_OF_ONE = 32
# Float64 numbers above the first are divided by the second before they are squared.
_LARGE, _DIVISOR = 2.0**400, 2.0**600


# Vectors, and 1 where one has no direction; a class's vector, and its temperature.
Laid = tuple[Tensor, Tensor | None]
Own = tuple[Tensor, Tensor | None]


class Inputs(NamedTuple):
    """Rows, prototypes and temperature, as ``check_inputs`` gives it."""

    x_bd: Tensor
    prototypes_cd: Tensor
    temperature: Tensor | None

    def of_rows(self, rows: Tensor | slice) -> Inputs:
        """Take some rows and all prototypes."""
        return self._replace(x_bd=self.x_bd[rows])

    def of_classes(self, index: Tensor) -> Own:
        """Take the prototypes of some classes, and their temperature."""
        return self.prototypes_cd[index], own_temperature(self.temperature, index)

    def in_wider_numbers(self) -> tuple[Inputs, float] | None:
        """Give float64 numbers whose squares do not overflow, and what they were divided by."""
        if compute_dtype(*self) == torch.float32:
            x_bd, prototypes_cd, temperature = self
            scale = None if temperature is None else temperature.double()
            return Inputs(x_bd.double(), prototypes_cd.double(), scale), 1.0
        x_bd, prototypes_cd = (vectors.double() for vectors in self[:2])
        if not any(bool(_is_large(vectors).any()) for vectors in (x_bd, prototypes_cd)):
            return None
        return Inputs(x_bd / _DIVISOR, prototypes_cd / _DIVISOR, self.temperature), _DIVISOR


def _is_large(vectors: Tensor) -> Tensor:
    return (vectors.abs() > _LARGE) & vectors.isfinite()


class Points(NamedTuple):
    """Vectors placed in a space, ready for the matrix product."""

    vectors_nd: Tensor
    square_n: Tensor
    weight: Tensor | None = None  # 1/T: (n, 1) for class, (n, D) for dense temperatures
    zero_n: Tensor | None = None  # 1 where a vector has no direction (cosine)


class Expansion(NamedTuple):
    """Squares, and the sums they were subtracted from: off by at most ``rounding * size_bc``."""

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

    It takes rows and prototypes for their dtypes and the prototypes' mean, and the temperature as
    ``check_inputs`` gives it. With ``any_length`` cosine finds the direction of vectors whose
    squares over- or underflow too: two passes over the vectors, which training can do without.
    """

    def __init__(
        self,
        distance: Distance,
        x_bd: Tensor,
        prototypes_cd: Tensor,
        temperature: Tensor | None,
        *,
        any_length: bool = False,
    ) -> None:
        self.distance, self.any_length, self.centred = distance, any_length, True
        self.scheme = scheme_of(temperature)
        self.dtype = self.result_dtype = compute_dtype(x_bd, prototypes_cd, temperature)
        self._settle(x_bd.device)
        n_terms = distance.width(prototypes_cd.shape[1])
        self.rounding = rounding(n_terms, self.dtype, x_bd.device)
        # Below this size products underflow, and the error is no part of the size any more.
        self._least_size = 4 * n_terms * torch.finfo(self.dtype).tiny / self.rounding
        self.middle_d = torch.zeros((), dtype=self.dtype, device=x_bd.device)
        if self.centred:
            stride = max(1, -(-prototypes_cd.numel() // _CENTRING_SAMPLE))
            with torch.no_grad():
                self.middle_d = self._lay(prototypes_cd[::stride], temperature)[0].mean(0)

    def _settle(self, device: torch.device) -> None:
        """Change scheme, dtype and centring, where the space needs others."""

    def _lay(self, vectors_nd: Tensor, temperature: Tensor | None) -> Laid:
        """Bring vectors to where they are centred; mark those without direction."""
        return vectors_nd.to(self.dtype), None

    def _place(self, vectors_nd: Tensor, temperature: Tensor | None) -> Laid:
        vectors_nd, zero_n = self._lay(vectors_nd, temperature)
        # Centred first: far from the origin, scaling would round x - c at the size of x.
        centred_nd = self.distance.difference(vectors_nd, self.middle_d)
        return self._by_channel(centred_nd, temperature), zero_n

    def _by_channel(self, vectors_nd: Tensor, temperature: Tensor | None) -> Tensor:
        if self.scheme != "channel":
            return vectors_nd
        assert temperature is not None
        return vectors_nd * temperature.to(self.dtype).rsqrt()

    def rows(self, x_bd: Tensor, temperature: Tensor | None) -> Points:
        """Place feature vectors; only a temperature of channels matters here."""
        vectors_bd, zero_b = self._place(x_bd, temperature)
        return Points(vectors_bd, _squares(vectors_bd), None, zero_b)

    def classes(self, prototypes_cd: Tensor, temperature: Tensor | None) -> Points:
        """Place some prototypes, with their own rows of the temperature where it has one each."""
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

        With ``floor`` each square is lifted by its rounding error where the distance's gradient
        divides by it: it stays positive, and ``(x - c) / d`` no longer than 1.
        """
        if self.scheme == "dense":
            assert classes.weight is not None
            size_bc = rows.vectors_nd.square() @ classes.weight.mT + classes.square_n
        else:
            size_bc = rows.square_n.unsqueeze(1) + classes.square_n
        # Shrinking the product by the error lifts the difference by it: (1 - e) s + e size.
        factor = -2 * (1 - self.rounding) if floor and self.distance.lifts else -2.0
        square_bc = torch.addmm(size_bc, rows.vectors_nd, classes.vectors_nd.mT, alpha=factor)
        if self.scheme == "class":
            assert classes.weight is not None
            square_bc, size_bc = square_bc * classes.weight.mT, size_bc * classes.weight.mT
        if rows.zero_n is not None and classes.zero_n is not None:
            # No direction: |u - v|^2 lacks the 1 that each missing unit vector would have added.
            square_bc = square_bc + rows.zero_n.unsqueeze(1) + classes.zero_n
        return Expansion(square_bc, size_bc)

    def distances(self, rows: Points, classes: Points, *, floor: bool) -> Tensor:
        """Give the distances, in the result's dtype."""
        square_bc = self.expand(rows, classes, floor=floor).square_bc
        return self.distance.link(square_bc).to(self.result_dtype)

    def rank(self, rows: Points, classes: Points) -> Ranking:
        """Give scores that order the classes of each row as their distances do."""
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

    def error(self, size_bc: Tensor) -> Tensor:
        """Bound the rounding error of squares of the sizes that `expand` gave."""
        return size_bc.clamp_min(self._least_size) * self.rounding

    def in_double(self) -> Space:
        """Give the same space for `pairs` in float64 (float32 where a device has none)."""
        exact = copy(self)
        if self.middle_d.device.type != "mps":
            exact.dtype = exact.result_dtype = torch.float64
        return exact

    def pairs(self, x_pd: Tensor, prototypes_pd: Tensor, temperature: Tensor | None) -> Tensor:
        """Give the distances of single pairs by subtraction: exact to the last bits.

        The vectors lie in the last of any number of dimensions, and the temperature has one row,
        or one for each pair. The gradient is zero where the distance is.
        """
        x_pd, prototypes_pd = x_pd.to(self.dtype), prototypes_pd.to(self.dtype)
        difference_pd = self.distance.difference(x_pd, prototypes_pd)
        scale = self._scale(temperature)
        return self.distance.measure(difference_pd if scale is None else difference_pd * scale)

    def _scale(self, temperature: Tensor | None) -> Tensor | None:
        if self.scheme is None or temperature is None:
            return None
        return temperature.to(self.dtype).rsqrt()

    def beyond(self, x_pd: Tensor, one: Own, other: Own) -> Tensor:
        """Say how much larger the square of one distance is than that of another, row by row.

        ``|x - c|^2 - |x - o|^2 = (c - o) . (c + o - 2x)``: where a row is so far away that the two
        distances are equal in every digit, this still tells which is shorter.
        """
        x_pd, c_pd, o_pd = (vectors.to(self.dtype) for vectors in (x_pd, one[0], other[0]))
        subtract = self.distance.difference
        gap_pd = subtract(c_pd, o_pd) * subtract(c_pd + o_pd, 2 * x_pd)
        if one[1] is None or other[1] is None:
            return gap_pd.sum(1)
        class_w, other_w = (t.to(self.dtype).reciprocal() for t in (one[1], other[1]))
        gap_pd = gap_pd * class_w
        if self.scheme in ("class", "dense"):
            gap_pd += (class_w - other_w) * subtract(x_pd, o_pd).square()
        return gap_pd.sum(1)


def _squares(vectors_nd: Tensor) -> Tensor:
    if vectors_nd.requires_grad:
        return vectors_nd.square().sum(1)
    square_n: Tensor = torch.linalg.vector_norm(vectors_nd, dim=1).square()  # without a copy
    return square_n


def exact_distances(space: Space, inputs: Inputs, class_bk: Tensor) -> Tensor:
    """Measure each row from some classes of its own by subtraction in float64."""
    exact, x_bd = space.in_double(), inputs.x_bd
    n_rows, n_features = x_bd.shape
    width = class_bk.shape[1] * max(1, n_features)
    step = _SUBTRACTED_AT_A_TIME // width
    if x_bd.device.type != "cpu":
        budget = memory_budget(x_bd.device, n_rows * width * _BYTES_OF_ONE)
        step = budget // (width * _BYTES_OF_ONE)
    found = [
        exact.pairs(x_bd[rows].unsqueeze(1), *inputs.of_classes(class_bk[rows]))
        for rows in pieces(n_rows, max(1, step))
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def beyond(space: Space, inputs: Inputs, row_p: Tensor, class_p: Tensor, other_p: Tensor) -> Tensor:
    """Compare the squares of two classes' distances from a row in float64; see `Space.beyond`."""
    exact, x_bd = space.in_double(), inputs.x_bd
    found_p = torch.empty(len(row_p), dtype=exact.dtype, device=x_bd.device)
    for part in pieces(len(row_p), max(1, _SUBTRACTED_AT_A_TIME // max(1, x_bd.shape[1]))):
        pair = (inputs.of_classes(index_p[part]) for index_p in (class_p, other_p))
        found_p[part] = exact.beyond(x_bd[row_p[part]], *pair)
    return found_p

"""Distances as objects: what each measures, its gradient, how it rounds, how it scales.

`protail.ops`, heads, the estimator and recipes ask the distance and never its name. A new one is
one class here, or in a file of one's own, that registers itself.

Of the Euclidean distance ``d = |x - c|`` the gradient by ``x`` is ``(x - c) / d``, a vector of
length 1, however far away the row is; by ``c`` it is the opposite. `Euclidean.pull_` is that,
written by hand: `protail.ops.fused` multiplies what it gives by ``x - c``. In the plain and the
chunked form autograd derives `Euclidean.link`; the kernels have the same formula in Triton.
`protail.ops.loss` chooses the form.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from protail._registry import Registry
from protail.ops._arguments import compute_dtype, scheme_of
from protail.ops._precision import smallest_length, unit_rows
from protail.ops._space import Expansion, Inputs, Laid, Own, Points, Space

__all__ = [
    "DISTANCES", "Cosine", "Distance", "Euclidean", "Mahalanobis", "SqEuclidean", "as_distance",
    "distance_names", "make_distance", "register_distance",
]  # fmt: skip

Flat = tuple[Inputs, Tensor | None, "Distance"]


class Distance:
    """How far a row is from a prototype, as everything in `protail.ops` asks it.

    A distance follows from one square: the squared length of `difference`, which is ``x - c`` or
    a linear map of it, each channel divided by its temperature. How squares are expanded into
    matrix products, cut into pieces and searched is the same for all; what they become is said
    here. As it stands this is a distance that is the square; one that is its root is a subclass
    of `Euclidean`.

    Attributes
    ----------
    name : str
        What users write; `register_distance` sets it.
    power : int
        Rows and prototypes k times as long are ``k ** power`` times as far: 1, 2, or 0 where
        lengths do not matter. By it fits choose the length of rows.
    rate : float
        What a logit loses for each unit that `link_` gives.
    lifts : bool
        Whether the gradient divides by the distance: squares are then lifted by their rounding
        error, so that nothing is divided by rounding error alone.
    vector_copies : int
        Copies of its vectors that placing them takes, for the memory budget.
    space : type
        Where vectors are placed for matrix products.

    Examples
    --------
    >>> import torch
    >>> from protail.ops.distance import as_distance
    >>> euclidean = as_distance("euclidean")
    >>> (
    ...     euclidean.between(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])),
    ...     euclidean.power,
    ... )
    (tensor([5.]), 1)
    """

    name: str = ""
    power: int = 2
    rate: float = 0.5
    lifts: bool = False
    vector_copies: int = 2
    space: type[Space] = Space

    def __init_subclass__(cls) -> None:
        """Take no name over: only what is registered under it can be made again by a name."""
        cls.name = ""

    @classmethod
    def for_features(cls, n_features: int) -> Self:
        """Make the distance of a head for rows of this length, with parameters to learn, if any."""
        return cls()

    def tensors(self) -> tuple[Tensor, ...]:
        """Give the tensors the distance holds; one that has any is a ``torch.nn.Module`` too."""
        return ()

    def width(self, n_features: int) -> int:
        """Say how many channels `difference` makes of as many: each can have a temperature."""
        return n_features

    def difference(self, x_pd: Tensor, other_pd: Tensor) -> Tensor:
        """Subtract vectors, in the dtype of the first; a linear map may follow."""
        return x_pd - other_pd

    def between(self, x_pd: Tensor, prototypes_pd: Tensor) -> Tensor:
        """Measure each row from the prototype beside it: what the distance is."""
        return self.measure(self.difference(x_pd, prototypes_pd))

    def measure(self, difference_pd: Tensor) -> Tensor:
        """Give the distances that belong to differences, exactly."""
        return difference_pd.square().sum(-1)

    def link(self, square_bc: Tensor) -> Tensor:
        """Turn squares into distances, with a finite gradient at 0, which autograd derives."""
        return square_bc.clamp_min(0)

    def unlink(self, distance: Tensor) -> Tensor:
        """Turn distances into squares."""
        return distance

    def gaps(self, square_b: Tensor, beyond_bc: Tensor) -> tuple[Tensor, Tensor]:
        """Turn least squares, and how much larger others are, into distances; may be in place."""
        return square_b, beyond_bc

    def room(self, square: Tensor, allowed: Tensor, part: float) -> Tensor:
        """Say how far squares may be off, so that distances are by ``part`` of the row's largest.

        ``allowed`` is that part of the row's largest square.
        """
        return allowed.expand_as(square)

    def times(self, distance: Tensor, factor: float) -> Tensor:
        """Give the distances of rows and prototypes ``factor`` times as long."""
        for _ in range(self.power):
            distance = distance * factor
        return distance

    def steepness(self, distance: float) -> float:
        """Say how fast a distance of this size grows with the length of ``x - c``."""
        return 2 * math.sqrt(distance)

    def flat(self, inputs: Inputs, adjustment_c: Tensor | None) -> Flat:
        """Move a loss to where the distance follows from ``|x - c|`` alone; autograd sees it."""
        if type(self).difference is Distance.difference:
            return inputs, adjustment_c, self
        x_bd, prototypes_cd = (vectors.to(compute_dtype(*inputs)) for vectors in inputs[:2])
        middle_d = prototypes_cd.detach().mean(0)
        u_bd, v_cd = (self.difference(vectors, middle_d) for vectors in (x_bd, prototypes_cd))
        return Inputs(u_bd, v_cd, inputs.temperature), adjustment_c, self

    def link_(self, square_bc: Tensor, own_b1: Tensor) -> None:
        """Turn squares, and lengths of ``x - c`` for the target class, into distances, in place."""
        own_b1.square_()

    def pull_(self, p: Tensor, distance: Tensor) -> float:
        """Multiply slopes of the loss by the distance's gradient, written by hand.

        In place ``p`` becomes what multiplies ``x - c``, but for a factor, which is given back.
        ``distance`` is above 0. Of a square the gradient is ``2 (x - c)``.
        """
        return 2.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


Made = TypeVar("Made", bound=Distance)

DISTANCES: Registry[Distance] = Registry("distance", given=())
# Those that a name alone makes. Compiled code looks here: it cannot see through the registry.
_READY: dict[str, Distance] = {}


def register_distance(name: str) -> Callable[[type[Made]], type[Made]]:
    """Give a distance a name that heads, the estimator and recipes know.

    Parameters
    ----------
    name : str
        What users will write. It must be free.

    Returns
    -------
    callable
        A decorator for a subclass of `Distance`.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> from protail.ops.distance import Euclidean, register_distance
    >>> @register_distance("first-channel")
    ... class FirstChannel(Euclidean):
    ...     def difference(self, x, other):
    ...         return super().difference(x, other)[..., :1]
    ...
    ...     def width(self, n_features):
    ...         return 1
    >>> distances(torch.tensor([[3.0, 5.0]]), torch.tensor([[1.0, 0.0]]), "first-channel")
    tensor([[2.]])
    """
    remember = DISTANCES.register(name)

    def register(distance: type[Made]) -> type[Made]:
        remember(distance)
        distance.name = name
        if not inspect.signature(distance).parameters:
            _READY[name] = distance()
        return distance

    return register


def distance_names(*, ready: bool = False) -> list[str]:
    """List the distances that `make_distance` knows.

    Parameters
    ----------
    ready : bool, default=False
        Only those that have no tensors of their own, so that a name says all.

    Returns
    -------
    list of str
        In the order of the alphabet.

    Examples
    --------
    >>> from protail.ops import distance_names
    >>> {"cosine", "euclidean", "mahalanobis", "sqeuclidean"} <= set(distance_names())
    True
    """
    return [name for name in DISTANCES.names() if not ready or name in _READY]


def as_distance(distance: str | Distance) -> Distance:
    """Give the distance that a name stands for; one that is no name comes back.

    Parameters
    ----------
    distance : str or Distance
        A name of ``distance_names(ready=True)``, or a distance.

    Returns
    -------
    Distance
        The object to ask.

    Examples
    --------
    >>> from protail.ops.distance import as_distance
    >>> as_distance("cosine")
    Cosine()
    """
    if isinstance(distance, Distance):
        return distance
    ready = _READY.get(distance)
    return DISTANCES.make(distance) if ready is None else ready


def make_distance(distance: str | Distance, n_features: int) -> Distance:
    """Make a distance for a head: one with tensors begins with parameters to learn.

    Parameters
    ----------
    distance : str or Distance
        A name of `distance_names`, or a distance, which comes back.
    n_features : int
        Length of a feature vector.

    Returns
    -------
    Distance
        The object to ask.

    Examples
    --------
    >>> from protail.ops import make_distance
    >>> make_distance("mahalanobis", 2).matrix.data
    tensor([[1., 0.],
            [0., 1.]])
    """
    if isinstance(distance, Distance):
        return distance
    made: Distance = DISTANCES.factory(distance).for_features(n_features)  # type: ignore[attr-defined]
    return made


@register_distance("sqeuclidean")
class SqEuclidean(Distance):
    """The squared length of ``x - c``.

    References
    ----------
    Prototypical Networks for Few-shot Learning. NeurIPS 2017.

    Examples
    --------
    >>> import torch
    >>> from protail.ops.distance import SqEuclidean
    >>> SqEuclidean().between(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]))
    tensor([25.])
    """

    def between(self, x_pd: Tensor, prototypes_pd: Tensor) -> Tensor:
        """Square the length."""
        length_p: Tensor = torch.linalg.vector_norm(self.difference(x_pd, prototypes_pd), dim=-1)
        return length_p.square()


@register_distance("euclidean")
class Euclidean(Distance):
    """The length of ``x - c``.

    References
    ----------
    Learning Prototype Classifiers for Long-Tailed Recognition. IJCAI 2023.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> from protail.ops.distance import Euclidean
    >>> distances(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]), Euclidean())
    tensor([[5.]])
    """

    power = 1
    lifts = True

    def measure(self, difference_pd: Tensor) -> Tensor:
        """Give the length; its gradient is zero where the length is."""
        length_p: Tensor = torch.linalg.vector_norm(difference_pd, dim=-1)
        return length_p

    def link(self, square_bc: Tensor) -> Tensor:
        """Take the root; where there is next to none, 0 with a gradient of 0."""
        tiny = torch.finfo(square_bc.dtype).tiny
        return torch.where(square_bc > tiny, square_bc, tiny).sqrt() * (square_bc > tiny)

    def unlink(self, distance: Tensor) -> Tensor:
        """Square."""
        return distance.square()

    def gaps(self, square_b: Tensor, beyond_bc: Tensor) -> tuple[Tensor, Tensor]:
        """Take ``sqrt(s + e) - sqrt(s)`` as ``e / (sqrt(s + e) + sqrt(s))``, which keeps digits."""
        nearest_b = square_b.sqrt()
        sum_bc = (square_b.unsqueeze(1) + beyond_bc).sqrt_().add_(nearest_b.unsqueeze(1))
        return nearest_b, beyond_bc.div_(sum_bc.clamp_min_(torch.finfo(sum_bc.dtype).tiny))

    def room(self, square: Tensor, allowed: Tensor, part: float) -> Tensor:
        """Let a root be off by ``part`` of the largest: it is off by ``error / (2 root)``."""
        return allowed.sqrt() * square.sqrt().mul_(2 * part**0.5)

    def steepness(self, distance: float) -> float:
        """Give 1: far and near it grows as the length does."""
        return 1.0

    def link_(self, square_bc: Tensor, own_b1: Tensor) -> None:
        """Take the roots."""
        square_bc.clamp_min_(smallest_length(square_bc.dtype) ** 2).sqrt_()

    def pull_(self, p: Tensor, distance: Tensor) -> float:
        """Divide by the distance: the gradient is ``(x - c) / d``."""
        p /= distance
        return 1.0


@register_distance("mahalanobis")
class Mahalanobis(nn.Module, Euclidean):
    """The length of ``A (x - c)``, where the matrix A is the same for all classes.

    Temperatures divide the channels that the map makes.

    Parameters
    ----------
    matrix : Tensor
        The map, (channels it makes, channels); a ``torch.nn.Parameter`` is learned.

    References
    ----------
    On the generalized distance in statistics. Proceedings of the National Institute of Sciences
    of India, 1936.

    Examples
    --------
    >>> import torch
    >>> from protail.ops import distances
    >>> from protail.ops.distance import Mahalanobis
    >>> x, prototypes = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    >>> distances(x, prototypes, Mahalanobis(torch.tensor([[1.0, 0.0], [0.0, 4.0]])))
    tensor([[5., 8.]])

    In a head it is saved and moved with the head:

    >>> from protail.models.heads import PrototypeHead
    >>> list(PrototypeHead(3, 2, distance="mahalanobis").state_dict())
    ['prototypes', 'metric.matrix']
    """

    vector_copies = 8
    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        if matrix.ndim != 2 or not matrix.is_floating_point():
            raise ValueError(
                f"matrix has shape {tuple(matrix.shape)} and dtype {matrix.dtype}; expected "
                "floating point of two dimensions, channels it makes by channels."
            )
        if isinstance(matrix, nn.Parameter):
            self.matrix = matrix
        else:
            self.register_buffer("matrix", matrix)

    @classmethod
    def for_features(cls, n_features: int) -> Self:
        """Begin with the Euclidean distance: the identity, to be learned."""
        return cls(nn.Parameter(torch.eye(n_features)))

    def tensors(self) -> tuple[Tensor, ...]:
        """Give the map."""
        return (self.matrix,)

    def width(self, n_features: int) -> int:
        """Count the rows of the map."""
        n_made, n_taken = self.matrix.shape
        if n_taken != n_features:
            raise ValueError(
                f"the distance's matrix has shape {(n_made, n_taken)}; expected "
                f"{n_features} columns, as many as the prototypes have channels."
            )
        return n_made

    def difference(self, x_pd: Tensor, other_pd: Tensor) -> Tensor:
        """Subtract and map in float64: a map that whitens magnifies what rounding leaves."""
        wide = torch.float32 if x_pd.device.type == "mps" else torch.float64
        moved_pd = (x_pd.to(wide) - other_pd.to(wide)) @ self.matrix.to(wide).mT
        return moved_pd.to(x_pd.dtype)

    def flat(self, inputs: Inputs, adjustment_c: Tensor | None) -> Flat:
        """Map both sides once: what is left is Euclidean."""
        return *super().flat(inputs, adjustment_c)[:2], Euclidean()

    def extra_repr(self) -> str:
        """Show the map's shape in ``repr``."""
        return f"{tuple(self.matrix.shape)}"

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take a map of any number of rows, as long as it has the same columns."""
        saved = state_dict.get(prefix + "matrix")
        if saved is not None and saved.ndim == 2 and saved.shape[1] == self.matrix.shape[1]:
            self.matrix.data = self.matrix.data.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


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
    """One minus the cosine of the angle between x and c: half the square between unit vectors.

    All that `SqEuclidean` knows holds on the sphere; what is added here is the way there and back.
    A vector without direction is 1 from everything.

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

"""What every distance says of itself, and distances by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Self, TypeVar

from torch import Tensor

from protail._registry import Registry
from protail.ops._arguments import compute_dtype
from protail.ops._space import Inputs, Space

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

DISTANCES: Registry[Distance] = Registry("distance", given=(), package="protail.ops.distance")
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

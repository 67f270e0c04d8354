"""Random classification problems in any dtype, drawn by hypothesis."""

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import torch

from protail.ops.distance import Mahalanobis
from reference import distances as naive

DISTANCES = ("cosine", "euclidean", "sqeuclidean")
# The last of these has a matrix, and is given as an object.
ALL_DISTANCES = (*DISTANCES, "mahalanobis")
SCHEMES = (None, "channel", "class", "dense")


def temperature_shape(scheme, n_classes, n_features):
    return {
        "channel": (1, n_features),
        "class": (n_classes, 1),
        "dense": (n_classes, n_features),
    }[scheme]


@dataclass
class Problem:
    """Inputs as tensors of one dtype, and what the loops make of exactly these numbers."""

    x: torch.Tensor
    prototypes: torch.Tensor
    target: torch.Tensor
    distance: str | Mahalanobis
    temperature: torch.Tensor | None
    adjustment: torch.Tensor | None

    @property
    def options(self):
        return {"distance": self.distance, "temperature": self.temperature}

    @property
    def leaves(self):
        return [self.x, self.prototypes, self.temperature, self.adjustment, *self.matrix]

    @property
    def matrix(self):
        return [] if isinstance(self.distance, str) else [self.distance.matrix]

    @property
    def arrays(self):
        leaves = [None if leaf is None else leaf.detach().double().numpy() for leaf in self.leaves]
        return leaves[:4]

    @property
    def naive_distance(self):
        return self.matrix[0].detach().double().numpy() if self.matrix else self.distance

    def naive_distances(self):
        x, prototypes, temperature, _ = self.arrays
        return naive.distances(x, prototypes, self.naive_distance, temperature)

    def naive_losses(self):
        x, prototypes, temperature, adjustment = self.arrays
        target = self.target.tolist()
        return naive.losses(x, prototypes, target, self.naive_distance, temperature, adjustment)

    def naive_gradients(self):
        x, prototypes, temperature, adjustment = self.arrays
        target = self.target.tolist()
        return naive.gradients(x, prototypes, target, self.naive_distance, temperature, adjustment)

    def loss_and_gradients(self, loss, **options):
        """Mean loss and the gradients by all leaves, None for those that are not there."""
        leaves = [leaf.requires_grad_() for leaf in self.leaves if leaf is not None]
        value = loss(
            self.x,
            self.prototypes,
            self.target,
            **self.options,
            adjustment=self.adjustment,
            **options,
        )
        found = iter(torch.autograd.grad(value, leaves))
        return value.detach(), [None if leaf is None else next(found) for leaf in self.leaves]


def make_problem(
    seed=0,
    shape=(3, 4, 5),
    distance="euclidean",
    scheme=None,
    adjusted=True,
    offset=0.0,
    dtype=torch.float64,
):
    rng = np.random.default_rng(seed)
    n_rows, n_classes, n_features = shape

    def tensor(values):
        return torch.tensor(values, dtype=torch.float64).to(dtype)

    temperature = None
    if scheme is not None:
        size = temperature_shape(scheme, n_classes, n_features)
        temperature = tensor(rng.uniform(0.3, 3, size=size))
    problem = Problem(
        x=tensor(rng.normal(size=(n_rows, n_features)) + offset),
        prototypes=tensor(rng.normal(size=(n_classes, n_features)) + offset),
        target=torch.tensor(rng.integers(n_classes, size=n_rows)),
        distance=distance,
        temperature=temperature,
        adjustment=tensor(rng.normal(size=n_classes)) if adjusted else None,
    )
    if distance == "mahalanobis":
        matrix = rng.normal(size=(n_features, n_features)) / n_features**0.5
        problem.distance = Mahalanobis(tensor(matrix).to(torch.promote_types(dtype, torch.float32)))
    return problem


def problems(dtype=torch.float64, min_features=1, **fixed):
    """Strategy for problems; what is fixed is not drawn."""
    drawn = {
        "seed": st.integers(0, 2**32 - 1),
        "shape": st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(min_features, 7)),
        "distance": st.sampled_from(ALL_DISTANCES),
        "scheme": st.sampled_from(SCHEMES),
        "adjusted": st.booleans(),
        "offset": st.sampled_from([0.0, 3.0]),
    }
    drawn |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(make_problem, dtype=st.just(dtype), **drawn)


def assert_close(found, expected, rtol, atol):
    """Compare lists of tensors and arrays, either of which may hold None."""
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one.double().numpy(), other, rtol=rtol, atol=atol)

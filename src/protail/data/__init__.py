"""Data: what comes in, and in which order."""

from protail.data._row_sampler import RowSampler
from protail.data.samplers import (
    ClassBalancedSampler,
    InstanceSampler,
    ProgressiveSampler,
    SquareRootSampler,
    make_sampler,
)

__all__ = [
    "ClassBalancedSampler",
    "InstanceSampler",
    "ProgressiveSampler",
    "RowSampler",
    "SquareRootSampler",
    "make_sampler",
]

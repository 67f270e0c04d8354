"""Distances, one a file: what each measures, its gradient, how it rounds, how it scales.

`protail.ops`, heads, the estimator and recipes ask the distance and never its name, so a new one is
one file here that registers itself, or a file of one's own.
"""

from protail.ops.distance.base import (
    DISTANCES,
    Distance,
    as_distance,
    distance_names,
    make_distance,
    register_distance,
)
from protail.ops.distance.cosine import Cosine
from protail.ops.distance.euclidean import Euclidean
from protail.ops.distance.mahalanobis import Mahalanobis
from protail.ops.distance.sqeuclidean import SqEuclidean

__all__ = [
    "DISTANCES",
    "Cosine",
    "Distance",
    "Euclidean",
    "Mahalanobis",
    "SqEuclidean",
    "as_distance",
    "distance_names",
    "make_distance",
    "register_distance",
]

"""Methods: what a training step computes of backbone, head, loss and a batch.

A method is a module, as in ``PaCo(backbone, head, loss, counts)(batch)``, which gives the loss of
a step. `make_method` makes one by its name in recipes.
"""

from protail.methods.dro_lt import DroLT
from protail.methods.method import (
    METHODS,
    ImageBatch,
    Method,
    make_method,
    method_names,
    register_method,
)
from protail.methods.mixture_consistency import MixtureConsistency, MixtureDistillation
from protail.methods.paco import PaCo
from protail.methods.ride import RoutedDiverseExperts, class_temperatures

__all__ = [
    "METHODS", "DroLT", "ImageBatch", "Method", "MixtureConsistency", "MixtureDistillation", "PaCo",
    "RoutedDiverseExperts", "class_temperatures", "make_method", "method_names", "register_method",
]  # fmt: skip

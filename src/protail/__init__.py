"""Prototype classifiers that are fair to rare classes."""

from protail.estimator import PrototypeClassifier
from protail.heads import PrototypeHead
from protail.losses import LogitAdjustedLoss
from protail.profile import ClassProfile

__version__ = "0.1.0"

__all__ = [
    "ClassProfile",
    "LogitAdjustedLoss",
    "PrototypeClassifier",
    "PrototypeHead",
    "__version__",
]

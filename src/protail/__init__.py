"""Prototype classifiers that are fair to rare classes."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protail.estimator import PrototypeClassifier
    from protail.evaluation import Comparison, Evaluation
    from protail.losses import LogitAdjustedLoss
    from protail.models.heads import PrototypeHead
    from protail.network import Network, load
    from protail.profile import ClassProfile

__version__ = "0.1.0"

# Where each name lives. torch takes seconds to import, so it waits until one of them is used:
# `protail --help` answers at once.
_HOMES = {
    "ClassProfile": "protail.profile",
    "Comparison": "protail.evaluation",
    "Evaluation": "protail.evaluation",
    "LogitAdjustedLoss": "protail.losses",
    "Network": "protail.network",
    "PrototypeClassifier": "protail.estimator",
    "PrototypeHead": "protail.models.heads",
    "load": "protail.network",
}
_PACKAGES = {
    "baselines",
    "data",
    "estimator",
    "evaluation",
    "experiments",
    "losses",
    "methods",
    "models",
    "ops",
    "options",
    "profile",
    "recipes",
    "report",
    "training",
}

__all__ = [
    "ClassProfile", "Comparison", "Evaluation", "LogitAdjustedLoss", "Network",
    "PrototypeClassifier", "PrototypeHead", "__version__", "load",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"protail.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'protail' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES})

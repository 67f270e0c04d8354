"""PrototypeClassifier, the scikit-learn face of protail."""

from protail.estimator._classifier import PrototypeClassifier

__all__ = ["PrototypeClassifier"]

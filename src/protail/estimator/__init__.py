"""PrototypeClassifier, the scikit-learn face of protail."""

from protail.estimator._classifier import PrototypeClassifier
from protail.estimator._model_file import ModelFileError

__all__ = ["ModelFileError", "PrototypeClassifier"]

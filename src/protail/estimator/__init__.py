"""PrototypeClassifier, the scikit-learn face of protail."""

from protail.estimator._card import network_card, network_html
from protail.estimator._checks import check_device, check_settings
from protail.estimator._classifier import PrototypeClassifier
from protail.estimator._module import LogitsToProbabilities, PhotosToProbabilities
from protail.estimator._persistence import FORMAT as CLASSIFIER_FORMAT
from protail.estimator._persistence import (
    PICTURE,
    check_replaceable,
    classifier_parts,
    is_model,
    restore_classifier,
)
from protail.models import ModelFileError

__all__ = [
    "CLASSIFIER_FORMAT",
    "PICTURE",
    "LogitsToProbabilities",
    "ModelFileError",
    "PhotosToProbabilities",
    "PrototypeClassifier",
    "check_device",
    "check_replaceable",
    "check_settings",
    "classifier_parts",
    "is_model",
    "network_card",
    "network_html",
    "restore_classifier",
]

"""Weights that come with the package."""

from __future__ import annotations

from pathlib import Path

_FILE = "resnet32-cifar100-lt.safetensors"


def bundled_weights() -> Path:
    """Say where the weights of the bundled ResNet-32 are.

    Stage 1 of the recipe wd-resnet32, seed 0, on CIFAR-100-LT at imbalance 100: what computed the
    features of the data set "cifar100-lt-features".

    Returns
    -------
    Path
        A file that `load_weights` and a recipe's ``representation.weights`` take.

    Examples
    --------
    >>> from protail.backbones import bundled_weights, make_backbone
    >>> make_backbone("resnet32", weights=bundled_weights()).n_features
    64
    """
    return Path(__file__).with_name(_FILE)

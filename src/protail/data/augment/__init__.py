"""Augment: what happens to an image before the backbone."""

from protail.data.augment._augment import CIFAR_MEAN, CIFAR_STD, Augment, make_augment
from protail.data.augment._draws import uniforms
from protail.data.augment._loader import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    InputSpec,
    LoaderTransform,
    make_loader_transform,
)
from protail.data.augment._mix import Mixed, mix, mix_weights

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Augment",
    "InputSpec",
    "LoaderTransform",
    "Mixed",
    "make_augment",
    "make_loader_transform",
    "mix",
    "mix_weights",
    "uniforms",
]

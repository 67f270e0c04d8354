"""Augment: what happens to an image before the backbone."""

from protail.data.augment.in_workers import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LOADER_AUGMENTS,
    InputSpec,
    LoaderTransform,
    make_loader_transform,
)
from protail.data.augment.on_device import (
    AUGMENTS,
    CIFAR_MEAN,
    CIFAR_STD,
    Augment,
    Mixed,
    make_augment,
    mix,
    mix_weights,
    uniforms,
)

__all__ = [
    "AUGMENTS", "CIFAR_MEAN", "CIFAR_STD", "IMAGENET_MEAN", "IMAGENET_STD", "LOADER_AUGMENTS",
    "Augment", "InputSpec", "LoaderTransform", "Mixed", "make_augment", "make_loader_transform",
    "mix", "mix_weights", "uniforms",
]  # fmt: skip

"""Augment: what happens to an image before the backbone."""

from protail.data.augment.in_workers import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LOADER_AUGMENTS,
    InputSpec,
    LoaderTransform,
    make_loader_transform,
)
from protail.data.augment.mixing import Mixed, mix, mix_weights
from protail.data.augment.on_device import (
    AUGMENTS,
    CIFAR_MEAN,
    CIFAR_STD,
    Augment,
    make_augment,
    uniforms,
)

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "LOADER_AUGMENTS", "InputSpec", "LoaderTransform"]
__all__ += ["Mixed", "make_loader_transform", "mix", "mix_weights"]
__all__ += ["AUGMENTS", "CIFAR_MEAN", "CIFAR_STD", "Augment", "make_augment", "uniforms"]

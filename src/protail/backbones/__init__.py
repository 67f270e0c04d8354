"""Backbones: images to feature vectors, and the weights they start from."""

from protail.backbones._errors import WeightsError
from protail.backbones._trial import check_images
from protail.backbones.bundled import bundled_weights
from protail.backbones.registry import (
    backbone_names,
    check_backbone_name,
    make_backbone,
    register_backbone,
)
from protail.backbones.resnet_cifar import CifarResNet
from protail.backbones.shards import save_weights
from protail.backbones.weights import LoadReport, load_weights

__all__ = [
    "CifarResNet",
    "LoadReport",
    "WeightsError",
    "backbone_names",
    "bundled_weights",
    "check_backbone_name",
    "check_images",
    "load_weights",
    "make_backbone",
    "register_backbone",
    "save_weights",
]

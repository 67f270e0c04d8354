"""Backbones: images to feature vectors, and the weights they start from.

A backbone is a module with ``n_features``, as in ``resnet32()(images)``. `make_backbone` makes one
by its name, every model of timm too.
"""

from protail.models.backbones.cost import check_images, gflops, gflops_with
from protail.models.backbones.installed import installed_weights
from protail.models.backbones.pretrained import (
    RECOMMENDED,
    Recommended,
    pretrained_backbone,
    recommended_backbone,
)
from protail.models.backbones.registry import (
    BACKBONES,
    backbone_names,
    check_backbone_name,
    make_backbone,
    register_backbone,
)
from protail.models.backbones.resnet_cifar import (
    CifarResNet,
    ExpertResNet,
    resnet32,
    resnet34_cifar,
)
from protail.models.backbones.weights import (
    INDEX,
    LoadReport,
    WeightsError,
    bundled_weights,
    is_of_weights,
    load_weights,
    save_weights,
)

__all__ = [
    "BACKBONES", "INDEX", "RECOMMENDED", "CifarResNet", "ExpertResNet", "LoadReport", "Recommended",
    "WeightsError", "backbone_names", "bundled_weights", "check_backbone_name", "check_images",
    "gflops", "gflops_with", "installed_weights", "is_of_weights", "load_weights", "make_backbone",
    "pretrained_backbone", "recommended_backbone", "register_backbone", "resnet32",
    "resnet34_cifar", "save_weights",
]  # fmt: skip

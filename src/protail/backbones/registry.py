"""Backbones by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from protail._registry import Registry
from protail.backbones.timm_models import TIMM_NAMES, check_timm_name, make_timm_backbone
from protail.backbones.weights import load_weights

Builder = TypeVar("Builder", bound=Callable[[int], nn.Module])

BACKBONES: Registry[nn.Module] = Registry(
    "backbone", given=["in_channels"], package="protail.backbones"
)


def register_backbone(name: str) -> Callable[[Builder], Builder]:
    """Give a backbone a name that `make_backbone` knows.

    Parameters
    ----------
    name : str
        What users will write. It must be free.

    Returns
    -------
    callable
        A decorator for a function or class that takes the number of image channels and gives
        a module: images (b, channels, h, w) to features (b, n_features), with the attribute
        ``n_features``.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.backbones import make_backbone, register_backbone
    >>> @register_backbone("mean-colour")
    ... class MeanColour(nn.Module):
    ...     def __init__(self, in_channels):
    ...         super().__init__()
    ...         self.n_features = in_channels
    ...
    ...     def forward(self, images):
    ...         return images.mean((2, 3))
    >>> make_backbone("mean-colour").n_features
    3
    """
    if name in TIMM_NAMES or str(name).startswith("timm/"):
        raise ValueError(f"name={name!r} is a backbone of timm. Choose another name.")
    return BACKBONES.register(name)


def backbone_names() -> list[str]:
    """List the backbones that have a name here; `make_backbone` takes every name of timm too.

    Returns
    -------
    list of str
        In alphabetical order.

    Examples
    --------
    >>> from protail.backbones import backbone_names
    >>> {"resnet32", "resnet34-cifar", "resnet50", "resnext50"} <= set(backbone_names())
    True
    """
    return sorted({*BACKBONES.names(), *TIMM_NAMES})


def check_backbone_name(name: str) -> None:
    """Raise unless there is a backbone of this name; nothing is built.

    Parameters
    ----------
    name : str
        As for `make_backbone`.

    Examples
    --------
    >>> from protail.backbones import check_backbone_name
    >>> check_backbone_name("resnet32")
    >>> check_backbone_name("resnet33")
    Traceback (most recent call last):
    ValueError: name='resnet33' is unknown; the nearest names are ...
    """
    if name not in BACKBONES.names() and name not in TIMM_NAMES:
        check_timm_name(name, own_names=backbone_names())


def make_backbone(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    in_channels: int = 3,
) -> nn.Module:
    """Make a backbone: images (b, in_channels, h, w) to features (b, n_features).

    Parameters
    ----------
    name : str
        One of `backbone_names`, or any model of timm, as ``name`` or ``timm/name``.
    pretrained : bool, default=False
        Whether to fetch the weights that timm has for it. Needs a network, once.
    weights : path-like, optional
        A file of weights to start from instead; see `load_weights`. Its classifier is left out.
    in_channels : int, default=3
        Channels of the images.

    Returns
    -------
    torch.nn.Module
        With ``n_features``, the width of the feature vector.

    Examples
    --------
    >>> import torch
    >>> from protail.backbones import make_backbone
    >>> backbone = make_backbone("resnet32")
    >>> backbone.n_features
    64
    >>> backbone(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """
    _check_arguments(name, in_channels)
    if pretrained and weights is not None:
        raise ValueError(
            f"pretrained=True and weights={str(weights)!r} are two places to start from; "
            "expected one. Leave one out."
        )
    if name in BACKBONES.names():
        if pretrained:
            raise ValueError(
                f"pretrained=True: nobody publishes weights of {name!r} to fetch. Give a file of "
                "weights (weights=...), or leave it out."
            )
        model = BACKBONES.make(name, in_channels)
    else:
        model = make_timm_backbone(
            name, own_names=backbone_names(), pretrained=pretrained, in_channels=in_channels
        )
    if not isinstance(getattr(model, "n_features", None), int):
        raise TypeError(
            f"the backbone {name!r} has no whole number n_features; expected the width of its "
            "feature vector. Set it where the backbone is made."
        )
    if weights is not None:
        load_weights(model, weights)
    return model


def _check_arguments(name: object, in_channels: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} is a {type(name).__name__}; expected text.")
    if type(in_channels) is not int or in_channels < 1:
        raise ValueError(f"in_channels={in_channels!r}; expected a whole number from 1 on.")

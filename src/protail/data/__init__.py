"""Data: tables of features, images, augmentation, and samplers: in which order rows are drawn."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protail.data._random import stream_key
    from protail.data.samplers import (
        SAMPLERS,
        ClassBalancedSampler,
        InstanceSampler,
        ProgressiveSampler,
        RowSampler,
        SquareRootSampler,
        make_sampler,
        register_sampler,
        sampler_names,
        whole_number,
    )

__all__ = [
    "SAMPLERS",
    "ClassBalancedSampler",
    "InstanceSampler",
    "ProgressiveSampler",
    "RowSampler",
    "SquareRootSampler",
    "make_sampler",
    "register_sampler",
    "sampler_names",
    "stream_key",
    "whole_number",
]


def __getattr__(name: str) -> object:
    """Import samplers, and torch with them, when one is used: reading tables needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'protail.data' has no attribute {name!r}")
    module = "_random" if name == "stream_key" else "samplers"
    return getattr(import_module(f"protail.data.{module}"), name)

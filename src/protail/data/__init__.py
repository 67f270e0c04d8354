"""Data: tables of features, images, augmentation, and samplers: in which order rows are drawn.

Nothing here imports torch: reading tables does not need it.
"""

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
    "SAMPLERS", "ClassBalancedSampler", "InstanceSampler", "ProgressiveSampler", "RowSampler",
    "SquareRootSampler", "make_sampler", "register_sampler", "sampler_names", "stream_key",
    "whole_number",
]  # fmt: skip

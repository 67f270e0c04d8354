"""The training loop, what drives it and what paces it; stages, runs and checkpoints."""

from protail.training.average import MovingAverage
from protail.training.captured import CapturedDriver
from protail.training.constraints import MaxNorm
from protail.training.fabric import FabricDriver
from protail.training.feature_cache import FeatureCache
from protail.training.feeds import ResidentFeed, RowBatch
from protail.training.loop import Driver, History, diverged, interleave, train, training_steps
from protail.training.plain import PlainDriver
from protail.training.progress import progress_bar
from protail.training.schedules import constant, cosine, steps, warm_up
from protail.training.sharpness import SharpnessAware

__all__ = [
    "CapturedDriver",
    "Driver",
    "FabricDriver",
    "FeatureCache",
    "History",
    "MaxNorm",
    "MovingAverage",
    "PlainDriver",
    "ResidentFeed",
    "RowBatch",
    "SharpnessAware",
    "constant",
    "cosine",
    "diverged",
    "interleave",
    "progress_bar",
    "steps",
    "train",
    "training_steps",
    "warm_up",
]

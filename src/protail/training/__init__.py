"""The training loop, what drives it and what paces it."""

from protail.training.loop import Driver, History, diverged, train
from protail.training.plain import PlainDriver
from protail.training.progress import progress_bar
from protail.training.schedules import constant, cosine

__all__ = [
    "Driver",
    "History",
    "PlainDriver",
    "constant",
    "cosine",
    "diverged",
    "progress_bar",
    "train",
]

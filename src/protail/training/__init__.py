"""The training loop, what drives it and what paces it; stage 1 and stage 2."""

from protail.training.batches import ResidentFeed, RowBatch
from protail.training.drivers import (
    CapturedDriver,
    FabricDriver,
    PlainDriver,
    launch_fabric,
    leave_group_at_end,
)
from protail.training.feature_cache import FeatureCache, LastStream
from protail.training.features import (
    Features,
    FrozenFeatures,
    GivenFeatures,
    Stream,
    inferring,
    stage_steps,
    weights_hash,
)
from protail.training.loop import (
    DivergenceError,
    Driver,
    Epoch,
    History,
    Steps,
    Watcher,
    diverged,
    interleave,
    make_streams,
    progress_bar,
    threads_for,
    train,
    training_steps,
)
from protail.training.optimisation import MaxNorm, MovingAverage, SharpnessAware
from protail.training.schedules import constant, cosine, steps, warm_up
from protail.training.settings import ClassifierSettings, Precision, RepresentationSettings
from protail.training.stage1 import (
    RepresentationTraining,
    build_method,
    check_experts,
    stage1_steps,
)
from protail.training.stage2 import learn_heads, learn_stable_heads

__all__ = [
    "CapturedDriver",
    "ClassifierSettings",
    "DivergenceError",
    "Driver",
    "Epoch",
    "FabricDriver",
    "FeatureCache",
    "Features",
    "FrozenFeatures",
    "GivenFeatures",
    "History",
    "LastStream",
    "MaxNorm",
    "MovingAverage",
    "PlainDriver",
    "Precision",
    "RepresentationSettings",
    "RepresentationTraining",
    "ResidentFeed",
    "RowBatch",
    "SharpnessAware",
    "Steps",
    "Stream",
    "Watcher",
    "build_method",
    "check_experts",
    "constant",
    "cosine",
    "diverged",
    "inferring",
    "interleave",
    "launch_fabric",
    "learn_heads",
    "learn_stable_heads",
    "leave_group_at_end",
    "make_streams",
    "progress_bar",
    "stage1_steps",
    "stage_steps",
    "steps",
    "threads_for",
    "train",
    "training_steps",
    "warm_up",
    "weights_hash",
]

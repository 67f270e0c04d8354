"""The training loop, what drives it and what paces it; stage 1 and stage 2."""

from protail.training.batches import ResidentLoader, RowBatch
from protail.training.embedding import Embedded, embed_photos, forget, photo_features
from protail.training.features import (
    FeatureCache,
    Features,
    FrozenFeatures,
    GivenFeatures,
    LastStream,
    Stream,
    inferring,
    logits_of,
    stage_steps,
    weights_hash,
)
from protail.training.loop import (
    CapturedDriver,
    DivergenceError,
    Epoch,
    History,
    PlainDriver,
    Steps,
    Watcher,
    constant,
    cosine,
    diverged,
    interleave,
    make_streams,
    progress_bar,
    steps,
    threads_for,
    train,
    training_steps,
    warm_up,
)
from protail.training.optimisation import MaxNorm, MovingAverage, SharpnessAware
from protail.training.processes import (
    TIMEOUT,
    ProcessError,
    Processes,
    first_to_tell,
    joined,
    launch_fabric,
    leave_group_at_end,
)
from protail.training.settings import (
    ClassifierSettings,
    Precision,
    RepresentationSettings,
    check_experts,
)
from protail.training.stage1 import RepresentationTraining, build_method, stage1_steps
from protail.training.stage2 import count_steps, learn_heads, learn_stable_heads

__all__ = [
    "TIMEOUT", "CapturedDriver", "ClassifierSettings", "DivergenceError", "Embedded", "Epoch",
    "FeatureCache", "Features", "FrozenFeatures", "GivenFeatures", "History", "LastStream",
    "MaxNorm", "MovingAverage", "PlainDriver", "Precision", "ProcessError", "Processes",
    "RepresentationSettings", "RepresentationTraining", "ResidentLoader", "RowBatch",
    "SharpnessAware", "Steps", "Stream", "Watcher", "build_method", "check_experts", "constant",
    "cosine", "count_steps", "diverged", "embed_photos", "first_to_tell", "forget", "inferring",
    "interleave", "joined", "launch_fabric", "learn_heads", "learn_stable_heads",
    "leave_group_at_end", "logits_of", "make_streams", "photo_features", "progress_bar",
    "stage1_steps", "stage_steps", "steps", "threads_for", "train", "training_steps", "warm_up",
    "weights_hash",
]  # fmt: skip

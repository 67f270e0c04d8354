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
    launch_fabric,
    leave_group_at_end,
    make_streams,
    progress_bar,
    steps,
    threads_for,
    train,
    training_steps,
    warm_up,
)
from protail.training.optimisation import MaxNorm, MovingAverage, SharpnessAware
from protail.training.settings import (
    ClassifierSettings,
    Precision,
    RepresentationSettings,
    check_experts,
)
from protail.training.stage1 import RepresentationTraining, build_method, stage1_steps
from protail.training.stage2 import count_steps, learn_heads, learn_stable_heads

__all__ = ["ResidentLoader", "RowBatch"]
__all__ += ["FeatureCache", "Features", "FrozenFeatures", "GivenFeatures", "LastStream", "Stream"]
__all__ += ["inferring", "logits_of", "stage_steps", "weights_hash"]
__all__ += ["CapturedDriver", "DivergenceError", "Epoch", "History", "PlainDriver", "Steps"]
__all__ += ["Watcher", "constant", "cosine", "diverged", "interleave", "launch_fabric"]
__all__ += ["leave_group_at_end", "make_streams", "progress_bar", "steps", "threads_for", "train"]
__all__ += ["MaxNorm", "MovingAverage", "SharpnessAware", "training_steps", "warm_up"]
__all__ += ["ClassifierSettings", "Precision", "RepresentationSettings", "check_experts"]
__all__ += ["RepresentationTraining", "build_method", "stage1_steps"]
__all__ += ["count_steps", "learn_heads", "learn_stable_heads"]
__all__ += ["Embedded", "embed_photos", "forget", "photo_features"]

"""Heads: feature vectors to logits.

Every head is made from its sizes, as in ``CosineHead(n_classes, n_features)(features)``. One that
goes on from a trained classifier takes it over first:
``TauNormalizedHead(n_classes, n_features).build_on(linear, counts)``. `make_head` makes one by its
name in recipes.
"""

from protail.models.heads.experts import (
    ExpertPrototypeHead,
    ExpertsHead,
    HeadPerExpert,
    RoutedExpertsHead,
    Routing,
)
from protail.models.heads.linear import (
    AlignedHead,
    CosineHead,
    LinearHead,
    PostHocAdjustedHead,
    ScaledHead,
    TauNormalizedHead,
)
from protail.models.heads.prototype import PrototypeHead, class_means
from protail.models.heads.registry import HEADS, head_names, make_head, register_head
from protail.models.heads.sharded import ShardedPrototypeHead

__all__ = [
    "HEADS", "AlignedHead", "CosineHead", "ExpertPrototypeHead", "ExpertsHead", "HeadPerExpert",
    "LinearHead", "PostHocAdjustedHead", "PrototypeHead", "RoutedExpertsHead", "Routing",
    "ScaledHead", "ShardedPrototypeHead", "TauNormalizedHead", "class_means", "head_names",
    "make_head", "register_head",
]  # fmt: skip

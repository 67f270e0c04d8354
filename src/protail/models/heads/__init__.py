"""Heads: feature vectors to logits.

Every head is made from its sizes, as in ``CosineHead(n_classes, n_features)(features)``. One that
goes on from a trained classifier takes it over first:
``TauNormalizedHead(n_classes, n_features).build_on(linear, counts)``. `make_head` makes one by its
name in recipes.
"""

from protail.models.heads.cosine import CosineHead
from protail.models.heads.expert_prototypes import ExpertPrototypeHead
from protail.models.heads.experts import ExpertsHead, HeadPerExpert, RoutedExpertsHead, Routing
from protail.models.heads.linear import AlignedHead, LinearHead, ScaledHead, TauNormalizedHead
from protail.models.heads.post_hoc_adjusted import PostHocAdjustedHead
from protail.models.heads.prototype import PrototypeHead, class_means
from protail.models.heads.registry import HEADS, head_names, make_head, register_head

__all__ = ["CosineHead", "ExpertPrototypeHead"]
__all__ += ["ExpertsHead", "HeadPerExpert", "RoutedExpertsHead", "Routing"]
__all__ += ["AlignedHead", "LinearHead", "PostHocAdjustedHead", "ScaledHead", "TauNormalizedHead"]
__all__ += ["HEADS", "PrototypeHead", "class_means", "head_names", "make_head", "register_head"]

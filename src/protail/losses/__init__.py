"""Losses for long-tailed training: logits and class codes to a number.

Every loss is made from the class counts of the training set, as in
``LDAMLoss([500, 30, 5])(logits, target)``. `make_loss` makes one by its name in recipes.
"""

from protail.losses.balanced_binary import BalancedBinaryLoss
from protail.losses.focal import FocalLoss
from protail.losses.ldam import LDAMLoss, class_margins
from protail.losses.logit_adjusted import LogitAdjustedLoss
from protail.losses.registry import (
    LOSSES,
    begin_epoch,
    check_plain_cross_entropy,
    loss_names,
    make_loss,
    register_loss,
)
from protail.losses.reweighted import (
    ClassBalancedLoss,
    PriorWeightedLoss,
    ReweightedCrossEntropy,
    WeightedCrossEntropy,
    class_balanced_weights,
    prior_weights,
)
from protail.losses.routing import RoutingLoss

__all__ = [
    "LOSSES", "BalancedBinaryLoss", "ClassBalancedLoss", "FocalLoss", "LDAMLoss",
    "LogitAdjustedLoss", "PriorWeightedLoss", "ReweightedCrossEntropy", "RoutingLoss",
    "WeightedCrossEntropy", "begin_epoch", "check_plain_cross_entropy", "class_balanced_weights",
    "class_margins", "loss_names", "make_loss", "prior_weights", "register_loss",
]  # fmt: skip

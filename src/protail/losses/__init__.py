"""Losses: logits and labels to a number, one a file."""

from protail.losses.logit_adjusted import LogitAdjustedLoss

__all__ = ["LogitAdjustedLoss"]

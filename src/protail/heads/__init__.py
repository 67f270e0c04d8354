"""Heads: feature vectors to logits."""

from protail.heads.means import class_means
from protail.heads.prototype import PrototypeHead

__all__ = ["PrototypeHead", "class_means"]

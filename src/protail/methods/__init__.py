"""Methods: what a training step computes."""

from protail.methods.method import ImageBatch, Method

__all__ = ["ImageBatch", "Method"]

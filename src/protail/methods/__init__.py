"""Methods: what a training step computes."""

from protail.methods.method import ImageBatch, Method
from protail.methods.registry import make_method, register_method

__all__ = ["ImageBatch", "Method", "make_method", "register_method"]

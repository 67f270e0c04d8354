"""Models: backbones, heads, and the files that hold them."""

from protail.models.storage import ModelFileError

__all__ = ["ModelFileError"]

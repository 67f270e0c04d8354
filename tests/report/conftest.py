"""What tests of pictures share."""

from reference.sheets import sheets

__all__ = ["sheets"]

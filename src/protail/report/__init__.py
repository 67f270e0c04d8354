"""Pictures of results."""

from protail.report.pictures import accuracy_picture, counts_picture, search_picture

__all__ = [
    "accuracy_picture",
    "counts_picture",
    "search_picture",
]

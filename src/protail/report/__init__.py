"""Pictures of results."""

from protail.report.pictures import accuracy_picture, search_picture

__all__ = [
    "accuracy_picture",
    "search_picture",
]

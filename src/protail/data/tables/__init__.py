"""Feature files: rows of numbers, and maybe labels, out of the formats people keep them in."""

from protail.data.tables.feature_file import FeatureFile, FeatureFileError, open_features
from protail.data.tables.rows import Scan, scan, split, take

__all__ = ["FeatureFile", "FeatureFileError", "Scan", "open_features", "scan", "split", "take"]

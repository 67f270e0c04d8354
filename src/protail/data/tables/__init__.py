"""Feature files: rows of numbers, and maybe labels, out of the formats people keep them in."""

from protail.data.tables.feature_file import FeatureFile, FeatureFileError, open_features
from protail.data.tables.rows import Scan, ShardedRows, scan, scratch, split, take
from protail.data.tables.shards import Address, ShardedFile, as_place

__all__ = [
    "Address",
    "FeatureFile",
    "FeatureFileError",
    "Scan",
    "ShardedFile",
    "ShardedRows",
    "as_place",
    "open_features",
    "scan",
    "scratch",
    "split",
    "take",
]

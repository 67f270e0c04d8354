"""Feature files: rows of numbers, and maybe labels, out of the formats people keep them in."""

from protail.data.tables._arrays import StoredArray, npz_arrays, safetensors_arrays
from protail.data.tables._file import FeatureFile, FeatureFileError, open_features, reading
from protail.data.tables._rows import Scan, scan, split, take

__all__ = [
    "FeatureFile",
    "FeatureFileError",
    "Scan",
    "StoredArray",
    "npz_arrays",
    "open_features",
    "reading",
    "safetensors_arrays",
    "scan",
    "split",
    "take",
]

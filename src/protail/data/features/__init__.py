"""Feature files: rows of numbers, and maybe labels, out of the formats people keep them in."""

from protail.data.features._errors import FeatureFileError
from protail.data.features._file import FeatureFile
from protail.data.features._open import open_features
from protail.data.features._scan import Scan, scan
from protail.data.features._split import split
from protail.data.features._spool import take

__all__ = [
    "FeatureFile",
    "FeatureFileError",
    "Scan",
    "open_features",
    "scan",
    "split",
    "take",
]

"""What the numbers say about the paper and about models."""

from protail.analysis.boundaries import Boundaries, PlaneClassifier, learn_boundaries
from protail.analysis.errata import TABLE_7, Entry, Row, table7_entries, table7_errata, table7_row
from protail.analysis.norms import ClassNorms, class_norms, mean_class_norms
from protail.analysis.printed import PrintedMean, printed_means
from protail.analysis.separation import Separation, class_separation

__all__ = [
    "TABLE_7",
    "Boundaries",
    "ClassNorms",
    "Entry",
    "PlaneClassifier",
    "PrintedMean",
    "Row",
    "Separation",
    "class_norms",
    "class_separation",
    "learn_boundaries",
    "mean_class_norms",
    "printed_means",
    "table7_entries",
    "table7_errata",
    "table7_row",
]

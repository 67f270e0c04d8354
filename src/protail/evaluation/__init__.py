"""Evaluate predictions: the accuracy of each shot group, calibration, novelty, comparison."""

from protail.evaluation._tables import group_size, results_table
from protail.evaluation.comparison import Comparison, Difference
from protail.evaluation.evaluation import Evaluation, calibration_error, novelty_auroc

__all__ = [
    "Comparison", "Difference", "Evaluation", "calibration_error", "group_size", "novelty_auroc",
    "results_table",
]  # fmt: skip

"""Judging predictions: the accuracy of each shot group, calibration, novelty, comparison."""

from protail.evaluation._calibration import calibration_error
from protail.evaluation._comparison import Comparison, Difference
from protail.evaluation._evaluation import Evaluation
from protail.evaluation._novelty import novelty_auroc
from protail.evaluation._tables import results_table

__all__ = [
    "Comparison",
    "Difference",
    "Evaluation",
    "calibration_error",
    "novelty_auroc",
    "results_table",
]

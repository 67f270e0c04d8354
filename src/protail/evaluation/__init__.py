"""Evaluate predictions: the accuracy of each shot group, calibration, novelty, comparison."""

from protail.evaluation._comparison import Comparison, Difference
from protail.evaluation._evaluation import Evaluation
from protail.evaluation._scores import calibration_error, novelty_auroc
from protail.evaluation._tables import results_table

__all__ = ["Comparison", "Difference", "Evaluation", "calibration_error", "novelty_auroc"]
__all__ += ["results_table"]

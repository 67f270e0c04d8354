"""The paper's figures, and one of our own, drawn from numbers given to them."""

from protail.report.figures._boundaries import figure1
from protail.report.figures._cost import CostPoint, cost_figure
from protail.report.figures._curves import figure4
from protail.report.figures._norms import figure2
from protail.report.figures._picture import write_picture
from protail.report.figures._separation import figure3

__all__ = [
    "CostPoint",
    "cost_figure",
    "figure1",
    "figure2",
    "figure3",
    "figure4",
    "write_picture",
]

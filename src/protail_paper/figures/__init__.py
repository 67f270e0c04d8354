"""The paper's figures, and two of our own, drawn from numbers given to them."""

from protail_paper.figures._cost import CostPoint, cost_figure
from protail_paper.figures._paper import figure1, figure2, figure3, figure4, write_picture
from protail_paper.figures._ranks import rank_figure

__all__ = ["CostPoint", "cost_figure", "figure1", "figure2", "figure3", "figure4", "rank_figure"]
__all__ += ["write_picture"]

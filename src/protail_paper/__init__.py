"""The reproduction: the paper's numbers as data, results beside them, tables made of both."""

from protail_paper.paper import (
    PAPER_FIGURES,
    PAPER_TABLES,
    PaperFigure,
    PaperRow,
    PaperTable,
    paper_figure,
    paper_table,
    paper_value,
)

__all__ = [
    "PAPER_FIGURES", "PAPER_TABLES", "PaperFigure", "PaperRow", "PaperTable", "paper_figure",
    "paper_table", "paper_value",
]  # fmt: skip

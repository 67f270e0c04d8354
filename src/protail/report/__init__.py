"""Reports of classifiers: one HTML file, and pictures of results."""

from protail.report._parts import Table
from protail.report._space import Space
from protail.report.data import Examples, ReportData
from protail.report.html import check_installed, report_tables, write_report
from protail.report.pictures import accuracy_picture, counts_picture, search_picture

__all__ = [
    "Examples",
    "ReportData",
    "Space",
    "Table",
    "accuracy_picture",
    "check_installed",
    "counts_picture",
    "report_tables",
    "search_picture",
    "write_report",
]

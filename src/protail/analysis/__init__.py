"""What the numbers say about the paper and about models."""

from protail.analysis.errata import TABLE_7, Entry, Row, table7_entries, table7_errata, table7_row

__all__ = ["TABLE_7", "Entry", "Row", "table7_entries", "table7_errata", "table7_row"]

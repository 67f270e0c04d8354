"""What commands take about feature files: which columns they read, and where labels are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from protail.data.tables import FeatureFile

FeaturesKey = Annotated[
    str | None, typer.Option("--features", metavar="NAME", help="Array or column with the rows.")
]
LabelsKey = Annotated[
    str | None, typer.Option("--labels", metavar="NAME", help="Array or column with the labels.")
]
LabelsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--labels-file", metavar="FILE", help="Labels, if in another file (npy, csv, txt)."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="NAMES", help="Features of a table: a,b or 'f*' or f0:f63."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="NAMES", help="Columns that are no features."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="NAMES", help="Columns carried into predictions; no features."),
]


@dataclass(frozen=True)
class FeatureOptions:
    """How feature files are to be read, as it was typed.

    Attributes
    ----------
    features, labels : str or None
        Names of arrays or columns.
    columns, exclude, keep : sequence of str or None
        Columns of tables: features, no features, and what comes along.
    """

    features: str | None = None
    labels: str | None = None
    columns: tuple[str, ...] | list[str] | None = None
    exclude: tuple[str, ...] | list[str] | None = None
    keep: tuple[str, ...] | list[str] | None = None

    def open(
        self, path: Path, *, labels_file: Path | None = None, need_labels: bool = False
    ) -> FeatureFile:
        """Open a file of features."""
        from protail.data.tables import open_features

        return open_features(
            path,
            features=self.features,
            labels=self.labels,
            need_labels=need_labels,
            columns=self.columns or None,
            exclude=self.exclude or (),
            keep=self.keep or (),
            labels_file=labels_file,
        )

"""Rows of tables, and questions that rows answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What the paper does to the images that prototypes learn from, and what we call that elsewhere.
AS_PC = "images as PC"
AUGMENT_OF_PROTOTYPES = ["crop", "flip", "autoaugment", "cutout"]
# What we call the images of selection "author".
TWO_SETS = "two sets of images"
# The rate and decay of Weight Balancing's authors; those of wd-max were chosen anew.
PUBLISHED_DECAY: dict[str, Any] = {"classifier.lr": 0.01, "classifier.weight_decay": 0.1}
# What pc-la sets, for recipes on other features, which hold what was chosen there.
AS_ON_WD: dict[str, Any] = {
    "classifier.distance": "euclidean",
    "classifier.normalize": "none",
    "classifier.tau": 0.25,
    "classifier.lr": 4.0,
    "classifier.augment": AUGMENT_OF_PROTOTYPES,
}


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    label : str
        What the reader sees.
    classifier : str or None
        The recipe whose stage 2 is run; None for the softmax of stage 1.
    overrides : mapping of str to object
        What is set otherwise.
    selection : str
        Which images of a class are kept.
    paper : str or None
        The row of the paper's table beside it.
    backbone : str or None
        The only one it is run on, by what the reader sees; None for all of its table.
    """

    label: str
    classifier: str | None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    selection: str = "shuffled"
    paper: str | None = None
    backbone: str | None = None


def rows_on(backbone: str, rows: Iterable[Row]) -> list[Row]:
    """List the rows that are run on a backbone.

    Examples
    --------
    >>> from protail.bench.rows import Row, rows_on
    >>> rows = [Row("PC", "pc"), Row("WD + Max", "wd-max", backbone="ResNet-34")]
    >>> [row.label for row in rows_on("ResNet-32", rows)]
    ['PC']
    """
    return [row for row in rows if row.backbone in (None, backbone)]


@dataclass(frozen=True)
class Question:
    """A factor and the values it was given.

    Attributes
    ----------
    name : str
        A short word, unique.
    text : str
        What is asked.
    rows : tuple of Row
        One a value.
    axis : str or None
        The setting that its curve in Figure 4 is drawn over; None where it has none.
    """

    name: str
    text: str
    rows: tuple[Row, ...]
    axis: str | None = None

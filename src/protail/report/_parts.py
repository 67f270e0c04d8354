"""What a report is made of: sections with figures, cards of photos, and tables."""

from __future__ import annotations

import base64
import csv
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["text", "count", "percent", "number"]
GROUPS = ("many", "medium", "few")
# The style sheet gives each its colour, in light and dark; a mark tells them apart without.
MARKS = {"many": "circle", "medium": "diamond", "few": "square"}


@dataclass(frozen=True)
class Table:
    """Rows under named columns; fractions where a column is of per cents.

    Attributes
    ----------
    name : str
        Of its CSV file.
    caption : str
        What it shows.
    columns : mapping of str to {"text", "count", "percent", "number"}
        Heading and kind of each column; the first one names the row.
    rows : sequence of sequence
        What is in it; None where there is nothing.
    is_open : bool
        Whether it is shown without being asked for.
    """

    name: str
    caption: str
    columns: Mapping[str, Kind]
    rows: Sequence[Sequence[Any]]
    is_open: bool = False

    def csv(self) -> str:
        """Write it as CSV, numbers in full."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
        return text.getvalue()

    def shown(self) -> list[list[tuple[str, Any]]]:
        """Give the text of each cell, and what it is sorted by."""
        kinds = list(self.columns.values())
        return [
            [
                (_words(cell, kind), "" if cell is None else cell)
                for cell, kind in zip(row, kinds, strict=True)
            ]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Figure:
    """A chart, as plotly takes it.

    Attributes
    ----------
    name, title : str
        Of its element, and what it is called.
    says : str
        What somebody who does not see it is told.
    traces, layout
        As of plotly; a colour such as ``"--many"`` is one of the style sheet.
    height : int
        In pixels.
    """

    name: str
    title: str
    says: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 380


@dataclass(frozen=True)
class Card:
    """A few photos, what is to be said of them, and the file of the first one."""

    heading: str
    lines: Sequence[str]
    pictures: Sequence[tuple[str | None, str]] = ()
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report under a heading.

    Attributes
    ----------
    name, title : str
        Its anchor and its heading.
    says : sequence of str
        Paragraphs above.
    figures, cards, tables, parts
        What is in it, in this order.
    missing : str
        Why there is nothing in it.
    """

    name: str
    title: str
    says: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    cards: Sequence[Card] = ()
    tables: Sequence[Table] = ()
    parts: Sequence[Section] = ()
    missing: str = ""

    def every_table(self) -> list[Table]:
        """List its tables and those of its parts."""
        return [*self.tables, *(table for part in self.parts for table in part.every_table())]


def _words(cell: Any, kind: Kind) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    if kind == "percent":
        return percent(cell)
    if kind == "count":
        return f"{cell:,}"
    return f"{cell:.3g}" if kind == "number" else str(cell)


def percent(fraction: float | None) -> str:
    """Write a fraction in per cent, in one piece."""
    return "–" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.1f}\u00a0%"


def in_chart(text: object, most: int = 40) -> str:
    """Write a name so that plotly, which reads tags, shows it as it is."""
    words = str(text)
    return html.escape(words if len(words) <= most else f"{words[: most - 1]}…", quote=False)


def plain(values: Any) -> list[Any]:
    """Turn an array into a list that strict JSON can hold."""
    return [
        None if isinstance(value, float) and not math.isfinite(value) else value
        for value in np.asarray(values).tolist()
    ]


class Thumbnails:
    """Small pictures as data URLs, each made once; none of what cannot be read."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], str | None] = {}
        self.unreadable: list[str] = []

    def of(self, photos: Sequence[Any] | None, i: int, side: int) -> str | None:
        """Give the i-th photo, its longer side no more than so many pixels."""
        if photos is None:
            return None
        key = id(photos), int(i), side
        if key not in self._made:
            self._made[key] = self._make(photos[int(i)], side)
        return self._made[key]

    def _make(self, photo: Any, side: int) -> str | None:
        from protail.data.images import DataSetError, read_image

        try:
            image = _opened(photo, read_image)
        except (DataSetError, OSError, ValueError):
            self.unreadable.append(str(photo)[:200])
            return None
        except ImportError:  # no Pillow: a report without pictures
            return None
        image.thumbnail((side, side))
        file = io.BytesIO()
        image.save(file, format="JPEG", quality=72, optimize=True)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _opened(photo: Any, read: Callable[[Any], Image]) -> Image:
    if hasattr(photo, "convert"):
        return photo.convert("RGB")  # type: ignore[no-any-return]
    if isinstance(photo, np.ndarray):
        from PIL.Image import fromarray

        return fromarray(photo).convert("RGB")
    return read(photo)

"""The report as one HTML file that needs nothing else, and its tables as CSV files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from protail._files import check_free, new_file, new_folder
from protail._messages import counted, imported
from protail.report._examples import NO_PREDICTIONS, Gallery, surprises_section
from protail.report._parts import GROUPS, Section, Table, Thumbnails, percent
from protail.report._places import map_section, norms_section
from protail.report._sections import (
    accuracy_section,
    calibration_section,
    confusion_section,
    group_section,
    group_words,
)
from protail.report.data import ReportData


@dataclass(frozen=True)
class _Tile:
    """A number at the top of the page."""

    label: str
    value: str
    note: str = ""
    group: str = ""


def write_report(
    data: ReportData,
    path: str | os.PathLike[str],
    *,
    csv: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report: one HTML file that opens in any browser without a network.

    Parameters
    ----------
    data : ReportData
        What to show.
    path : path-like
        The file to write, such as ``report.html``.
    csv : path-like, optional
        A folder for the tables, one CSV file each.
    overwrite : bool, default=False
        Whether what is already there may be replaced.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from protail.report import Examples, ReportData, write_report
    >>> data = ReportData(
    ...     classes=["ant", "bee"],
    ...     counts=[30, 3],
    ...     held_out=Examples(labels=["ant", "ant", "bee"]),
    ...     predicted=["ant", "ant", "ant"],
    ... )
    >>> write_report(data, Path(tempfile.mkdtemp()) / "report.html").name
    'report.html'
    """
    place = Path(path)
    check_free(place, overwrite=overwrite)
    if csv is not None:
        check_free(csv, overwrite=overwrite, folder=True)
    check_installed()
    sections, explored = sections_of(data)
    page = _page(data, sections, explored)
    with new_file(place, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")
    if csv is not None:
        _write_tables(sections, csv, overwrite=overwrite)
    return place


def sections_of(data: ReportData) -> tuple[list[Section], dict[str, Any] | None]:
    """Put the report's sections together, and what its map needs to be explored."""
    thumbnails = Thumbnails()
    gallery = Gallery(data, thumbnails)
    evaluation = data.evaluation
    sections = []
    if evaluation is None:
        sections.append(Section("classes", "Accuracy by class", missing=NO_PREDICTIONS))
    else:
        sections += [group_section(evaluation), accuracy_section(data, evaluation)]
        sections.append(confusion_section(data, gallery))
        sections.append(calibration_section(data, evaluation, gallery))
    placed, explored = map_section(data, gallery)
    return [*sections, placed, surprises_section(data, gallery), norms_section(data)], explored


def _write_tables(
    sections: Sequence[Section], folder: str | os.PathLike[str], *, overwrite: bool
) -> None:
    with new_folder(folder, overwrite=overwrite, ours=lambda name: name.endswith(".csv")) as into:
        for section in sections:
            for table in section.every_table():
                (into / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")


def check_installed() -> tuple[Any, Any]:
    """Import what a page is made with, jinja2 and plotly, or say what installs it.

    Returns
    -------
    tuple of modules
        Both of them.

    Examples
    --------
    >>> from protail.report import check_installed
    >>> [module.__name__ for module in check_installed()]
    ['jinja2', 'plotly.offline']
    """
    jinja2 = imported("jinja2", "a report", "jinja2", "report")
    plotly = imported("plotly.offline", "a report", "plotly", "report")
    return jinja2, plotly


def _page(data: ReportData, sections: Sequence[Section], explored: dict[str, Any] | None) -> str:
    jinja2, plotly = check_installed()
    folder = files("protail.report") / "page"
    parts = {
        name: (folder / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    }
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["breakable"] = _breakable
    return str(
        environment.from_string(parts["page.html"]).render(
            data=data,
            sections=sections,
            tiles=_tiles(data, sections),
            in_short=_in_short(data),
            subtitle=_subtitle(data),
            groups=_legend(data),
            made=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
            figures=_json([_drawn(each) for each in _figures(sections)]),
            explored=_json(explored),
            # Ours, and no data: these go into the page as they are.
            css=jinja2.utils.markupsafe.Markup(parts["page.css"]),
            script=jinja2.utils.markupsafe.Markup(parts["page.js"]),
            plotly=jinja2.utils.markupsafe.Markup(plotly.get_plotlyjs()),
        )
    )


def _breakable(text: object) -> Any:
    """Let a name break where its words end, as in Brown_Pelican."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_/-]+)", r"\1<wbr>", str(escape(text))))


def _figures(sections: Sequence[Section]) -> list[Any]:
    return [
        figure for section in sections for figure in (*section.figures, *_figures(section.parts))
    ]


def _drawn(figure: Any) -> dict[str, Any]:
    return {"name": figure.name, "traces": figure.traces, "layout": dict(figure.layout)}


def _json(value: Any) -> Any:
    """Write JSON that can stand in a script element: nothing in it can end that."""
    from markupsafe import Markup

    text = json.dumps(value, allow_nan=False, separators=(",", ":"), default=_number)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _subtitle(data: ReportData) -> str:
    parts = [
        counted(len(data.classes), "class", "classes"),
        counted(int(data.counts.sum()), "training example"),
    ]
    if data.evaluation is not None:
        parts.append(counted(data.evaluation.n_rows, "held-out example"))
    return " · ".join(parts)


def _legend(data: ReportData) -> list[tuple[str, str]]:
    """Say what the groups that are there are."""
    if data.evaluation is None:
        return []
    words = group_words(data.evaluation)
    return [(g, words[g]) for g in GROUPS if len(data.evaluation.groups[g])]


def _tiles(data: ReportData, sections: Sequence[Section]) -> list[_Tile]:
    """Give the numbers at the top: those of the groups' table, and what has no group."""
    evaluation = data.evaluation
    if evaluation is None:
        return []
    tiles = []
    for name, n_classes, _, score, low, high, _ in sections[0].tables[0].rows:
        label = f"{name.capitalize()} ({n_classes})" if name in GROUPS else name.capitalize()
        note = "" if low is None else f"{100 * low:.1f} to {100 * high:.1f}"
        tiles.append(_Tile(label, percent(score), note, name if name in GROUPS else ""))
    if evaluation.calibration_error is not None:
        tiles.append(_Tile("Calibration error", percent(evaluation.calibration_error)))
    if evaluation.novelty_auroc is not None:
        tiles.append(_Tile("Unknown classes found", f"{evaluation.novelty_auroc:.3f}", "AUROC"))
    return tiles


def _in_short(data: ReportData) -> list[str]:
    """Say in a few sentences what came out."""
    evaluation = data.evaluation
    if evaluation is None:
        return ["This report is about the classifier alone: it was given no labelled examples."]
    lines = [
        f"{evaluation.class_right.sum():,} of {evaluation.n_rows:,} held-out examples are right "
        f"({percent(evaluation.all)}); the mean over the classes is "
        f"{percent(evaluation.balanced_accuracy)}."
    ]
    there = [group for group in GROUPS if getattr(evaluation, group) is not None]
    if len(there) > 1:
        largest, rarest = getattr(evaluation, there[0]), getattr(evaluation, there[-1])
        gap = 100 * (largest - rarest)
        how = "below" if gap > 0 else "above"
        lines.append(
            f"The classes with the fewest training examples ({there[-1]}) are at "
            f"{percent(rarest)}, {abs(gap):.1f} points {how} those with the most ({there[0]})."
        )
    if evaluation.n_unseen:
        lines.append(
            f"{counted(evaluation.n_unseen, 'example is', 'examples are')} of classes that it does "
            "not know, and in no accuracy."
        )
    return lines


def report_tables(data: ReportData) -> list[Table]:
    """Give the tables of a report.

    Parameters
    ----------
    data : ReportData
        What it shows.

    Returns
    -------
    list of Table
        Each with a ``name``, a ``caption``, its ``columns`` and ``rows``.

    Examples
    --------
    >>> from protail.report import Examples, ReportData, report_tables
    >>> data = ReportData(
    ...     classes=["ant", "bee"],
    ...     counts=[30, 3],
    ...     held_out=Examples(labels=["ant", "ant", "bee"]),
    ...     predicted=["ant", "ant", "ant"],
    ... )
    >>> [table.name for table in report_tables(data)]
    ['groups', 'errors', 'classes', 'look-alikes']
    """
    sections, _ = sections_of(data)
    return [table for section in sections for table in section.every_table()]

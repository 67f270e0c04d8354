"""The times that the documentation tells are those that the benchmark printed."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEASURED = json.loads((ROOT / "results" / "speed" / "training.json").read_text())
PAGE = (ROOT / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## How long it takes")[1]


def test_the_table_of_trainings():
    shown = re.findall(
        r"^\| ResNet.*\| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", SECTION, re.MULTILINE
    )
    keys = ("seconds a model", "plain loop, seconds", "ratio", "compile and capture, seconds")
    there = {tuple(float(row[key]) for key in keys) for row in MEASURED["representation"]}
    assert len(shown) == 4
    for row in shown:
        numbers = tuple(float(text) for text in row)
        assert any(
            numbers == (model, plain, round(ratio, 2), once) for model, plain, ratio, once in there
        )


def test_the_times_of_stage_2():
    seconds = {row["case"]: row["seconds"] for row in MEASURED["classifier"]}
    for case, digits in {
        "stage 2 with augmentation": 2,
        "782 head steps": 3,
        "record the steps": 3,
        "ten heads, recording included": 2,
    }.items():
        assert f"{seconds[case]:.{digits}f} s" in SECTION


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (
            "head",
            "way, precision, ms, ms captured, limit ms, GiB, loss error, gradient error",
        ),
        (
            "search",
            "way, precision, ms, ms on the device, limit ms, GiB, wrong rows, distance error",
        ),
    ],
)
def test_the_tables_of_operations(name, columns):
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "speed" / f"{name}.json").read_text())["rows"]
    assert rows

    def cell(value):
        if value is None:
            return "-"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    for row in rows:
        size = f"### {row['rows']} rows, {row['classes']:,} classes, {row['channels']:,} channels"
        line = "| " + " | ".join(cell(row.get(key)) for key in columns.split(", ")) + " |"
        sections = [part for part in page.split("\n\n### ") if f"### {part}".startswith(size)]
        assert any(line in section for section in sections), line

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


def test_the_table_of_stage_2():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "speed" / "stage2.json").read_text())["rows"]
    for row in rows:
        digits = 2 if row["steps"] > 1 else 3
        cells = f"{row['n steps']:,} | {row['capture']:.3f} | {row['steps']:.{digits}f}"
        assert f"| {cells} | {row['ms a step']:.3f} |" in page


def test_the_ways_to_compile_a_step():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = page.split("## Stage 1")[1]
    keys = ("ms a step", "seconds for 200 epochs", "first steps, seconds")
    for row in MEASURED["options"]:
        cells = (f"{row[key]:.{digits}f}" for key, digits in zip(keys, (2, 1, 1), strict=True))
        assert f"| {' | '.join(cells)} |" in shown


def test_the_table_of_predicting():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "speed" / "predict.json").read_text())["rows"]
    assert all(row["changed"] == 0 for row in rows)
    for row in rows:
        size = f"{row['rows']:,} x {row['classes']:,} x {row['channels']:,}"
        fit = "-" if row["fit s"] is None else f"{row['fit s']:.1f}"
        times = f"{row['ms']:,.1f} | {row['CPU ms']:,.1f} | {row['rows a second']:,.0f}"
        assert f"| {size} | {row['way']} | {fit} | {times} | {row['limit ms']:,.1f} |" in page


def test_the_table_of_fits():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    records = json.loads((ROOT / "results" / "speed" / "estimator.json").read_text())["records"]
    found = {(record["data"], record["classifier"]): record for record in records}
    for data in {record["data"] for record in records}:
        ours, centroid, logistic = (
            found[data, name] for name in ("prototypes", "nearest centroid", "logistic regression")
        )
        fit = f"{ours['fit_s']:.2f} | {logistic['fit_s']:.2f} | {ours['fit_limit_s']:.2g}"
        times = f"{1000 * ours['predict_s']:.1f} | {1000 * centroid['predict_s']:.1f}"
        assert f" | {fit} | {times} | {1000 * ours['predict_limit_s']:.2g} |" in page


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


def test_the_table_of_photos_in_files():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results" / "speed" / "loader.json").read_text())
    for row in measured["ways"]:
        numbers = f"{row['images a second']:,.0f} | {row['step, ms']:.1f}"
        numbers += f" | {row['kernels of a step, ms']:.1f} | {row['busy']:.0%}".replace("%", " %")
        assert f"| {row['way']} | {numbers} |" in page
    worker, together = measured["a worker, for a photo"], measured["workers alone"]
    for milliseconds in worker.values():
        assert f"{milliseconds:.2f} ms" in page
    assert f"{together['images a second']:,.0f} images a second" in page
    assert f"{together['first batch after, s']:.2f} s later" in page


def test_the_table_of_split_heads():
    page = (ROOT / "docs" / "how-to" / "many-classes.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results" / "speed" / "sharded.json").read_text())
    size = f"{measured['classes']:,} classes of {measured['channels']} channels"
    assert f"{size}, {measured['rows']} rows" in page
    for row in measured["processes"]:
        held = (
            f"{row['prototypes MiB']:.0f} | {row['gradient MiB']:.0f} | {row['momentum MiB']:.0f}"
        )
        traffic = f"{row['received KiB a step']:.1f} | {row['received KiB a search']:.1f}"
        cells = f"{row['processes']} | {row['classes here']:,} | {held}"
        assert f"| {cells} | {row['peak MiB']:,.0f} | {traffic} |" in page
        short = f"{row['processes']} | {row['classes here']:,} | {row['prototypes MiB']:,.0f}"
        short += f" | {row['peak MiB']:,.0f} | {row['received KiB a step']:.1f}"
        assert f"| {short} |" in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")

"""What the tables' command says is there and missing."""

import json

from protail.bench.cells import Cells
from protail.bench.tables import wanted_cells
from reference.bench_command import SCORES, run


def test_status_of_nothing(tmp_path):
    ended = run("status", "table1", "--json", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    record = json.loads(ended.stdout)
    assert record["cells"] == len(record["missing"]) == 42
    assert len(record["trainings"]) == 6
    assert "Left to train: 6 representations; of 6 no cell tells the time." in (
        run("status", "table1", folder=tmp_path).output
    )


def test_status_knows_the_tables_of_choices(tmp_path):
    ended = run("status", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    for line in ("| tuning-stage-1 | ResNet-34 | 120 ", "| tuning-stage-2 | ResNet-34 | 96 "):
        assert line in " ".join(ended.output.split())
    assert "| tuning-stage-1 | ResNet-32" not in ended.output
    assert "tuning" not in run("status", "all", folder=tmp_path).output
    alone = json.loads(run("status", "tuning-stage-2", "--json", folder=tmp_path).stdout)
    assert len(alone["missing"]) == 96


def test_status_knows_the_comparisons(tmp_path):
    for words in ((), ("all",)):
        ended = run("status", *words, folder=tmp_path)
        assert ended.exit_code == 0, ended.output
        for line in ("| table3 ", "| table4 ", "| table9 "):
            assert ended.output.count(line) == 2
    alone = json.loads(
        run("status", "table9", "--backbone", "ResNet-34", "--json", folder=tmp_path).stdout
    )
    assert alone["cells"] == len(alone["missing"]) == 48
    assert alone["trainings"] == [
        f"{first} (resnet34-cifar) on cifar10-lt-100, seed {seed}"
        for seed in range(3)
        for first in ("dro-lt", "wd")
    ]


def test_status_counts_apart_what_needs_images_of_your_own(tmp_path):
    ended = run("status", folder=tmp_path)
    for line in ("| table5 | ResNeXt-50 | 54 | 54 |", "| table6 | ResNet-50 | 54 | 54 |"):
        assert line in " ".join(ended.output.split())
    assert " missing, table5 and table6 aside, which need images that you bring." in ended.output
    counted = json.loads(run("status", "--json", folder=tmp_path).stdout)
    assert f"Of {counted['cells']:,} cells {counted['cells']:,} are missing" in ended.output
    assert not any("imagenet-lt" in command for command in counted["missing"])
    assert "table5" not in run("status", "all", folder=tmp_path).output
    alone = json.loads(run("status", "table6", "--json", folder=tmp_path).stdout)
    assert (alone["cells"], len(alone["missing"]), len(alone["trainings"])) == (54, 54, 12)


def test_status_of_all_but_one(tmp_path):
    cells = Cells(tmp_path / "cells")
    *there, lacking = wanted_cells(["table8"], ["ResNet-34"])
    for cell in there:
        cells.add(cell, {"scores": SCORES, "seconds": {"representation": 120.0}})
    ended = run("status", "table8", "--backbone", "ResNet-34", folder=tmp_path)
    assert "Of 12 cells 1 is missing." in ended.output
    assert "| table8 | ResNet-34 | 12    | 1       |" in ended.output
    assert "ResNet-32" not in ended.output
    assert "Left to train: 1 representation; 1 takes 2 min 0 s." in ended.output
    cells.add(lacking, {"scores": SCORES})
    ended = run("status", "table8", "--backbone", "ResNet-34", folder=tmp_path)
    assert "Of 12 cells 0 are missing." in ended.output
    assert "Left to train" not in ended.output


def test_status_of_some_trainings(tmp_path):
    ended = run("status", "table4", "--only", "wd (*lt-50, seed ?", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert ended.output.startswith("Of 36 cells 36 are missing.\n")
    assert "Left to train: 3 representations; of 3 no cell tells the time." in ended.output

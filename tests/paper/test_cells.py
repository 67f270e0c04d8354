import hashlib
import json
from dataclasses import replace

import pytest

from protail.recipes import load_recipe, recipe_hash
from protail_paper.cells import CellError, Cells, read_cell
from protail_paper.comparisons import COMPARISONS
from protail_paper.groups import wanted_cells
from protail_paper.tables import BACKBONES, TABLES
from protail_paper.tuning import CHOICES
from protail_paper.wanted import Cell, Draw
from reference.documents import ROOT

DRAW = Draw("cifar100-lt", 100)
SCORES = {"plain": {"all": 0.5, "many": 0.7, "medium": 0.5, "few": None}}


def test_a_cell_is_found_by_what_it_computes(tmp_path):
    cells = Cells(tmp_path)
    cells.add(Cell("pc", DRAW, 0, {"classifier.tau": 0.25}), {"scores": SCORES})
    assert Cell("pc-la", DRAW, 0) in cells
    assert Cell("pc-la", DRAW, 1) not in cells
    assert Cell("pc", DRAW, 0) not in cells
    assert Cell("pc-la", Draw("cifar100-lt", 50), 0) not in cells
    assert Cell("pc-la", Draw("cifar100-lt", 100, "author"), 0) not in cells


def test_cells_are_there_the_next_time(tmp_path):
    cell = Cell("wd", DRAW, 2)
    file = Cells(tmp_path).add(cell, {"scores": SCORES, "seconds": {"representation": 1.5}})
    again = Cells(tmp_path)
    assert len(again) == 1
    assert again.get(cell).score("all") == 0.5
    assert again.get(cell).score("few") is None
    assert file.parent.name == "cifar100-lt-100"
    assert json.loads(file.read_text())["command"] == cell.command


def test_cells_of_before_a_setting_was_added_are_still_found(tmp_path):
    cell = Cell("pc-la", DRAW, 0)
    file = Cells(tmp_path).add(cell, {"scores": SCORES})
    record = json.loads(file.read_text())
    del record["recipe"]["classifier"]["batch_norm"]
    file.write_text(json.dumps(record))
    assert cell in Cells(tmp_path)


def test_cells_that_share_a_representation():
    softmax, prototypes = Cell("wd", DRAW, 0), Cell("pc", DRAW, 0)
    assert softmax.representation_key == prototypes.representation_key
    assert softmax.representation_key != Cell("wd", DRAW, 1).representation_key
    assert softmax.representation_key != Cell("ce", DRAW, 0).representation_key


def test_the_command_says_everything():
    cell = Cell(
        "wd-resnet32/pc-la",
        Draw("cifar100-lt", 50, "author"),
        1,
        {"classifier.tau": 0.5, "classifier.augment": ["crop", "flip"]},
    )
    assert cell.command == (
        "protail train wd-resnet32/pc-la --dataset cifar100-lt --imbalance 50 --seed 1 "
        "--selection author --set classifier.tau=0.5 "
        """--set 'classifier.augment=["crop", "flip"]'"""
    )


def test_judged_aside_is_another_cell(tmp_path):
    aside = Draw("cifar100-lt", 100, aside_from=10)
    cell = Cell("wd", aside, 1)
    assert cell.command == (
        "protail train wd --dataset cifar100-lt --imbalance 100 --seed 1 --validation-from 10"
    )
    others = [Draw("cifar100-lt", 100, aside_from=50), DRAW, Draw("cifar100-lt", 100, held_out=0.2)]
    assert len({Cell("wd", draw, 1).key for draw in (aside, *others)}) == 4
    assert Cell("wd", Draw("cifar100-lt", 100, aside_from=10.0), 1).key == cell.key
    file = Cells(tmp_path).add(cell, {"scores": SCORES})
    assert file.parent.name == "cifar100-lt-100-aside"
    there = Cells(tmp_path)
    assert cell in there
    assert not any(Cell("wd", draw, 1) in there for draw in others)


def test_cells_of_before_there_was_aside_keep_their_keys(tmp_path):
    recipe = recipe_hash(load_recipe("wd").resolved())
    for draw, data in (
        (DRAW, ["cifar100-lt", 100.0, "shuffled"]),
        (replace(DRAW, held_out=0.2, held_out_seed=1), ["cifar100-lt", 100.0, "shuffled", 0.2, 1]),
        (Draw("imagenet-lt", miniature=9), ["imagenet-lt", 0.0, "shuffled", "miniature", 9]),
    ):
        said = json.dumps([recipe, data, 2]).encode()
        assert Cell("wd", draw, 2).key == hashlib.sha256(said).hexdigest()
    file = Cells(tmp_path).add(Cell("wd", DRAW, 2), {"scores": SCORES})
    record = json.loads(file.read_text())
    assert record["data"].pop("aside_from") == 0
    file.write_text(json.dumps(record))
    assert Cell("wd", DRAW, 2) in Cells(tmp_path)


def test_a_cell_is_not_judged_in_two_ways(tmp_path):
    with pytest.raises(ValueError, match=r"held_out=0.2 and aside_from=10; expected one"):
        Draw("cifar100-lt", 100, held_out=0.2, aside_from=10)
    file = Cells(tmp_path).add(Cell("wd", DRAW, 2), {"scores": SCORES})
    record = json.loads(file.read_text())
    record["data"] |= {"held_out": 0.2, "aside_from": 10}
    file.write_text(json.dumps(record))
    with pytest.raises(CellError, match="expected one"):
        Cells(tmp_path)


def test_cells_are_taken_from_another_folder_once(tmp_path):
    here, there = Cells(tmp_path / "here"), Cells(tmp_path / "there")
    for seed in range(3):
        there.add(Cell("wd", DRAW, seed), {"scores": SCORES})
    here.add(Cell("wd", DRAW, 0), {"scores": SCORES})
    assert here.take(there) == 2
    assert here.take(there) == 0
    assert len(Cells(tmp_path / "here")) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "its format is 'list'"),
        ('{"format": "protail-model"}', "its format is 'protail-model'"),
        ('{"format": "protail-cell", "version": 9}', "its version is 9"),
        ('{"format": "protail-cell", "version": 1}', "'plain' scores"),
        (
            '{"format": "protail-cell", "version": 1, "scores": {"plain": {"all": 45.1}}}',
            "accuracies from 0 to 1",
        ),
    ],
)
def test_a_file_that_is_no_cell(tmp_path, text, words):
    file = tmp_path / "cell.json"
    file.write_text(text)
    with pytest.raises(CellError, match="is no cell") as error:
        read_cell(file)
    assert words in str(error.value)


def test_a_cell_whose_recipe_nobody_knows(tmp_path):
    file = Cells(tmp_path).add(Cell("wd", DRAW, 0), {"scores": SCORES})
    record = json.loads(file.read_text())
    record["recipe"]["representation"]["backbone"] = 7
    file.write_text(json.dumps(record))
    with pytest.raises(CellError, match="recipe, data or seed"):
        Cells(tmp_path)


@pytest.fixture(scope="module")
def committed():
    folder = ROOT / "results" / "cells"
    if not folder.is_dir():
        pytest.skip("needs the committed cells (results/cells), which come with a clone only")
    return folder


def test_seconds_that_are_guessed_are_not_known(tmp_path):
    def seconds(gpus=("one",), recipe="pc", **took):
        cells, cell = Cells(tmp_path / recipe), Cell(recipe, Draw("cifar100-lt", 100), 0)
        cells.add(cell, {"scores": SCORES, "seconds": took, "about": {"gpus": list(gpus)}})
        return cells.get(cell).gpu_seconds

    assert seconds(representation=80.0, classifier=1.5, guessed=8.0) == 81.5
    assert seconds(representation=80.0, classifier=1.5, guessed=8.1) is None
    assert seconds(representation=80.0, classifier=1.5) is None
    assert seconds(representation=80.0, guessed=0.0) is None
    assert seconds(representation=80.0, guessed=0.0, recipe="wd") == 80.0
    assert seconds((), representation=80.0, classifier=1.5, guessed=0.0) is None


def test_every_committed_cell_is_wanted_and_none_is_there_twice(committed):
    wanted = wanted_cells([*TABLES, *COMPARISONS, *CHOICES], BACKBONES)
    cells = Cells(committed)
    assert sum(cell in cells for cell in wanted) == len(cells)
    assert len(cells) == len(list(committed.rglob("*.json")))


def test_a_cell_that_is_there_twice(tmp_path):
    file = Cells(tmp_path).add(Cell("wd", DRAW, 0), {"scores": SCORES})
    (file.parent / "again.json").write_text(file.read_text())
    with pytest.raises(CellError, match="is the same one"):
        Cells(tmp_path)

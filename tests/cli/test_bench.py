"""The tables' command: what is there, what is missing, a slice that is really run."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from protail.bench.cells import Cells
from protail.bench.wanted import Cell, Draw
from protail.cli import app
from protail.cli._bench_data import Images
from protail.cli.bench import _known, _tables, _wanted
from protail.data.sets import DataSet, ImageSet, long_tailed_counts, save_draw
from protail.data.sets.long_tail import draw_description
from protail.training.plain import PlainDriver
from reference.bench_command import SCORES, run
from reference.stopping import at_call, in_a_finaliser

ROOT = Path(__file__).parents[2]
SMALL = [
    *("--set", "representation.epochs=1", "--set", "representation.precision=float32"),
    *("--set", "classifier.precision=float32", "--set", "classifier.max_steps=2"),
    *("--set", "classifier.augment=['flip']", "--backbone", "ResNet-32"),
]


def noise(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 8, 8), dtype=np.uint8)
    return ImageSet(labels, tuple(str(code) for code in range(len(counts))), pixels)


@pytest.fixture(scope="module")
def draw(tmp_path_factory):
    counts = long_tailed_counts(100, 100, 100)
    about = draw_description(imbalance=100, kind="exp", selection="shuffled", seed=0, n_max=100)
    data = DataSet("cifar100-lt", noise(counts, 0), noise([1] * 100, 1), description=about)
    file = tmp_path_factory.mktemp("draws") / "small.zip"
    save_draw(data, file)
    return file


def test_all_is_every_table_that_shows_test_images_which_can_be_downloaded():
    every = ["table1", "table2", "table8", "questions", "table3", "table4", "table9"]
    assert _tables(["all"]) == every
    assert _tables(["table4", "all", "table5"]) == [
        "table4",
        *(name for name in every if name != "table4"),
        "table5",
    ]


def test_changes_are_made_where_a_recipe_has_such_a_stage():
    changes = ["representation.lr=0.5", "pretraining.lr=0.25", "classifier.batch_size=8"]
    for cell in _wanted(["table9"], None, changes=changes):
        phases = cell.recipe.phases
        assert phases["representation"].lr == 0.5
        assert ("pretraining" in phases) == (cell.recipe_name == "dro-lt")
        assert "pretraining" not in phases or phases["pretraining"].lr == 0.25
        assert cell.recipe.classifier is None or cell.recipe.classifier.batch_size == 8


def test_changes_are_made_to_what_only_chooses():
    """Other recipes of the table do not take them."""
    only, changes = ["paco (*, seed 0"], ["representation.projection=16"]
    cells = _wanted(["table4"], None, only, changes)
    assert {cell.recipe_name for cell in cells} == {"paco", "paco-pc"}
    assert {cell.recipe.representation.method_options["projection"] for cell in cells} == {16}


@pytest.fixture
def no_cifar10(tmp_path, monkeypatch):
    class NoNetwork:
        filename, url = "cifar-10-python.tar.gz", "https://somewhere"

        def __init__(self, root, download):
            raise OSError("no network")

    monkeypatch.setenv("PROTAIL_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr("torchvision.datasets.CIFAR10", NoNetwork)


def test_data_that_is_not_there_is_told_once_before_anything_runs(no_cifar10, tmp_path):
    ended = run("table9", "--device", "cpu", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert ended.stderr.count("cifar10-lt: it is not in") == 1
    assert ended.stderr.endswith(" Nothing was begun.\n")
    assert not (tmp_path / "results").exists()


def test_of_several_data_sets_it_says_how_to_do_without_the_missing_one(no_cifar10, draw):
    draws = [Draw("cifar100-lt", 100), Draw("cifar10-lt", 100)]
    with pytest.raises(ValueError, match=r"cifar10-lt: it is not .* --only leaves its cells out"):
        Images([draw], None).find_all(draws)


def test_cells_that_cannot_be_changed_like_that_are_not_known():
    known = {cell.recipe_name for cell in _known(["classifier.temperature=class"])}
    assert {"wd", "pc-la"} <= known
    assert "wd-max" not in known
    assert "wd-max" in {cell.recipe_name for cell in _known(None)}


def test_the_help_fits_a_screen_and_names_every_table():
    shown = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "80"}).output
    lines = shown.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for name in [*_tables(["all"]), "table5", "table6", "status", "write", "take"]:
        assert name in shown


def exported(name, n_classes, n_max, imbalance, file):
    counts = long_tailed_counts(n_max, n_classes, imbalance)
    about = draw_description(
        imbalance=imbalance, kind="exp", selection="shuffled", seed=0, n_max=n_max
    )
    data = DataSet(name, noise(counts, 0), noise([1] * n_classes, 1), description=about)
    save_draw(data, file)
    return file


def test_draws_of_several_data_sets_serve_every_higher_ratio(tmp_path):
    sizes = {"cifar100-lt": (100, 200), "cifar10-lt": (10, 300)}
    files = [
        exported("cifar100-lt", *sizes["cifar100-lt"], 100, tmp_path / "first.zip"),
        *(exported(name, *size, 10, tmp_path / f"{name}.zip") for name, size in sizes.items()),
    ]
    find = Images(files, tmp_path / "nowhere")
    for name, (n_classes, n_max) in sizes.items():
        for imbalance in (100.0, 50.0, 10.0):
            found = find(Draw(name, imbalance))
            assert found.name == name
            expected = long_tailed_counts(n_max, n_classes, imbalance)
            assert found.train.profile.counts.tolist() == expected.tolist()


def test_draws_are_judged_aside(tmp_path):
    file = exported("cifar100-lt", 100, 200, 10, tmp_path / "wide.zip")
    find = Images([file], tmp_path / "nowhere")
    found = find(Draw("cifar100-lt", 100, aside_from=10))
    # The rarest class has 2 images at imbalance 100 and 20 at 10.
    assert set(found.test.profile.counts) == {18}
    assert found.train.profile.counts[[0, -1]].tolist() == [182, 2]
    expected = long_tailed_counts(200, 100, 100)
    assert found.group_counts.tolist() == expected.tolist()
    assert find(Draw("cifar100-lt", 100)).train.profile.counts.tolist() == expected.tolist()
    assert find(Draw("cifar100-lt", 100, aside_from=10)) is found
    narrow = exported("cifar100-lt", 100, 200, 100, tmp_path / "narrow.zip")
    again = Images([narrow, file], tmp_path / "nowhere")
    with pytest.raises(ValueError, match="draws that nest"):  # noise of its own, not the first
        again(Draw("cifar100-lt", 100, aside_from=10))


def test_a_slice_is_run_and_its_cells_are_found(draw, tmp_path):
    given = ["table8", "--draw", draw, "--device", "cpu", *SMALL]
    ended = run(*given, "--only", "*, seed 1", folder=tmp_path)
    assert "4 cells were run; 0 are missing." in ended.output
    ended = run(*given, "--at-once", 1, folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert "8 cells were run; 0 are missing." in ended.output
    again = run(*given, folder=tmp_path)
    assert "12 cells: 12 are there, 0 are missing." in again.output
    # What was tried out is not taken for the table.
    status = run("status", "table8", "--json", folder=tmp_path)
    assert len(json.loads(status.stdout)["missing"]) == 24


def test_sigterm_keeps_finished_cells_and_the_same_command_goes_on(draw, tmp_path, monkeypatch):
    given = ["table8", "--draw", draw, "--device", "cpu", *SMALL, "--at-once", 1]
    given += ["--set", "representation.batch_size=512"]
    two = [*given, "--only", "*, seed 0", "--only", "*, seed 1"]
    with monkeypatch.context() as patch:
        n_steps = 8  # of five an epoch: in the second training
        steps = at_call(patch, PlainDriver, "advance", n_steps, in_a_finaliser)
        ended = run(*two, folder=tmp_path)
    assert ended.exit_code == 130, ended.output
    assert ended.stderr.splitlines()[-1] == (
        "stopped. Finished cells are kept; the same command goes on."
    )
    assert len(steps) == n_steps
    ended = run(*two, folder=tmp_path)
    assert "8 cells: 4 are there, 4 are missing." in ended.output
    assert "4 cells were run; 0 are missing." in ended.output


def test_the_page_is_written_from_the_cells(tmp_path):
    cells = Cells(tmp_path / "cells")
    both = {"plain": SCORES["plain"], "mirrored": SCORES["plain"]}
    cells.add(Cell("wd", Draw("cifar100-lt", 100), 0), {"scores": both})
    ended = run("write", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| Softmax | 70.00 | 50.00 | 10.00 | 50.00 (1 of 3 seeds) |" in page


def test_cells_are_taken(tmp_path):
    there = Cells(tmp_path / "there")
    there.add(Cell("wd", Draw("cifar100-lt", 100), 0), {"scores": SCORES})
    ended = run("take", tmp_path / "there", folder=tmp_path / "here")
    assert "1 cell was taken" in ended.output
    assert len(Cells(tmp_path / "here" / "cells")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "'table1'"),
        (["take"], "take needs a folder"),
        (["table1", "--backbone", "resnet"], "ResNet-34"),
        (["table9", "--backbone", "ResNet-50"], "no cell on ResNet-50; expected one of ResNet-3"),
        (["status", "table9", "--backbone", "ResNet-50"], "no cell on ResNet-50"),
        (["table1", "--draw", "nowhere.zip"], "no such file"),
        (["table1", "--budget", "long"], "no duration"),
        (["table1", "--set", "classifier.tua=1"], "tau"),
        (["table1", "--only", "wd"], "no training is called like that"),
        (["status", "--only", "wd"], "no training is called like that"),
    ],
)
def test_bad_input(words, said, tmp_path):
    ended = run(*words, "--device", "cpu", folder=tmp_path / "results")
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert not (tmp_path / "results").exists()


def test_a_file_that_is_no_cell_is_named(tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "broken.json").write_text("{")
    ended = run("status", folder=tmp_path)
    assert ended.exit_code == 2
    assert "broken.json is no cell" in ended.stderr


@pytest.mark.skipif(shutil.which("tar") is None or os.name == "nt", reason="needs tar and a shell")
def test_a_slice_on_another_machine(draw, tmp_path):
    """The script's both halves; the other machine is this one, reached by a shell."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "gpu_slice.sh", tree / "benchmarks")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "draws").mkdir()
    shutil.copy(draw, tree / "draws")
    other = tmp_path / "reach"
    other.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    other.chmod(0o755)
    options = [*SMALL, "--device", "cpu", "--at-once", "3"]

    def slice_of_table8(*where):
        return subprocess.run(
            ["bash", "benchmarks/gpu_slice.sh", *where, "5m", "table8"],
            cwd=tree,
            env=os.environ
            | {"SSH": str(other), "PYTHON": sys.executable, "PYTHONPATH": ""}
            | {"PROTAIL_COMMIT": "unknown"}
            | {"BENCH_OPTIONS": " ".join(options).replace("'", '"')},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    ended = slice_of_table8("somewhere")
    assert ended.returncode == 0, ended.stderr
    assert "12 cells were taken" in ended.stdout + ended.stderr
    assert len(Cells(tree / "results" / "cells")) == 12
    assert not list(tmp_path.glob("*.tar"))
    assert not any(tarfile.is_tarfile(file) for file in tree.rglob("*") if file.is_file())
    # A slice that was killed goes on: what it had run comes back, what was there before does not.
    out = tmp_path / "out"
    shutil.copytree(tree / "results", out / "results")
    first, *others = sorted((out / "results").rglob("*.json"))
    for file, seconds in [(first, 2), *((other, 0) for other in others)]:
        os.utime(file, (seconds, seconds))
    (out / "began").touch()
    os.utime(out / "began", (1, 1))
    ended = slice_of_table8("--here", str(out))
    assert ended.returncode == 0, ended.stderr
    assert "12 cells: 12 are there" in ended.stdout + ended.stderr
    [packed] = out.iterdir()
    with tarfile.open(packed) as archive:
        assert [Path(name).name for name in archive.getnames()] == [first.name]

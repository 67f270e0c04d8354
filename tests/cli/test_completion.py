"""What a shell offers when somebody presses the tab key."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from protail.cli import _completion as completion
from protail.cli import app
from protail.data.images import dataset_names
from protail.ops import distance_names
from protail.recipes import recipe_names
from protail_paper.groups import BACKBONE_NAMES, bench_table


def asking(*words):
    """Give what bash hands over when the last of these words is to be completed."""
    line = " ".join(["protail", *words])
    return {
        "_PROTAIL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }


def offered(*words):
    result = CliRunner().invoke(app, [], env=asking(*words), prog_name="protail")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], ["predict"]),
        (["fit", "x.npz", "--labels-"], ["--labels-file"]),
        (["recipes", "s"], ["show"]),
        (["train", "paco"], ["paco", "paco-pc"]),
        (["train", "ce/pc-cosine-l"], ["ce/pc-cosine-la"]),
        (["recipes", "show", "ncm-"], ["ncm-augmented"]),
        (["search", "tau"], ["tau-norm"]),
        (["train", "pc", "--dataset", "cifar10-"], ["cifar10-lt"]),
        (["data", "stats", "cifar10-"], ["cifar10-lt"]),
        (["evaluate", "run", "--dataset", "inat"], ["inaturalist18"]),
        (["train", "pc", "--kind", ""], ["exp", "step"]),
        (["train", "pc", "--selection", "f"], ["first"]),
        (["train", "pc", "--driver", "c"], ["captured"]),
        (["fit", "x.npz", "--distance", "eu"], ["euclidean"]),
        (["fit", "x.npz", "--device", "c"], ["cpu", "cuda"]),
        (["bench", "table1", "table2"], ["table2"]),
        (["bench", "sta"], ["status"]),
        (["bench", "table1", "--backbone", "ResNet-3"], ["ResNet-34", "ResNet-32"]),
    ],
)
def test_names_are_completed(words, expected):
    assert offered(*words) == expected


@pytest.mark.parametrize("words", [["train", "own"], ["fit", "feat"], ["fit", "x", "--test", "t"]])
def test_files_are_left_to_the_shell(words):
    assert offered(*words) == []


def test_the_names_are_those_there_are():
    assert completion.recipe_names() == recipe_names()
    assert list(completion.DATA_SETS) == dataset_names()
    assert list(completion.BACKBONES) == list(BACKBONE_NAMES)
    assert set(completion.DISTANCES) <= set(distance_names(ready=True))
    assert [bench_table(name).name for name in completion.TABLES] == list(completion.TABLES)


def test_nothing_large_is_imported():
    asked = [sys.executable, "-X", "importtime", "-m", "protail"]
    ended = subprocess.run(
        asked, env=os.environ | asking("train", "pc-l"), capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["pc-la"]
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "protail.cli._app" in imported
    assert not imported & {"torch", "sklearn", "pandas", "matplotlib", "scipy"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    ended = subprocess.run(
        [sys.executable, "-m", "protail", "--show-completion", shell],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"_PROTAIL_COMPLETE=complete_{shell}" in ended.stdout

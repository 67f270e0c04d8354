"""What a shell offers when somebody presses the tab key."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from protail.cli import app
from protail.cli import options as completion
from protail.data.images import dataset_names
from protail.recipes import recipe_names
from protail_paper.cli.bench import BACKBONES, TABLE_NAMES
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
    assert list(BACKBONES) == list(BACKBONE_NAMES)
    assert [bench_table(name).name for name in TABLE_NAMES] == list(TABLE_NAMES)


LARGE = {"torch", "sklearn", "pandas", "matplotlib", "scipy", "torchvision"}


def imported_by(*arguments, **environment):
    """Give how a command ends, and the modules that it imports."""
    asked = [sys.executable, "-X", "importtime", "-m", "protail", *arguments]
    ended = subprocess.run(
        asked, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    found = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "protail.cli.app" in found
    return ended, found


def test_pressing_a_key_imports_nothing_large():
    ended, imported = imported_by(**asking("train", "pc-l"))
    assert ended.stdout.split() == ["pc-la"]
    assert not imported & LARGE


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--help", 0),
        ("fit --help", 0),
        ("bench --help", 0),
        ("data list", 0),
        ("fit missing.npz -o model", 2),
        ("predict missing new.npz -o out.csv", 2),
        ("evaluate missing test.npz", 2),
        ("evaluate missing", 2),
        ("compare missing other test.npz", 2),
        ("add-class missing lynx lynx.npz", 2),
    ],
)
def test_what_needs_no_torch_does_not_import_it(words, code):
    ended, imported = imported_by(*words.split())
    assert ended.returncode == code, ended.stderr
    assert not imported & LARGE
    assert len(imported) < 700


def test_a_command_imports_no_other_one():
    _, imported = imported_by("fit", "missing.npz", "-o", "model")
    others = {"train", "search", "weights", "predict", "doctor"}
    assert not imported & {f"protail.cli.{name}" for name in others}


@pytest.mark.parametrize(("old", "new"), completion.OLD_FLAGS.items())
def test_old_flags_are_told_and_taken(old, new, capsys):
    assert completion.current_flags(["x", old, f"{old}=2"]) == ["x", new, f"{new}=2"]
    assert (
        capsys.readouterr().err == f"Note: {old} is called {new} now; the old name will go.\n" * 2
    )


def test_an_old_flag_still_works(protail):
    ended = protail("train", "ncm", "--dataset", "missing.zip", "--aside-from", 0.5)
    assert ended.last_line.startswith("protail train: --validation-from 0.5; expected")
    assert ended.err.startswith("Note: --aside-from is called --validation-from now")


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

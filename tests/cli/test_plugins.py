"""Parts of somebody's own, imported before a command runs."""

import json
import os
import subprocess
import sys

import pytest

from protail.cli.command import load_plugins

RECIPE = """
title = "Own"

[representation]
loss = "{loss}"
halves = 3
"""
LOSS = """
from torch import nn

from protail.losses import register_loss


@register_loss("{loss}")
def own(counts, *, halves: int = 1) -> nn.Module:
    return nn.CrossEntropyLoss()
"""


def protail(folder, *arguments, plugins=None):
    named = {} if plugins is None else {"PROTAIL_PLUGINS": plugins}
    return subprocess.run(
        [sys.executable, "-m", "protail", *arguments],
        cwd=folder,
        env=os.environ | named,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own_loss.py").write_text(LOSS.format(loss="own"))
    (tmp_path / "other.py").write_text(LOSS.format(loss="other"))
    (tmp_path / "own.toml").write_text(RECIPE.format(loss="own"))
    return tmp_path


@pytest.mark.parametrize("plugins", ["own_loss", " other.py , own_loss.py"])
def test_a_recipe_knows_what_is_imported(folder, plugins):
    ended = protail(folder, "recipes", "show", "own.toml", "--json", plugins=plugins)
    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout)["recipe"]["representation"]
    assert (shown["loss"], shown["loss_options"]) == ("own", {"halves": 3})


def test_without_it_the_name_is_unknown_and_it_is_hinted_at(folder):
    ended = protail(folder, "recipes", "show", "own.toml", plugins="")
    assert ended.returncode == 2
    assert "'own' is unknown" in ended.stderr
    assert ended.stderr.endswith("is imported: name it in PROTAIL_PLUGINS.\n")
    ended = protail(folder, "recipes", "show", "own.toml", plugins="other.py")
    assert "'own' is unknown" in ended.stderr
    assert ended.stderr.endswith("the module that registers it is imported.\n")


@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        ("missing.py", "PROTAIL_PLUGINS: missing.py: there is no such file"),
        ("missing", "PROTAIL_PLUGINS: there is no module 'missing'"),
    ],
)
def test_what_is_not_there_is_told(folder, plugins, words):
    ended = protail(folder, "recipes", plugins=plugins)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_files_of_one_name_are_both_imported(folder):
    for name in ("first", "second"):
        (folder / name).mkdir()
        (folder / name / "parts.py").write_text(LOSS.format(loss=name))
    recipe = RECIPE.format(loss="first") + '[classifier]\nloss = "second"\n'
    (folder / "both.toml").write_text(recipe)
    plugins = "first/parts.py,second/parts.py"
    ended = protail(folder, "recipes", "show", "both.toml", "--json", plugins=plugins)
    assert ended.returncode == 0, ended.stderr
    stages = json.loads(ended.stdout)["recipe"]
    found = [stages[stage]["loss"] for stage in ("representation", "classifier")]
    assert found == ["first", "second"]


def test_a_file_is_imported_once_however_it_is_written(folder, monkeypatch):
    (folder / "counting.py").write_text("import os\nos.environ['COUNTED'] += '1'\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COUNTED", "")
    monkeypatch.setenv("PROTAIL_PLUGINS", f"counting.py,./counting.py,{folder / 'counting.py'}")
    load_plugins()
    load_plugins()
    assert os.environ["COUNTED"] == "1"


FAULTS = [
    ("def broken(:\n", r"SyntaxError: .*\(faulty.py, line 1\)"),
    ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ("raise RuntimeError('no such thing')\n", "RuntimeError: no such thing"),
    ("import not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    (LOSS.format(loss="cross-entropy"), "ValueError: name='cross-entropy' is already a loss"),
]


@pytest.mark.parametrize(("text", "words"), FAULTS)
@pytest.mark.parametrize("plugin", ["faulty.py", "faulty"])
def test_a_fault_of_a_plugin_is_told_as_its_own(folder, monkeypatch, plugin, text, words):
    (folder / "faulty.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PROTAIL_PLUGINS", plugin)
    before = set(sys.modules)
    with pytest.raises(ValueError, match=f"PROTAIL_PLUGINS: {plugin}: .* raised {words}") as caught:
        load_plugins()
    assert caught.value.__cause__ is not None
    left = set(sys.modules) - before
    assert not [name for name in left if "faulty" in name]


def test_a_fault_of_a_plugin_ends_a_command_in_one_line(folder):
    (folder / "faulty.py").write_text("def broken(:\n")
    ended = protail(folder, "recipes", plugins="faulty.py")
    assert ended.returncode == 2
    assert "PROTAIL_PLUGINS: faulty.py" in ended.stderr
    assert "SyntaxError" in ended.stderr
    assert "fault of protail" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_ctrl_c_while_a_plugin_is_imported_stays_ctrl_c(folder, monkeypatch):
    (folder / "slow.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROTAIL_PLUGINS", "slow.py")
    with pytest.raises(KeyboardInterrupt):
        load_plugins()


def test_a_missing_module_inside_a_package_is_told(folder, monkeypatch):
    (folder / "own_package").mkdir()
    (folder / "own_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PROTAIL_PLUGINS", "own_package.missing.part")
    with pytest.raises(ValueError, match=r"there is no module 'own_package\.missing\.part'"):
        load_plugins()

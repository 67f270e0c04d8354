"""Parts of somebody's own, imported before a command runs."""

import json
import os
import subprocess
import sys

import pytest

RECIPE = """
title = "Own"

[representation]
loss = "{loss}"
halves = 3
"""
LOSS = """
from torch import nn

from protail.losses.registry import register_loss


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


@pytest.mark.parametrize("plugins", ["own_loss.py", "own_loss", " other.py , own_loss.py"])
def test_a_recipe_knows_what_is_imported(folder, plugins):
    ended = protail(folder, "recipes", "show", "own.toml", "--json", plugins=plugins)
    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout)["recipe"]["representation"]
    assert (shown["loss"], shown["loss_options"]) == ("own", {"halves": 3})


def test_without_it_the_name_is_unknown(folder):
    ended = protail(folder, "recipes", "show", "own.toml")
    assert ended.returncode == 2
    assert "'own' is unknown" in ended.stderr


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

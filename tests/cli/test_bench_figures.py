"""``protail bench figures``: pictures and their numbers, in a folder of results."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from protail.cli import app

pytest.importorskip("matplotlib")


def run(*words):
    return CliRunner().invoke(app, ["bench", "figures", *map(str, words)])


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(0)
    labels = np.repeat(range(3), [110, 30, 5])
    rows = rng.normal(size=(len(labels), 4)) + 3 * np.eye(3, 4)[labels]
    file = tmp_path_factory.mktemp("features") / "small.npz"
    parts = {"x_train": rows, "y_train": labels, "x_test": rows, "y_test": labels}
    np.savez(file, **parts)
    return file


def test_figures_and_their_numbers_are_written(features, tmp_path):
    ended = run("--features", features, "--results", tmp_path, "--json")
    assert ended.exit_code == 0, ended.output
    folder = tmp_path / "figures"
    assert sorted(file.name for file in folder.iterdir()) == [
        *("figure1.png", "figure3-pc-la.png", "figure3-pc.png", "figures.json")
    ]
    numbers = json.loads((folder / "figures.json").read_text())
    assert set(numbers) == {"figure1", "figure3-pc", "figure3-pc-la"}
    assert numbers["figure3-pc"]["features"] == "small"
    written = json.loads(ended.stdout)["figures"]
    assert written == [str(folder / f"{name}.png") for name in numbers]
    again = run("--features", features, "--results", tmp_path)
    assert "Figure 2 of ResNet-34 is left out" in again.output
    assert "The figure of costs is left out" in again.output
    assert "3 figures from 0 cells" in again.output


def test_features_that_are_none(tmp_path):
    ended = run("--features", tmp_path / "nothing.npz", "--results", tmp_path / "results")
    assert ended.exit_code == 2
    assert "nothing.npz" in ended.stderr
    assert not (tmp_path / "results").exists()

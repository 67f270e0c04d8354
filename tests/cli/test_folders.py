"""Folders that are no models: what they are, and commands that work on them."""

import numpy as np
import pytest
from typer.testing import CliRunner

from protail.cli import app
from reference.image_data import write_class_folders
from reference.rows import BIRDS, long_tailed_rows
from reference.small_images import TINY
from reference.tiny_data import write_tiny

QUICK = [
    *("--set", f"representation.backbone={TINY}", "--set", "representation.epochs=0"),
    *("--set", "classifier.epochs=0", "--device", "cpu"),
]
COMMANDS = {
    "predict": ["predict", "GIVEN", "rows.npz", "-o", "out.csv"],
    "evaluate": ["evaluate", "GIVEN", "rows.npz"],
    "evaluate alone": ["evaluate", "GIVEN"],
    "compare": ["compare", "model", "GIVEN", "rows.npz"],
    "add-class": ["add-class", "GIVEN", "lynx", "rows.npz"],
}

# What each folder is said to be, and part of what is said to do with it.
SAID = {
    "runs": ("a folder with runs of protail train", "Name one of them, as in runs/seed0."),
    "backbone": ("a backbone that protail weights", "--set representation.weights=backbone"),
    "photos": ("a folder of images", "protail fit photos -o MODEL"),
    "models": ("a folder with models", "Name one of them, as in models/first."),
    "rows.npz": ("a file", "The model comes first, and files behind it."),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory, fitted_on_birds):
    """Everything that can be taken for a model, each in its folder."""
    folder = write_tiny(tmp_path_factory.mktemp("folders"))
    rows, labels = long_tailed_rows(names=BIRDS)
    np.savez(folder / "rows.npz", X=rows, y=labels)
    write_class_folders(folder / "photos", {"ant": 3, "bee": 2})
    train = ["train", "tiny.toml", "--dataset", "draw.zip", *QUICK]
    on_features = ["train", "pc-la", "--dataset", "cifar100-lt-features", *QUICK[4:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "models").mkdir()
        for name in ("model", "models/first"):
            (folder / name).symlink_to(fitted_on_birds)
        for words in (
            [*train, "-o", "run"],
            [*train, "--seed", "0", "--seed", "1", "-o", "runs"],
            [*on_features, "-o", "on-features"],
            ["weights", "run", "-o", "backbone"],
        ):
            ended = CliRunner().invoke(app, words)
            assert ended.exit_code == 0, ended.stderr
    (folder / "stopped").mkdir()
    (folder / "stopped/run.json").write_bytes((folder / "run/run.json").read_bytes())
    return folder


@pytest.fixture
def typed(source, protail, monkeypatch):
    def run(command, given):
        monkeypatch.chdir(source)
        return protail(*(given if word == "GIVEN" else word for word in command))

    return run


@pytest.mark.parametrize(
    ("command", "given"),
    [(command, given) for command in COMMANDS for given in SAID],
)
def test_it_says_what_it_is_and_what_to_do(command, given, typed):
    what, advice = SAID[given]
    ended = typed(COMMANDS[command], given)
    assert ended.code == 2
    assert ended.last_line.startswith(f"protail {COMMANDS[command][0]}: {given} is {what}")
    assert "expected a model, the folder that protail fit or train writes" in ended.last_line
    assert advice in ended.last_line
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "evaluate alone"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("run", "rows.npz: it is no photo; expected files that end in .jpg"),
        ("on-features", "rows.npz has rows of 6 numbers; on-features was fitted on rows of 64"),
        ("stopped", "stopped: this run is not finished"),
    ],
)
def test_a_run_takes_what_it_was_trained_on(command, given, said, typed):
    words = [*COMMANDS[command], *(["-o", "new"] if command == "add-class" else [])]
    ended = typed(words, given)
    assert ended.code == 2
    assert said in ended.last_line
    assert ended.err.count("\n") == 1


def test_a_damaged_model_is_told_as_such(typed, source, fitted_on_birds):
    (source / "damaged").mkdir(exist_ok=True)
    weights = (fitted_on_birds / "weights.safetensors").read_bytes()
    (source / "damaged/weights.safetensors").write_bytes(weights)
    ended = typed(COMMANDS["predict"], "damaged")
    assert ended.code == 2
    assert "damaged/model.json: is missing" in ended.last_line

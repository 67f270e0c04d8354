"""Files of features in the place of images: train, evaluate, stats, and who refuses them."""

import numpy as np
import pytest

from protail.data.images import save_features
from protail.experiments import Run
from protail.recipes import load_recipe, recipe_hash
from reference.feature_data import feature_data, write_npz
from reference.tiny_data import write_tiny

TRAIN = ["train", "pc-la", "--device", "cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path):
    """Where commands run: a whole file, and one without stream and mirror images."""
    write_npz(tmp_path / "whole.npz", feature_data())
    save_features(tmp_path / "bare.safetensors", feature_data(whole=False), "uint8")
    return tmp_path


def refused(ended, *words):
    assert ended.code == 2, (ended.out, ended.err)
    assert ended.out == ""
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.last_line


def test_train_on_a_stored_stream(protail, folder):
    ended = protail(*TRAIN, "--dataset", "whole.npz")
    assert ended.code == 0, ended.err
    for words in (
        "representation: that of whole, 8 features; its stream of 600 stands for sampler",
        "classifier: prototype (distance euclidean) head from augmented centroids",
        "whole: 221 images to learn from, 100 to evaluate on, 5 classes (many 1, medium 2, few 2)",
        "On cpu, driver plain: seed 0, 10 steps of the classifier",
        "Run: runs/pc-la-whole-seed0",
    ):
        assert words in ended.err
    rows = [line.split("|")[1].strip() for line in ended.out.splitlines() if line[3:4].isalpha()]
    assert rows == ["in %", "classifier", "classifier (flip)"]
    run = folder / "runs/pc-la-whole-seed0"
    assert {file.name for file in run.iterdir()} >= {
        *("run.json", "metrics.jsonl", "weights.safetensors", "evaluation.json", "lock")
    }
    assert not (run / "checkpoint.safetensors").exists()


def test_train_without_one_as_json(protail, folder):
    arguments = [*TRAIN, "--dataset", "bare.safetensors", "--seed", 0, "--seed", 1, "-o", "runs"]
    ended = protail(*arguments, "--set", "classifier.epochs=2", "--json")
    assert ended.code == 0, ended.err
    assert [run["evaluation"].keys() for run in ended.json["runs"]] == [{"classifier"}] * 2
    assert list(ended.json["summary"]) == ["classifier"]
    resolved = Run.open(folder / "runs/seed1").resolved["recipe"]
    assert resolved["representation"] is None
    assert ended.json["hash"] == recipe_hash(resolved)
    assert ended.json["data"]["features"]["width"] == 8
    said = protail(*arguments, "--set", "classifier.epochs=2", "--resume").err
    assert "; nothing is augmented" in said
    assert "Nothing is left to do" in said


def test_a_recipe_of_a_classifier_only(protail, folder):
    recipe = load_recipe("pc").to_toml().partition("[representation]")
    classifier = recipe[2].partition("[classifier]")[2]
    (folder / "own.toml").write_text(f"{recipe[0]}[classifier]{classifier}", encoding="utf-8")
    ended = protail("train", "own.toml", "--dataset", "whole.npz", "-o", "run")
    assert ended.code == 0, ended.err


def test_what_cannot_be_trained(protail, folder):
    refused(protail("train", "ce", "--dataset", "whole.npz"), "'ce' has no classifier stage")
    refused(protail(*TRAIN, "--dataset", "whole.npz", "--imbalance", 10), "takes no option")
    refused(protail(*TRAIN, "--dataset", "lost.npz"), "lost.npz: it is no file of features")
    refused(protail(*TRAIN, "--dataset", "features"), "it is no file of features")
    refused(protail(*TRAIN, "--dataset", "whole.npz", "--driver", "captured"), "a GPU")
    write_npz(folder / "text.npz", feature_data(), y_train=np.array(["a"] * 221))
    refused(protail(*TRAIN, "--dataset", "text.npz"), "text.npz: train: labels has dtype")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("file", ["whole.npz", "bare.safetensors"])
def test_evaluate(protail, folder, file):
    assert protail(*TRAIN, "--dataset", file, "-o", "run").code == 0
    (folder / file).rename(folder / f"other-{file}")
    arguments = ["evaluate", "run", "--dataset", f"other-{file}", "--device", "cpu"]
    assert protail(*arguments, "--json").json["evaluation"] == Run.open("run").evaluation()
    assert protail(*arguments, "--no-flip").code == 0
    flipped = protail(*arguments, "--flip")
    if file == "whole.npz":
        assert "classifier (flip)" in flipped.out
    else:
        refused(flipped, "--flip was given", "x_test_mirror")
    refused(protail("evaluate", "run"), "file of features it was trained on", "--dataset")
    other = "bare.safetensors" if file == "whole.npz" else "whole.npz"
    refused(protail("evaluate", "run", "--dataset", other), "differs in", "features")
    write_tiny(folder)
    refused(protail("evaluate", "run", "--dataset", "draw.zip"), "differs in", "features")


def test_stats(protail, folder):
    ended = protail("data", "stats", "whole.npz", "--plot", "counts.png")
    assert ended.code == 0, ended.err
    line = "whole: 5 classes, 221 train, 600 stream, 100 test images as 8 features each, "
    assert line + "imbalance 30" in ended.out
    assert (folder / "counts.png").exists()
    found = protail("data", "stats", "features", "--data-root", "bare.safetensors", "--json").json
    assert found["name"] == "clusters"
    assert found["features"] == 8
    assert found["counts"] == [120, 60, 25, 12, 4]


def test_its_run_has_no_backbone_to_take_along(protail):
    assert protail(*TRAIN, "--dataset", "whole.npz", "-o", "run").code == 0
    refused(protail("weights", "run", "-o", "out"), "run: a run on features has no backbone")


def test_who_needs_images(protail):
    words = "holds features and no images; expected images to"
    refused(protail("data", "prepare", "whole.npz"), f"whole {words} prepare")
    refused(protail("data", "export", "whole.npz", "-o", "a.zip"), f"whole {words} export")
    searching = ["search", "pc-la", "--dataset", "bare.safetensors"]
    ended = protail(*searching, "--over", "classifier.lr=1:4:log")
    refused(ended, f"clusters {words} search with")

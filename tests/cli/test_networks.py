"""Networks and runs where a model is asked for: photos in, the same files out."""

import csv
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from protail import Network, PrototypeClassifier
from protail.cli import app
from protail.data.augment import InputSpec
from protail.data.images import load_dataset
from reference.small_images import TINY

SMALL = [
    *(f"representation.backbone={TINY}", "representation.epochs=1", "classifier.epochs=1"),
    *('representation.augment=["resized-crop"]', 'classifier.augment=["resized-crop"]'),
    *("representation.batch_size=8", "classifier.max_steps=4"),
]
CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Photos, a run on them, and a network of a fitted classifier on the run's backbone."""
    from PIL import Image

    root = tmp_path_factory.mktemp("networks")
    rng = np.random.default_rng(0)
    for part, n in (("photos/train", 6), ("photos/test", 3)):
        for code, name in enumerate((*CLASSES, "dog")):
            place = root / "dogs" if name == "dog" else root / part / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(n):
                pixels = rng.integers(0, 60, (20, 24, 3), dtype=np.uint8)
                pixels[:, :, code % 3] += 180 - 90 * (code // 3)
                Image.fromarray(pixels).save(place / f"{number}.png")
    words = ["train", "pc-la", "--dataset", root / "photos", "-o", root / "run", "--from-scratch"]
    words += ["--device", "cpu", *(word for each in SMALL for word in ("--set", each))]
    ended = CliRunner().invoke(app, [str(word) for word in words])
    assert ended.exit_code == 0, ended.output
    backbone = Network.load(root / "run", device="cpu").backbone
    bare = Network(
        PrototypeClassifier(random_state=0).fit(np.eye(16)[:2], ["a", "b"]),
        backbone=backbone,
        inputs=InputSpec(size=32),
    )
    files = sorted((root / "photos/train").rglob("*.png"))
    labels = [file.parent.name for file in files]
    head = PrototypeClassifier(random_state=0).fit(bare.features(files), labels)
    Network(head, backbone=backbone, inputs=InputSpec(size=32)).save(root / "network")
    return root


@pytest.fixture(autouse=True)
def folder(source, protail, tmp_path):
    for name in ("run", "network", "photos", "dogs"):
        shutil.copytree(source / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["run", "network"])
def test_photos_are_predicted_and_listed_by_path(name, protail, folder):
    (folder / "photos/test/bee/broken.jpg").write_bytes(b"no picture")
    ended = protail("predict", name, "photos/test", "-o", "out.csv", "-k", 2, "--device", "cpu")
    assert ended.code == 0, ended.err
    assert "cannot be read, without a prediction: 1 (photos/test/bee/broken.jpg)" in ended.err
    assert "9 photos predicted" in ended.err
    rows = {row["file"]: row for row in csv.DictReader((folder / "out.csv").open())}
    assert rows.pop("photos/test/bee/broken.jpg")["label"] == ""
    assert sorted(rows) == sorted(
        str(each) for each in (folder / "photos/test").rglob("*.png")
    ) or (sorted(rows)[0] == "photos/test/ant/0.png")
    network = Network.load(folder / name, device="cpu")
    labels, probabilities = network.top_k(list(rows), 2)
    assert [row["label"] for row in rows.values()] == labels[:, 0].tolist()
    assert [row["label_2"] for row in rows.values()] == labels[:, 1].tolist()
    found = [float(row["probability"]) for row in rows.values()]
    np.testing.assert_allclose(found, probabilities[:, 0], rtol=1e-5)
    assert all(float(row["distance"]) > 0 and row["novelty"] for row in rows.values())


def test_photos_one_by_one_and_as_json(protail, folder):
    (folder / "broken.png").write_bytes(b"no picture")
    words = ["photos/test/ant/0.png", "broken.png", "photos/test/cat"]
    ended = protail("predict", "run", *words, "-o", "out.jsonl", "--device", "cpu", "--json")
    assert ended.json["rows"] == 5
    assert ended.json["unreadable"] == ["broken.png"]
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    expected = [*words[:2], *(f"photos/test/cat/{number}.png" for number in range(3))]
    assert [line["file"] for line in lines] == expected


@pytest.mark.parametrize("name", ["run", "network"])
def test_the_names_of_folders_are_the_labels(name, protail, folder):
    network = Network.load(folder / name, device="cpu")
    files = sorted((folder / "photos/test").rglob("*.png"))
    right = network.predict(files) == [file.parent.name for file in files]
    for given in (["photos/test"], [f"photos/test/{label}" for label in CLASSES]):
        ended = protail("evaluate", name, *given, "--device", "cpu", "--json")
        assert ended.code == 0, ended.err
        assert ended.json["all"] == pytest.approx(right.mean())
        assert ended.json["unreadable"] == []
    (folder / "photos/test/bee/broken.jpg").write_bytes(b"no picture")
    ended = protail("evaluate", name, "photos/test", "--device", "cpu")
    assert "1 photo cannot be read: left out (photos/test/bee/broken.jpg)." in ended.err
    (folder / "photos/test/bee/broken.jpg").unlink()
    shown = protail("evaluate", "run", "--dataset", "photos", "--device", "cpu", "--json")
    assert shown.json["run"] == "run"


def test_two_networks_are_compared(protail):
    ended = protail("compare", "run", "network", "photos/test", "--device", "cpu", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["first"], ended.json["second"]) == ("run", "network")
    assert ended.json["rows_left_out"] == 0


@pytest.mark.parametrize("name", ["run", "network"])
def test_a_class_is_added_from_photos(name, protail, folder):
    given = ["add-class", name, "dog", "dogs", "--check", "photos/test", "--device", "cpu"]
    if name == "run":
        refused = protail(*given)
        assert refused.code == 2
        assert "run is a run, which stays as it was trained" in refused.last_line
    ended = protail(*given, "-o", "more", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["class"], ended.json["rows"]) == ("dog", 6)
    assert {each["label"] for each in ended.json["nearest"]} == set(CLASSES)
    before, after = (Network.load(folder / each, device="cpu") for each in (name, "more"))
    assert sorted(after.classes_) == [*CLASSES, "dog"]
    assert after.class_counts_[after.classes_ == "dog"] == 6
    assert after.backbone is not None
    dogs = after.predict(folder / "dogs")
    assert (dogs == "dog").mean() > 0.5
    assert set(before.predict(folder / "dogs")) <= set(CLASSES)


def test_what_is_for_feature_files_is_refused(protail):
    ended = protail("predict", "run", "photos/test", "-o", "out.csv", "--columns", "a")
    assert ended.code == 2
    assert "--columns cannot be used here: run takes photos" in ended.last_line
    ended = protail("predict", "run", "run", "-o", "out.csv")
    assert "run: it holds no photo" in ended.last_line


def test_a_run_on_features_predicts_rows(protail, folder):
    words = ["train", "pc", "--dataset", "cifar100-lt-features", "--set", "classifier.epochs=0"]
    assert protail(*words, "-o", "on-features", "--device", "cpu").code == 0
    rows = np.asarray(load_dataset("cifar100-lt-features").test.rows[:5])
    np.savez(folder / "rows.npz", X=rows)
    assert protail("predict", "on-features", "rows.npz", "-o", "out.csv").code == 0
    said = [row["label"] for row in csv.DictReader((folder / "out.csv").open())]
    assert said == Network.load("on-features", device="cpu").predict(rows).tolist()


def test_a_run_is_reported_on_its_test_photos(protail, folder):
    pytest.importorskip("plotly")
    ended = protail("report", "run", "--dataset", "photos", "--device", "cpu", "--json")
    assert ended.code == 0, ended.err
    shown = protail("evaluate", "run", "--dataset", "photos", "--device", "cpu", "--json").json
    scores = shown["evaluation"]["classifier"]["plain"]
    assert ended.json["evaluation"]["all"] == pytest.approx(scores["all"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "photos/test/bee/0.png" in page
    assert page.count("data:image/jpeg;base64") > 9
    assert "--set classifier.max_steps=4" in page

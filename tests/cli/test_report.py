"""protail report: a file that opens anywhere, from a model or a run, with and without data."""

import json
import re
import shutil
import sys
import webbrowser

import numpy as np
import pytest

from protail import Network, PrototypeClassifier
from protail.data.augment import InputSpec
from protail.models.backbones import make_backbone
from reference.rows import BIRDS

pytest.importorskip("plotly")
pytest.importorskip("jinja2")


def said(page, name):
    """Give what the page says of a fact."""
    return re.search(rf"<dt>{re.escape(name)}</dt><dd>(.*?)</dd>", page)[1]


def test_a_model_on_labelled_rows(protail, model, tmp_path):
    ended = protail(
        *("report", "model", "test.npz", "--train", "birds.npz", "--csv", "tables", "--json")
    )
    assert ended.code == 0, ended.err
    assert ended.json["report"] == "report.html"
    assert "tables/classes.csv" in ended.json["tables"]
    evaluated = protail("evaluate", "model", "test.npz", "--json").json
    assert ended.json["evaluation"]["all"] == pytest.approx(evaluated["all"])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>Report of model</h1>" in page
    assert said(page, "Model") == "model"
    assert "protail report model test.npz --train birds.npz -o report.html" in page
    lines = (tmp_path / "tables/classes.csv").read_text().splitlines()
    assert {line.split(",")[0] for line in lines[1:]} == set(BIRDS)


def test_a_model_alone_and_what_is_already_there(protail, model, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    ended = protail("report", "model", "-o", "new/page.html", "--title", "Birds", "--open")
    assert ended.code == 0, ended.err
    assert shown == [(tmp_path / "new/page.html").as_uri()]
    assert "<h1>Birds</h1>" in (tmp_path / "new/page.html").read_text(encoding="utf-8")
    again = protail("report", "model", "-o", "new/page.html")
    assert (again.code, "--overwrite" in again.last_line) == (3, True)
    assert protail("report", "model", "-o", "new/page.html", "--overwrite").code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    beside = ["report", "model", "-o", "other.html", "--csv", "mine"]
    assert protail(*beside).code == 3
    assert protail(*beside, "--overwrite").code == 0
    assert {"notes.txt", "norms.csv"} <= {file.name for file in (tmp_path / "mine").iterdir()}


def test_what_is_missing_is_said_before_the_work(protail, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr("protail.cli.sources.Model.load", None)
    assert "a report needs jinja2, which is not" in protail("report", "model", "test.npz").last_line


def test_a_run_on_features_with_and_without_its_data(protail, tmp_path):
    words = ["train", "pc", "--dataset", "cifar100-lt-features", "--set", "classifier.epochs=0"]
    assert protail(*words, "-o", "run", "--device", "cpu").code == 0
    ended = protail("report", "run", "-o", "scores.html", "--json")
    assert ended.code == 0, ended.err
    page = (tmp_path / "scores.html").read_text(encoding="utf-8")
    assert "Only the scores that the run has kept are shown." in page
    again = "protail train pc --dataset cifar100-lt-features --seed 0 --set classifier.epochs=0"
    assert f"{again} -o run" in page
    kept = json.loads((tmp_path / "run/evaluation.json").read_text())["evaluation"]
    assert ended.json["evaluation"]["few"] == kept["classifier"]["plain"]["few"]
    refused = protail("report", "run", "--title", "x")
    assert "--title cannot be used here: run is a run" in refused.last_line


@pytest.fixture
def photos(tmp_path):
    """A network that takes photos, and a folder of them with one that cannot be read."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, n in (("train", 5), ("test", 3)):
        for code, name in enumerate(("ant", "bee", "<b>cat")):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(n):
                pixels = rng.integers(0, 60, (24, 30, 3), dtype=np.uint8)
                pixels[:, :, code] += 180
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number}.png")
    (tmp_path / "test/ant/broken.jpg").write_bytes(b"no picture")
    files = sorted((tmp_path / "train").rglob("*.png"))
    backbone = make_backbone("resnet32")
    bare = Network("", ["?"], backbone=backbone, inputs=InputSpec(size=16))
    head = PrototypeClassifier(random_state=0)
    head.fit(bare.features(files), [file.parent.name for file in files])
    Network(head, backbone=backbone, inputs=InputSpec(size=16)).save(tmp_path / "network")
    return tmp_path


def test_a_network_on_photos(protail, photos):
    ended = protail("report", "network", "test", "--train", "train", "--device", "cpu")
    assert ended.code == 0, ended.err
    assert "1 photo cannot be read" in ended.err
    page = (photos / "report.html").read_text(encoding="utf-8")
    assert "1 photo cannot be read and left out." in page
    assert page.count("data:image/jpeg;base64") > 20
    assert "&lt;b&gt;cat" in page
    assert said(page, "Backbone") == "resnet32"
    (photos / "network.features").mkdir()  # as a fit leaves it: used, and filled
    again = ["report", "network", "test", "--device", "cpu", "--overwrite"]
    assert "Features of 10 photos: " in protail(*again).err
    assert "Features of 10 photos (9 known): " in protail(*again).err
    assert "test/ant/broken.jpg" not in page
    shutil.rmtree(photos / "test")
    assert "there is no such file" in protail("report", "network", "test").last_line

"""``protail export``: one file that answers as the model does, or none."""

import errno
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from protail import Network, PrototypeClassifier
from protail.cli.export import Sample, write_onnx
from protail.data.augment import InputSpec
from protail.models.heads import make_head

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
BIRDS = Path(os.environ.get("PROTAIL_SHARED", "nowhere")) / "data/photos/birds-lt.zip"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A hundred photos: real birds where they are at hand, else noise."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    if BIRDS.exists():
        with zipfile.ZipFile(BIRDS) as archive:
            names = [name for name in archive.namelist() if name.endswith(".jpg")]
            archive.extractall(folder, names[:: len(names) // 100][:100])
        return folder
    rng = np.random.default_rng(0)
    for number in range(100):
        pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def network():
    torch.manual_seed(0)
    head = make_head("prototype", 3, 64, temperature="channel", normalize=3.0)
    torch.nn.init.normal_(head.prototypes)
    inputs = InputSpec(size=32, crop=0.875, interpolation="bicubic")
    return Network(head, ["ant", "bee", "<script>"], backbone="resnet32", inputs=inputs)


def test_photos_to_onnx_and_torch(protail, network, photos, tmp_path):
    network.save(tmp_path / "model")
    words = ["--onnx", "net.onnx", "--torch", "net.pt2", "--check", photos]
    ended = protail("export", "model", *words, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["compared"] == 100
    assert all(file["largest_difference"] <= 1e-4 for file in ended.json["files"])
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    kept = session.get_modelmeta().custom_metadata_map
    assert json.loads(kept["labels"]) == ["ant", "bee", "<script>"]
    expected = json.loads(kept["preprocessing"])
    assert expected == ended.json["preprocessing"]
    assert (expected["shape"], expected["resize"]["to"]) == (["batch", 32, 32, 3], 36)
    (file, *_) = photos.rglob("*.*g")
    given = session.run(None, {"pixels": network.pixels(file)})[0]  # a batch of one
    np.testing.assert_allclose(given, network.predict_proba(file), atol=1e-5)
    extra = {"protail.json": ""}
    program = torch.export.load(tmp_path / "net.pt2", extra_files=extra).module()
    assert json.loads(json.loads(extra["protail.json"])["labels"]) == ["ant", "bee", "<script>"]
    np.testing.assert_allclose(program(torch.from_numpy(network.pixels(file))), given, atol=1e-5)


def test_features_to_onnx(protail, model, tmp_path):
    ended = protail("export", "model", "--onnx", "rows.onnx", "--check", "test.npz")
    assert ended.code == 0, ended.err
    assert "rows.onnx: " in ended.err
    assert "the likeliest class never" in ended.err
    session = onnxruntime.InferenceSession(tmp_path / "rows.onnx")
    rows = np.load(tmp_path / "test.npz")["X"].astype(np.float32)
    given = session.run(["probabilities"], {"features": rows})[0]
    classifier = PrototypeClassifier.load(model)
    np.testing.assert_allclose(given, classifier.predict_proba(rows), atol=1e-4)
    labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
    np.testing.assert_array_equal(np.array(labels)[given.argmax(1)], classifier.predict(rows))


def test_a_table_with_other_columns_too(protail, tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 2))
    lines = [f"{n},{p},{q},{int(p > 0)}" for n, (p, q) in enumerate(rows)]
    (tmp_path / "table.csv").write_text("\n".join(["id,p,q,label", *lines]))
    assert protail("fit", "table.csv", "-o", "of table", "--exclude", "id").code == 0
    ended = protail("export", "of table", "--torch", "table.pt2", "--check", "table.csv")
    assert ended.code == 0, ended.err
    assert "on 40 inputs (table.csv)" in ended.err
    assert protail("fit", "table.csv", "-o", "mixed", "--prior", "estimate").code == 0
    ended = protail("export", "mixed", "--onnx", "mixed.onnx")
    assert "expected a fixed prior" in ended.last_line


def test_what_answers_otherwise_is_refused(network, tmp_path):
    network = Network(network.head, network.classes_)
    sample = Sample.of(network)
    network.temperature = 0.5
    run = write_onnx(network, sample, tmp_path / "net.onnx")
    with pytest.raises(ValueError, match=r"is not written: .* differ from the model's by up to 0"):
        sample.difference(run, tmp_path / "net.onnx")


class Sorted(torch.nn.Module):
    """A backbone whose shapes depend on what it sees, so that no graph of it can be made."""

    n_features = 64

    def forward(self, images):
        found = images.flatten(1)
        return found[:, : 64 if bool(found.sum() > 0) else 65][:, :64]


def test_what_cannot_be_exported(network):
    from protail.cli.export import _kept

    place = Path("never.onnx").absolute()
    other = Network(network.head, network.classes_, backbone=Sorted(), inputs=network.inputs)
    kept = _kept(other, Sample.of(other), place, write_onnx, False)
    with pytest.raises(ValueError, match="this model cannot be exported"), kept:
        pass
    assert not place.exists()


def test_a_full_disk(protail, model, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    ended = protail("export", "model", "--torch", "a.pt2")
    assert ended.code == 3
    assert "a.pt2 cannot be written: the disk is full. Free some space" in ended.last_line
    assert not list(tmp_path.glob("*.pt2*"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model"], "expected --onnx FILE, --torch FILE or both"),
        (["nowhere", "--onnx", "a.onnx"], "there is no such folder"),
        (["model", "--onnx", "model"], "already there"),
        (["model", "--onnx", "a", "--torch", "a"], "expected two files"),
        (["model", "--onnx", "a.onnx", "--check", "nothing.npz"], "there is no such file"),
        (["model", "--onnx", "a.onnx", "--check", "other.npz"], "rows of 3 numbers"),
        (["birds.npz", "--onnx", "a.onnx"], "is a file"),
    ],
)
def test_bad_input(protail, model, write, words, expected, tmp_path):
    write("other.npz", np.eye(3))
    ended = protail("export", *words)
    assert ended.code in (2, 3)
    assert expected in ended.last_line
    assert not (tmp_path / "a.onnx").exists()

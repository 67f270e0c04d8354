"""Networks: whatever was trained or fitted loads, answers, and is saved again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from protail import Network, PrototypeClassifier
from protail.cli import app
from protail.data.augment import InputSpec
from protail.data.images import load_dataset
from protail.experiments import Run, RunError
from protail.models import ModelFileError
from protail.models.backbones import make_backbone
from protail.models.heads import PrototypeHead, make_head
from reference.small_images import TINY

RECORDED = Path(__file__).parent / "recorded"
NAMES = np.array(["ant", "bee", "<script>"])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Class folders of plain colours with some noise, and what class each photo is of."""
    from PIL import Image

    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for part, n in (("train", 6), ("test", 3)):
        for code, name in enumerate(["ant", "bee", "cat"]):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(n):
                pixels = rng.integers(0, 60, (20, 24, 3), dtype=np.uint8)
                pixels[:, :, code] += 180
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    head = make_head("prototype", 3, 64, temperature="channel", normalize=3.0)
    inputs = InputSpec(size=16, crop=1.0)
    return Network(head, NAMES, backbone="resnet32", inputs=inputs, class_counts=[9, 3, 1])


def test_a_saved_classifier_is_a_network():
    rows = np.load(RECORDED / "model-0.1.0-answers.npz")["rows"]
    network = Network.load(RECORDED / "model-0.1.0")
    classifier = PrototypeClassifier.load(RECORDED / "model-0.1.0")
    np.testing.assert_array_equal(network.predict(rows), classifier.predict(rows))
    np.testing.assert_array_equal(network.predict_proba(rows), classifier.predict_proba(rows))
    np.testing.assert_array_equal(network.top_k(rows, 3)[0], classifier.top_k(rows, 3)[0])
    assert repr(network) == "Network(10 classes, feature rows of 64 numbers)"
    with pytest.raises(ValueError, match="no backbone"):
        network.features(rows)
    for photos in ("x.jpg", ["x.jpg", "y.jpg"], Path("x.jpg")):
        with pytest.raises(ValueError, match=r"'x\.jpg'.* no backbone; expected feature rows of"):
            network.predict(photos)


def test_a_run_that_names_a_backbone_has_one(tmp_path):
    run = Path(shutil.copytree(RECORDED / "run-0.1.0", tmp_path / "run"))
    known = json.loads((run / "run.json").read_text())
    known["resolved"]["recipe"]["representation"] = {}
    (run / "run.json").write_text(json.dumps(known))
    with pytest.raises(RunError, match="its weights have no backbone"):
        Network.from_run(run)


def test_a_run_of_0_1_0_on_features_is_a_network():
    network = Network.load(RECORDED / "run-0.1.0")
    data = load_dataset("cifar100-lt-features")
    right = network.predict(np.asarray(data.test.rows)) == data.test.labels
    scores = Run.open(RECORDED / "run-0.1.0").evaluation()["classifier"]["plain"]
    assert abs(right.mean() - scores["all"]) < 0.002
    np.testing.assert_array_equal(network.class_counts_, data.train.profile.counts)


def test_a_trained_run_classifies_photos(photos, tmp_path):
    run = tmp_path / "run"
    settings = [
        *(f"representation.backbone={TINY}", "representation.epochs=1", "classifier.epochs=1"),
        *('representation.augment=["resized-crop"]', 'classifier.augment=["resized-crop"]'),
        *("representation.batch_size=8", "classifier.max_steps=4"),
    ]
    words = ["train", "pc-la", "--dataset", photos, "-o", run, "--device", "cpu", "--from-scratch"]
    words += [word for setting in settings for word in ("--set", setting)]
    ended = CliRunner().invoke(app, [str(word) for word in words])
    assert ended.exit_code == 0, ended.output
    network = Network.load(run)
    files = sorted((photos / "test").rglob("*.png"))
    predicted = network.predict(files)
    assert set(predicted) <= {"ant", "bee", "cat"}
    scores = json.loads((run / "evaluation.json").read_text())["evaluation"]["classifier"]["plain"]
    truth = np.array([file.parent.name for file in files])
    assert (predicted == truth).mean() == pytest.approx(scores["all"])
    np.testing.assert_array_equal(network.predict(photos / "test"), predicted)
    network.save(tmp_path / "network")
    again = Network.load(tmp_path / "network")
    np.testing.assert_allclose(again.predict_proba(files), network.predict_proba(files), atol=1e-6)


def test_one_photo_in_every_form(network, photos):
    from PIL import Image

    file = photos / "test" / "ant" / "0.png"
    image = Image.open(file)
    pixels = np.asarray(image)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    expected = network.features(file)
    assert expected.shape == (1, 64)
    for form in (
        str(file),
        image,
        [image],
        pixels,
        pixels[None],
        tensor,
        [
            tensor,
        ][:1],
    ):
        np.testing.assert_array_equal(network.features(form), expected)
    labels, probabilities = network.top_k([file, file], 9)
    assert labels.shape == probabilities.shape == (2, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(labels[:, 0], network.predict([file, file]))


def test_a_batch_does_not_change_a_photo(network, photos):
    files = sorted((photos / "train").rglob("*.png")) * 4  # more than one batch
    together = network.predict_proba(files)
    np.testing.assert_allclose(together[-1:], network.predict_proba(files[-1:]), atol=1e-5)


@pytest.mark.parametrize("kind", ["head", "classifier"])
def test_there_and_back(network, photos, tmp_path, kind):
    files = sorted((photos / "train").rglob("*.png"))
    if kind == "classifier":
        classifier = PrototypeClassifier(random_state=0)
        classifier.fit(network.features(files), [file.parent.name for file in files])
        network = Network(classifier, backbone=network.backbone, inputs=network.inputs)
        assert (network.predict(files) == [file.parent.name for file in files]).mean() > 0.9
    network.temperature = 2.0
    network.save(tmp_path / "one" / "model")
    again = Network.load(tmp_path / "one" / "model", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(files), network.predict_proba(files))
    np.testing.assert_array_equal(again.classes_, network.classes_)
    np.testing.assert_array_equal(again.class_counts_, network.class_counts_)
    assert (again.inputs, again.temperature) == (network.inputs, 2.0)
    with pytest.raises(OSError, match="already there"):
        again.save(tmp_path / "one" / "model")
    again.save(tmp_path / "one" / "model", overwrite=True)


def test_damage_is_told(network, tmp_path):
    network.save(tmp_path / "model")
    rng = np.random.default_rng(0)
    for name in ("model.json", "weights.safetensors"):
        file = tmp_path / "model" / name
        raw = file.read_bytes()
        for place in rng.integers(0, len(raw), 20):
            changed = bytearray(raw)
            changed[place] ^= 4
            file.write_bytes(changed)
            with pytest.raises(ModelFileError, match=name):
                Network.load(tmp_path / "model")
        file.write_bytes(raw)
    Network.load(tmp_path / "model")


def test_bad_arguments(network, photos, tmp_path):
    with pytest.raises(ModelFileError, match="no such folder"):
        Network.load(tmp_path / "missing")
    with pytest.raises(ModelFileError, match=r"model\.json: is missing"):
        Network.load(photos)
    (tmp_path / "note.jpg").write_text("no picture")
    with pytest.raises(ValueError, match="cannot be read"):
        network.predict(tmp_path / "note.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no photo"):
        network.predict(tmp_path / "empty")
    with pytest.raises(ValueError, match="expected bytes"):
        network.predict(np.zeros((2, 8, 8, 3)))
    with pytest.raises(ValueError, match="k=0"):
        network.top_k(photos / "test", 0)
    rows = Network(PrototypeHead(3, 2), NAMES)
    assert rows.novelty_score(np.ones((4, 2))).shape == (4,)
    with pytest.raises(ValueError, match="LinearHead, which knows no distances"):
        Network(make_head("linear", 3, 2), NAMES).novelty_score(np.ones((4, 2)))
    with pytest.raises(ValueError, match="expected feature rows of 2 numbers"):
        rows.predict(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="not made by name"):
        rows.save(tmp_path / "model")
    with pytest.raises(ValueError, match="classes is None"):
        Network(PrototypeHead(3, 2))
    assert make_backbone("resnet32").made_by == ("resnet32", {})


def test_pandas_in_and_out(network, photos):
    pandas = pytest.importorskip("pandas")
    files = sorted((photos / "test").rglob("*.png"))
    table = pandas.DataFrame({"path": files}, index=[f"photo {n}" for n in range(len(files))])
    expected = network.predict_proba(files)
    for given in (table, table["path"]):
        labels, probabilities = network.predict(given), network.predict_proba(given)
        assert labels.index.equals(table.index)
        assert list(labels) == network.predict(files).tolist()
        assert probabilities.columns.tolist() == NAMES.tolist()
        assert probabilities.index.equals(table.index)
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    with pytest.raises(ValueError, match="a table of 2 columns; expected paths"):
        network.predict(table.assign(size=1))
    rows = pandas.DataFrame(np.eye(4), columns=list("abcd"), index=[7, 5, 3, 1])
    of_rows = Network(PrototypeClassifier().fit(rows, ["ant", "ant", "bee", "bee"]))
    assert of_rows.predict(rows).to_dict() == {7: "ant", 5: "ant", 3: "bee", 1: "bee"}
    head = Network(make_head("linear", 3, 4), NAMES)
    assert head.predict_proba(rows).index.tolist() == [7, 5, 3, 1]


def test_what_a_notebook_shows(network):
    network.about = "made by <b>hand</b>"
    shown = network._repr_html_()
    assert "Network of 3 classes" in shown
    assert "16 x 16 pixels" in shown
    assert "13 training examples, imbalance 9 (many 0, medium 0, few 3)" in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;hand" in shown


def test_a_network_on_the_hub(network, photos, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    sent = tmp_path / "hub"

    def upload_folder(api, *, folder_path, **options):
        shutil.copytree(folder_path, sent)
        return "https://huggingface.co/user/birds/commit/1"

    made = hub.RepoUrl("https://huggingface.co/user/birds")
    monkeypatch.setattr(hub.HfApi, "create_repo", lambda *words, **options: made)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    network.push_to_hub("user/birds", evaluation={"all": 0.75, "n_rows": 40})
    card = hub.ModelCard.load(sent / "README.md")
    assert card.data.library_name == "protail"
    for part in ("from_pretrained('user/birds')", "75.0 %", "On 40 test rows", "&#60;script&#62;"):
        assert part in card.text
    assert "<script>" not in card.text
    files = sorted((photos / "test").rglob("*.png"))
    again = Network.from_pretrained(sent)
    np.testing.assert_array_equal(again.predict_proba(files), network.predict_proba(files))

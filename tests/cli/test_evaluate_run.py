"""protail evaluate RUN: the scores of a finished run, again."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from protail.cli import app
from protail.data.images import cifar, save_subset
from protail.experiments import Run
from reference.image_data import write_cifar, write_class_folders, write_picture
from reference.small_images import TINY
from reference.tiny_data import tiny_data, write_tiny

NOTHING_LEARNED = [
    *("--set", f"representation.backbone={TINY}", "--set", "representation.epochs=0"),
    *("--set", "representation.precision=float32", "--set", "classifier.precision=float32"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with a draw and a run on it."""
    folder = write_tiny(tmp_path_factory.mktemp("tiny"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        arguments = ["train", "tiny.toml", "--dataset", "draw.zip", "-o", "run", "--device", "cpu"]
        changes = ["representation.epochs=2", f"representation.backbone={TINY}"]
        arguments += [word for change in changes for word in ("--set", change)]
        ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.stderr
    return folder


@pytest.fixture
def run(source, tmp_path):
    shutil.copytree(source / "run", tmp_path / "run")
    for name in ("draw.zip", "tiny.toml"):
        shutil.copy(source / name, tmp_path)
    return tmp_path / "run"


def refused(ended, *words):
    assert ended.code == 2, (ended.out, ended.err)
    assert ended.out == ""
    [line] = ended.err.strip().splitlines()
    assert line.startswith("protail evaluate: ")
    for word in words:
        assert word in line


def test_the_numbers_are_those_of_the_run(protail, run):
    ended = protail("evaluate", "run", "--dataset", "draw.zip", "--device", "cpu", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["run"] == "run"
    assert ended.json["evaluation"] == Run.open(run).evaluation()


def test_the_table(protail, run):
    ended = protail("evaluate", "run", "--dataset", "draw.zip", "--device", "cpu")
    recorded = Run.open(run).evaluation()
    cells = [line.split("|") for line in ended.out.splitlines() if line.startswith("|")]
    rows = {row[1].strip(): row[2].strip() for row in cells}
    for stage in ("representation", "classifier"):
        for mode, label in (("plain", stage), ("mirrored", f"{stage} (flip)")):
            assert rows[label] == f"{100 * recorded[stage][mode]['all']:.1f}"


@pytest.mark.parametrize(("option", "mode"), [("--flip", "mirrored"), ("--no-flip", "plain")])
def test_one_way_only(protail, run, option, mode):
    ended = protail("evaluate", "run", "--dataset", "draw.zip", "--device", "cpu", option, "--json")
    recorded = Run.open(run).evaluation()
    wanted = {
        stage: {key: scores[key] for key in (mode, "cost")} for stage, scores in recorded.items()
    }
    assert ended.json["evaluation"] == wanted


def test_a_stage_2_that_changed_its_backbone(protail, run):
    changes = {"representation.epochs": 1, "classifier.epochs": 2, "classifier.max_steps": 9}
    changes |= {"classifier.batch_norm": "published"}
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    data = ["--dataset", "draw.zip", "--device", "cpu"]
    assert protail("train", "tiny.toml", *data, "-o", "changed", *settings).code == 0
    weights = Run.open("changed").weights()
    own = {name for name in weights if name.startswith("classifier_backbone.")}
    assert len(own) == sum(name.startswith("backbone.") for name in weights)
    ended = protail("evaluate", "changed", *data, "--json")
    assert ended.json["evaluation"] == Run.open("changed").evaluation()


def test_a_run_that_is_not_finished(protail, run):
    (run / "evaluation.json").unlink()
    refused(protail("evaluate", "run"), "run: this run is not finished", "--resume")


def test_what_is_for_models_and_what_is_for_runs(protail, run, model):
    refused(protail("evaluate", "run", "test.npz"), "test.npz: it is no photo")
    refused(protail("evaluate", "run", "photos", "--flip"), "photos: there is no such file")
    refused(protail("evaluate", "run", "--features", "X"), "--features cannot be used here")
    refused(protail("evaluate", "model", "test.npz", "--flip"), "--flip", "is no run")
    refused(protail("evaluate", "model"), "FILES are missing")
    assert protail("evaluate", "model", "test.npz").code == 0


def test_other_data_is_refused(protail, run, tmp_path):
    refused(protail("evaluate", "run"), "'patterns' has no name that is known", "--dataset")
    save_subset(tiny_data(imbalance=20), tmp_path / "longer.zip")
    ended = protail("evaluate", "run", "--dataset", "longer.zip")
    refused(ended, "longer.zip", "imbalance")
    save_subset(tiny_data(test_per_class=5), tmp_path / "fewer.zip")
    ended = protail("evaluate", "run", "--dataset", "fewer.zip")
    refused(ended, "159 images to learn from and 50 to evaluate on", "--dataset")


def test_other_images_in_the_same_numbers_are_refused(protail, run, tmp_path):
    save_subset(tiny_data(seed=1), tmp_path / "other.zip")
    ended = protail("evaluate", "run", "--dataset", "other.zip")
    refused(ended, "others than those of the run (in train, test)", "--dataset")


def test_a_run_from_before_images_were_recorded(protail, run):
    document = json.loads((run / "run.json").read_text())
    del document["resolved"]["data"]["images"]
    (run / "run.json").write_text(json.dumps(document))
    ended = protail("evaluate", "run", "--dataset", "draw.zip", "--device", "cpu", "--json")
    assert ended.json["evaluation"] == Run.open(run).evaluation()


def test_damaged_weights(protail, run):
    weights = run / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    refused(protail("evaluate", "run", "--dataset", "draw.zip"), "weights.safetensors", "damaged")


def test_a_data_set_that_is_found_by_its_name(protail, tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.SOURCES, "cifar10-lt", write_cifar(tmp_path / "c", "cifar10-lt"))
    draw = ["--imbalance", "4", "--kind", "step", "--selection", "first"]
    trained = protail(
        *("train", "ncm", "--dataset", "cifar10-lt", "--data-root", "c", *draw, "--device", "cpu"),
        *NOTHING_LEARNED,
    )
    assert trained.code == 0, trained.err
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith("ncm-")
    assert run.name.endswith("-cifar10-lt-4-step-first-seed0")
    arguments = ["evaluate", run, "--data-root", "c", "--device", "cpu", "--json"]
    assert protail(*arguments).json["evaluation"] == Run.open(run).evaluation()


def test_images_that_a_draw_leaves_are_found_by_its_name(protail, tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.SOURCES, "cifar10-lt", write_cifar(tmp_path / "c", "cifar10-lt"))
    data = ["--dataset", "cifar10-lt", "--data-root", "c"]
    trained = protail(
        *("train", "ncm", *data, "--imbalance", 10, "--validation-from", 2, "-o", "run"),
        *("--device", "cpu", *NOTHING_LEARNED),
    )
    assert trained.code == 0, trained.err
    export = ["data", "export", "cifar10-lt", "--data-root", "c", "--imbalance", 2]
    assert protail(*export, "-o", "wide.zip").code == 0
    for where in (["--data-root", "c"], ["--dataset", "wide.zip"]):
        told = protail("evaluate", "run", *where, "--device", "cpu", "--json")
        assert told.code == 0, told.err
        assert told.json["evaluation"] == Run.open(tmp_path / "run").evaluation()


def test_a_run_on_a_draw_of_it_never_downloads(protail, tmp_path, monkeypatch):
    monkeypatch.setitem(cifar.SOURCES, "cifar10-lt", write_cifar(tmp_path / "c", "cifar10-lt"))
    monkeypatch.setattr(cifar, "_download", lambda *_: pytest.fail("it downloads"))
    export = ["data", "export", "cifar10-lt", "--imbalance", 4, "--data-root", "c"]
    assert protail(*export, "-o", "draw.zip").code == 0
    trained = protail(
        *("train", "ncm", "--dataset", "draw.zip", "-o", "run", "--device", "cpu"), *NOTHING_LEARNED
    )
    assert trained.code == 0, trained.err
    arguments = ["evaluate", "run", "--data-root", "elsewhere", "--device", "cpu"]
    refused(protail(*arguments), "run: cifar10-lt: ", "not found in", "--dataset PATH_OF_THE_DRAW")
    refused(protail(*arguments, "--dataset", "cifar10-lt"), "evaluate: cifar10-lt: ")
    told = protail(*arguments, "--dataset", "draw.zip", "--json")
    assert told.code == 0, told.err
    assert told.json["evaluation"] == Run.open("run").evaluation()


def test_small_photos_are_trained_on_in_memory(protail, tmp_path):
    write_class_folders(tmp_path / "photos", {"ant": 6, "bee": 3})
    train = ["train", "ncm", "--dataset", "photos", "--device", "cpu", "-o", "run"]
    train += [*NOTHING_LEARNED, "--json"]
    told = protail(*train)
    assert told.code == 0, told.err
    assert told.json["data"]["in_memory"] is True
    told = protail("evaluate", "run", "--dataset", "photos", "--device", "cpu", "--json")
    assert told.code == 0, told.err
    assert told.json["evaluation"] == Run.open(tmp_path / "run").evaluation()


def test_photos_some_of_which_cannot_be_read(protail, tmp_path):
    write_class_folders(tmp_path / "photos", {"ant": 6, "bee": 3})
    write_picture(tmp_path / "photos/ant/5.jpg", seed=5, size=(20, 9))
    arguments = ["train", "ncm", "--dataset", "photos", "--device", "cpu", "-o", "run"]
    arguments += NOTHING_LEARNED
    wrong = protail(*arguments)
    assert wrong.code == 2
    assert "representation.augment has crop, but the images in files" in wrong.last_line
    (tmp_path / "photos/bee/0.jpg").write_bytes(b"no picture")
    arguments += ["--set", 'representation.augment=["resized-crop", "flip"]']
    stopping = protail(*arguments)
    assert stopping.code == 2
    assert stopping.last_line.startswith("protail train: photos/bee/0.jpg: it cannot be read")
    shutil.rmtree(tmp_path / "run")
    skipping = protail(*arguments, "--on-bad-image", "skip")
    assert skipping.code == 0, skipping.err
    assert "1 image cannot be read and is left out" in skipping.err
    told = protail("evaluate", "run", "--dataset", "photos", "--device", "cpu", "--json")
    assert told.code == 0, told.err
    assert told.json["evaluation"] == Run.open(tmp_path / "run").evaluation()
    # Another photo comes: these are no longer the images that the run was evaluated on.
    write_picture(tmp_path / "photos/ant/new.jpg", seed=77)
    refused(protail("evaluate", "run", "--dataset", "photos"), "Check --dataset")


def test_a_run_of_a_newer_protail(protail, run):
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "format_version": 99}))
    refused(protail("evaluate", "run"), "newer protail")

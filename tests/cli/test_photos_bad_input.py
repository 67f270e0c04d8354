"""Photos that are not as they should be: one line says what is wrong, and nothing stays behind."""

import errno
import os
import shutil
import sys

import pytest
from typer.testing import CliRunner

from protail.cli import app
from protail.models.backbones import make_backbone, save_weights
from reference.made_photos import write_bomb, write_photos

SMALL = "resnet10t"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Photos, and weights of a small backbone: whatever it has learned, it is quick."""
    root = tmp_path_factory.mktemp("bad")
    write_photos(root / "photos", (4, 3, 1))
    write_photos(root / "one", (3,))
    (root / "empty").mkdir()
    (root / "flat").mkdir()
    shutil.copy(root / "one/ant/0.jpg", root / "flat")
    for name in ("ant", "bee"):
        (root / "broken" / name).mkdir(parents=True)
        (root / "broken" / name / "0.jpg").write_text("no picture")
    write_bomb(root / "broken/bee/1.png")
    (root / "half").mkdir()
    shutil.copytree(root / "one/ant", root / "half/ant")
    shutil.copytree(root / "broken/bee", root / "half/bee")
    shutil.copytree(root / "one/ant", root / "renamed/gnu")
    for number, file in enumerate(sorted((root / "renamed/gnu").iterdir())):
        with file.open("ab") as end:
            end.write(bytes([number]))
    (root / "unnamed.csv").write_text("path,label\nphotos/ant/0.jpg,\n")
    (root / "rows.csv").write_text("f0,f1,label\n1,2,a\n")
    save_weights(make_backbone(f"timm/{SMALL}").state_dict(), root / "weights.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        words = ["fit", "photos", "-o", "model", *BACKBONE, "--cache", "cache", "--held-out", "0"]
        ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    return root


BACKBONE = ["--backbone", SMALL, "--weights", "weights.safetensors"]
FIT = ["fit", "GIVEN", "-o", "new", *BACKBONE]
EMBED = ["embed", "GIVEN", "-o", "new.npz", *BACKBONE]


def everything(folder):
    """List all but features that are worth keeping: those of photos that could be read."""
    found = (each for each in folder.rglob("*") if ".features" not in str(each))
    return {str(each): each.stat().st_mtime_ns for each in found if each.is_file()}


@pytest.fixture
def typed(source, protail, monkeypatch):
    """Run a command where it can only fail: what was there before is there afterwards."""

    def run(command, given="", code=2):
        monkeypatch.chdir(source)
        before = everything(source)
        ended = protail(*(given if word == "GIVEN" else word for word in command))
        assert ended.code == code, ended.err
        assert everything(source) == before
        assert "Traceback" not in ended.err
        return ended.last_line

    return run


@pytest.mark.parametrize("command", [FIT, EMBED], ids=["fit", "embed"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lost", "lost: there is no such f"),
        ("empty", "empty: it holds no photo; expected a folder of photos for each class"),
        ("flat", "flat: it holds photos, but no folders of classes; expected a folder"),
        ("one/ant/0.jpg", "0.jpg: it is a file; expected a folder with a folder of photos"),
        ("unnamed.csv", "unnamed.csv, line 2: the path or the label is missing"),
        ("broken", "none of 3 photos can be read (broken/ant/0.jpg: it cannot be read"),
    ],
)
def test_no_photos_to_learn_from(command, given, said, typed):
    line = typed(command, given)
    assert line.startswith(f"protail {command[0]}: ")
    assert said in line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("one", "one: it holds photos of one class, 'ant'; expected two or more to tell apart"),
        ("half", "half: photos of one class can be read; expected two or more to tell apart"),
    ],
)
def test_one_class(given, said, typed):
    assert said in typed(FIT, given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--test", "empty"], "empty: it holds no photo"),
        (["--test", "lost"], "lost: there is no such f"),
        (["--test", "photos"], "photos: no photo is left to evaluate on"),
        (["--test", "renamed"], "renamed: no photo is of a class that is learned"),
        (["--columns", "a"], "--columns cannot be used here: photos holds photos"),
        (["--labels-file", "rows.csv"], "--labels-file cannot be used here"),
        (["--weights", "lost.pth"], "lost.pth: there is no such file; expected weights"),
        (["--weights", "rows.csv"], "rows.csv: it is damaged, or no checkpoint"),
        (["--backbone", "resnet10u"], "--backbone 'resnet10u' is unknown; the nearest names are"),
        (["--augment", "101"], "views=101; expected a whole number from 0 to 100 (--augment)"),
        (["-o", "photos"], "photos is already there"),
        (["--cache", "rows.csv"], "rows.csv is a file; expected a name for a folder"),
    ],
)
def test_options_that_do_not_fit(options, said, typed):
    code = 3 if "already there" in said or "is a file" in said else 2
    assert said in typed([*FIT, *options], "photos", code)


def test_photo_options_are_refused_for_features(typed):
    line = typed(["fit", "rows.csv", "-o", "new", "--backbone", SMALL])
    assert "--backbone cannot be used here: rows.csv holds features" in line


def test_without_weights_three_ways_are_named(typed, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    line = typed(["fit", "photos", "-o", "new", "--backbone", SMALL])
    for way in ("be online", "install a package", "--weights FILE"):
        assert way in line


@pytest.mark.parametrize(
    "words", [["fit", "photos", "-o", "new"], ["embed", "photos", "-o", "n.npz"]]
)
def test_without_timm_its_extra_is_named(words, typed, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "a pretrained backbone for photos needs timm, which is not installed" in typed(words)


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "model", "photos", "-o", "out.csv"],
        ["add-class", "model", "gnu", "one/ant", "-o", "new"],
        ["report", "model", "photos", "-o", "out.html"],
        ["export", "model", "--torch", "out.pt2"],
    ],
    ids=lambda command: command[0],
)
def test_no_permission_to_write_what_others_write(command, typed, monkeypatch):
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK and access(path, mode))
    assert "there is no permission to write here. Choose another" in typed(command, code=3)


@pytest.mark.parametrize("command", [FIT, EMBED], ids=["fit", "embed"])
def test_no_permission_to_write(command, typed, monkeypatch):
    access = os.access  # root may do everything: play somebody who may not
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK and access(path, mode))
    assert "there is no permission to write here. Choose another" in typed(command, "photos", 3)


@pytest.mark.parametrize("command", [FIT, EMBED], ids=["fit", "embed"])
def test_a_full_disk(command, typed, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "the disk is full. Free some space" in typed(command, "photos", 3)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["predict", "model", "lost", "-o", "out.csv"], "lost: there is no such file"),
        (["predict", "model", "empty", "-o", "out.csv"], "empty: it holds no photo"),
        (["predict", "model", "rows.csv", "-o", "out.csv"], "rows.csv: it is no photo"),
        (["predict", "model", "broken", "-o", "out.csv"], "none of 3 photos can be read (broken"),
        (["evaluate", "model", "renamed"], "no label in renamed is a class of model (first: gnu;"),
        (
            ["report", "model", "broken"],
            "none of 3 photos can be read (broken/ant/0.jpg: it cannot",
        ),
        (["evaluate", "model", "empty"], "empty: it holds no photo"),
        (["evaluate", "model", "broken"], "none of 3 photos can be read"),
        (["compare", "model", "model", "lost"], "lost: there is no such file"),
        (["add-class", "model", "gnu", "empty"], "empty: it holds no photo"),
        (["add-class", "model", "gnu", "broken/ant"], "none of 1 photo can be read"),
        (["add-class", "model", "ant", "one/ant"], "'ant' is a class of model already"),
        (
            ["fit", "photos", "-o", "new", "--method", "paper", "--reject", "0.1"],
            "--reject 0.1 needs",
        ),
    ],
)
def test_other_commands(command, said, typed):
    assert said in typed(command)


def test_unreadable_photos_are_listed_and_not_fatal(source, protail, monkeypatch, tmp_path):
    monkeypatch.chdir(source)
    ended = protail("predict", "model", "half", "-o", tmp_path / "out.csv", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["unreadable"] == ["half/bee/0.jpg", "half/bee/1.png"]
    assert ended.json["rows_without_prediction"] == 2


def test_a_failed_fit_says_what_it_has_kept(source, protail, monkeypatch, tmp_path):
    monkeypatch.chdir(source)
    words = ["fit", "half", "-o", tmp_path / "new", *BACKBONE]
    ended = protail(*words)
    assert f"The features are kept in {tmp_path / 'new.features'}, for the next try" in ended.err


def test_one_photo_of_a_class_is_enough(source, protail, monkeypatch, tmp_path):
    monkeypatch.chdir(source)
    words = ["fit", "photos", "-o", tmp_path / "new", *BACKBONE, "--cache", "cache"]
    ended = protail(*words)
    assert ended.code == 0, ended.err
    assert "classes of one photo, never evaluated: 1 (cat)" in ended.err


def test_a_stop_keeps_what_was_computed(source, protail, monkeypatch, tmp_path):
    monkeypatch.chdir(source)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("protail.estimator._classifier.choose", stopped)
    words = ["fit", "photos", "-o", tmp_path / "new", *BACKBONE, "--cache", tmp_path / "cache"]
    assert protail(*words).code == 130
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    monkeypatch.chdir(source)
    assert "Features of 8 photos (8 known)" in protail(*words).err

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import typer
from typer.testing import CliRunner

from protail._lock import FileLock
from protail._messages import install_command
from protail.cli.options import read_seconds
from protail.cli.search import search
from protail.data.images import save_subset
from protail.recipes import load_recipe
from reference.easy_images import easy_data
from reference.image_data import write_class_folders, write_picture
from reference.patience import halts_at, patiently, wait_for_halt

pytest.importorskip("optuna")

# A backbone that is not trained: stage 2 is what is searched.
SMALL = [
    *("--set", "representation.backbone=resnet32", "--set", "representation.epochs=0"),
    *("--set", "classifier.max_steps=5", "--set", "classifier.augment=['flip']"),
    *("--set", "classifier.precision=float32", "--device", "cpu"),
]
FILES = ["best.search.journal", "best.search.json", "best.search.png", "best.toml"]


def run(*arguments, recipe="pc-la"):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(search)
    app.callback()(lambda: None)
    given = ["search", recipe, "--dataset", "draw.zip", *SMALL, *map(str, arguments)]
    return CliRunner().invoke(app, given)


@pytest.fixture
def protail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def draw(tmp_path):
    save_subset(easy_data(size=8), tmp_path / "draw.zip")


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A folder with a search that has come to its end, and what it said."""
    place = tmp_path_factory.mktemp("searched")
    save_subset(easy_data(size=8), place / "draw.zip")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        over = ["--over", "classifier.tau=0:1", "--over", "classifier.normalize"]
        ended = run(*over, "--trials", 6)
    assert ended.exit_code == 0, ended.stderr
    return place, ended


@pytest.fixture
def found(searched, tmp_path):
    place, ended = searched
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    return ended


def test_leaves_a_recipe_all_trials_and_a_picture(found, tmp_path):
    assert [name for name in FILES if (tmp_path / name).is_file()] == FILES
    record = json.loads((tmp_path / "best.search.json").read_bytes())
    assert len(record["trials"]) == 6
    best = load_recipe(tmp_path / "best.toml")
    assert best.classifier.loss_options["tau"] == record["best"]["params"]["classifier.tau"]
    radius = record["best"]["params"]["classifier.normalize"]
    assert best.classifier.head_options["normalize"] == (None if radius == "none" else radius)
    assert best.representation.backbone == "resnet32"
    assert (tmp_path / "best.search.png").read_bytes()[1:4] == b"PNG"
    assert "best of 6 trials" in (tmp_path / "best.toml").read_text().splitlines()[0]


def test_says_what_it_does_and_shows_the_trials(found):
    assert "no test image is looked at" in found.stderr
    assert "the best so far" in found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 6
    scores = [float(line.split("|")[4]) for line in lines[2:]]
    assert scores == sorted(scores, reverse=True)


def test_the_same_command_goes_on(found, protail, tmp_path):
    again = ["--over", "classifier.tau=0:1", "--over", "classifier.normalize"]
    ended = protail(*again, "--trials", 8, "--json")
    assert ended.exit_code == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert len(result["trials"]) == 8
    on_disk = json.loads((tmp_path / "best.search.json").read_bytes())
    assert on_disk["trials"] == result["trials"]
    assert ended.stderr == ""


def test_another_search_does_not_take_its_place(found, protail, tmp_path):
    before = (tmp_path / "best.toml").read_bytes()
    other = protail("--over", "classifier.tau=0:2")
    assert other.exit_code == 3
    assert "best.toml is already there" in other.stderr
    assert (tmp_path / "best.toml").read_bytes() == before


def test_another_search_replaces_it_where_it_may(found, protail, tmp_path):
    other = ["--over", "classifier.tau=0:2", "--overwrite"]
    for trials in (1, 2):  # the second time the journal is its own, and is kept
        ended = protail(*other, "--trials", trials, "--json")
        assert ended.exit_code == 0, ended.stderr
        numbers = [trial["number"] for trial in json.loads(ended.stdout)["trials"]]
        assert numbers == list(range(trials))
    assert json.loads((tmp_path / "best.search.json").read_bytes())["trials"][0]["number"] == 0


def test_nothing_but_a_journal_is_replaced(protail, draw, tmp_path):
    (tmp_path / "diary").write_text("dear diary\n")
    ended = protail("--over", "classifier.tau", "--overwrite", "--journal", "diary")
    assert ended.exit_code == 2
    assert "no journal of a search" in ended.stderr
    assert (tmp_path / "diary").read_text() == "dear diary\n"


def test_a_journal_that_is_worked_on_is_not_replaced(found, protail, tmp_path):
    lock = FileLock(tmp_path / "best.search.journal.files/workers/somebody")
    ended = protail("--over", "classifier.tau=0:2", "--overwrite")
    lock.release()
    assert ended.exit_code == 3
    assert "another search is working on it" in ended.stderr


@pytest.mark.parametrize("place", ["files", "draw.zip"])
def test_steps_are_captured_on_a_gpu(protail, draw, tmp_path, monkeypatch, place):
    pytest.importorskip("PIL")
    write_class_folders(tmp_path / "files", {"ant": 4, "bee": 3})
    write_picture(tmp_path / "files/ant/3.jpg", size=(20, 9))
    chosen = {}

    def no_search(*_, options, **__):
        chosen["driver"] = options.driver
        raise ValueError("that was all")

    monkeypatch.setattr("protail.experiments.run_search", no_search)
    monkeypatch.setattr("protail.experiments.pipeline.find_device", lambda _: torch.device("cuda"))
    ended = protail("--over", "classifier.tau", "--dataset", place)
    assert "that was all" in ended.stderr
    assert chosen == {"driver": "captured"}


def test_the_split_of_a_folder_can_be_chosen(protail, tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "protail.experiments.data_sets.load_dataset", lambda *_, **given: asked.update(given)
    )
    protail("--over", "classifier.tau", "--data-seed", 3, "--test-fraction", 0.4)
    assert (asked["seed"], asked["test_share"]) == (3, 0.4)


def test_help_promises_no_features(protail):
    assert "features" not in protail("--help").stdout


def test_without_matplotlib_there_is_no_picture_and_a_note(protail, draw, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ended = protail("--over", "classifier.tau", "--trials", 1)
    assert ended.exit_code == 0
    assert "Note: a picture needs matplotlib" in ended.stderr
    assert install_command("report") in ended.stderr
    assert (tmp_path / "best.toml").is_file()
    assert not (tmp_path / "best.search.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--over is missing"),
        (["--over", "classifier.taus"], "Did you mean 'tau'"),
        (["--over", "classifier.tau=1"], "LOW:HIGH"),
        (["--over", "classifier.tau", "--budget", "soon"], "9m"),
        (["--over", "classifier.tau", "--budget", "0s"], "9m"),
        (["--over", "classifier.tau", "--score", "fewer"], "Did you mean 'few'"),
        (["--over", "classifier.tau", "--held-out", "1"], "--held-out 1.0;"),
        (["--over", "classifier.tau", "--pruner", "mean"], "--pruner mean is unknown"),
        (["--over", "classifier.tau", "--trials", "0"], "--trials 0;"),
        (["--over", "classifier.tau", "--device", "abacus"], "--device abacus is no device"),
        (["--over", "classifier.tau", "--set", "classifier.tau"], "expected KEY=VALUE"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(protail, draw, tmp_path, arguments, words):
    ended = protail(*arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("protail search: ")
    assert [entry.name for entry in tmp_path.iterdir()] == ["draw.zip"]


def test_the_recipe_must_be_called_toml(protail, draw):
    ended = protail("--over", "classifier.tau", "-o", "best.json")
    assert ended.exit_code == 3
    assert "should end in .toml" in ended.stderr


def test_optuna_missing_is_told(protail, draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    ended = protail("--over", "classifier.tau")
    assert ended.exit_code == 2
    assert install_command("train") in ended.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("9m", 540), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_durations(text, seconds):
    assert read_seconds(text) == seconds


def test_help_fits_a_screen(protail):
    lines = protail("--help").stdout.rstrip().splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80


@pytest.mark.skipif(os.name == "nt", reason="needs kill -9")
def test_of_three_searches_one_is_killed_and_no_trial_is_lost_or_counted_twice(
    protail, draw, tmp_path
):
    """One is killed in its first trial, while another works; this process finishes the search."""
    options = ["--set", "representation.epochs=2", "--journal", "shared.journal"]
    options += ["--over", "classifier.tau", "--over", "representation.lr", "--trials", "5"]
    given = ["pc-la", "--dataset", "draw.zip", *SMALL, *options]
    code = "import sys, typer; from protail.cli.search import search; typer.run(search)"
    command = [sys.executable, "-c", code, *given]
    halting = halts_at(tmp_path, "protail.training.loop.PlainDriver.advance", 3)
    victim = subprocess.Popen([*command, "-o", "killed.toml"], cwd=tmp_path, env=halting)
    wait_for_halt(victim)
    other = subprocess.Popen([*command, "-o", "other.toml"], cwd=tmp_path)
    journal = tmp_path / "shared.journal"
    lines = journal.read_bytes().count(b"\n")
    patiently(lambda: journal.read_bytes().count(b"\n") > lines)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    ended = protail(*options, "--json")
    assert ended.exit_code == 0, ended.stderr
    assert other.wait() == 0
    again = protail(*options, "--json")  # nothing is left to do
    first, *rest = json.loads(again.stdout)["trials"]
    assert first["state"] == "lost"
    assert [trial["state"] for trial in rest] == ["done"] * 5
    assert [trial["params"] for trial in rest].count(first["params"]) == 1
    assert len({trial["params"]["classifier.tau"] for trial in rest}) == 5
    assert not (tmp_path / "killed.toml").exists()
    assert (tmp_path / "other.toml").exists()


def test_a_database_that_is_none_of_ours_is_told(protail, draw):
    ended = protail("--over", "classifier.tau", "--journal", "sqlite:///trials.db")
    assert ended.exit_code == 2
    assert "postgresql://name:password@host/database" in ended.stderr
    ended = protail("--over", "classifier.tau", "--journal", "postgresql://u:secret@h:x/trials")
    assert "--journal is no address of a database" in ended.stderr
    assert "secret" not in ended.stderr

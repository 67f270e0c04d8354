"""protail train: what it says, what it keeps, and what it does when it is stopped."""

import io
import json
import re
import shutil
import signal

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from protail.cli import app, progress
from protail.cli.command import Voice
from protail.data.images import save_subset
from protail.evaluation import Evaluation
from protail.experiments import Job, Progress, Run
from protail.recipes import load_recipe, recipe_hash
from reference.image_data import write_class_folders
from reference.patience import PATIENCE, halts_at, wait_for_halt
from reference.small_images import TINY
from reference.tiny_data import tiny_data, write_tiny

TRAIN = ["train", "tiny.toml", "--dataset", "draw.zip", "--device", "cpu"]
NOTHING_LEARNED = [
    *("--set", "representation.epochs=0", "--set", "classifier.epochs=0"),
    *("--set", f"representation.backbone={TINY}"),
]
FILES = {
    *("run.json", "metrics.jsonl", "checkpoint.safetensors", "weights.safetensors"),
    *("evaluation.json", "lock"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with the data, the recipe, and a run of it that nobody stopped."""
    folder = write_tiny(tmp_path_factory.mktemp("tiny"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = CliRunner().invoke(app, [*TRAIN, "-o", "whole"])
    assert ended.exit_code == 0, ended.stderr
    (folder / "out.txt").write_text(ended.stdout)
    (folder / "err.txt").write_text(ended.stderr)
    return folder


@pytest.fixture(autouse=True)
def folder(source, tmp_path):
    """The data and the recipe where commands run."""
    for name in ("draw.zip", "tiny.toml"):
        shutil.copy(source / name, tmp_path)
    return tmp_path


def same_results(run, other):
    assert (run / "weights.safetensors").read_bytes() == (
        (other / "weights.safetensors").read_bytes()
    )
    assert Run.open(run).evaluation() == Run.open(other).evaluation()


def refused(ended, *words, code=2):
    assert ended.code == code, (ended.out, ended.err)
    assert ended.out == ""
    assert ended.last_line.startswith("protail train: ")
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.last_line


def test_it_says_what_it_does_and_learns(source):
    err, out = (source / "err.txt").read_text(), (source / "out.txt").read_text()
    for words in (
        "tiny: Patterns in seconds",
        "representation: resnet32 from scratch, linear",
        "classifier: prototype",
        "159 images to learn from, 80 to evaluate on, 10 classes (many 0, medium 3, few 7)",
        "On cpu, driver plain: seed 0, 30 steps, then 7 of the classifier",
        "seed 0: epoch 1/3, loss ",
        "seed 0: epoch 3/3, loss ",
        "Run: whole",
    ):
        assert words in err
    stages = ["representation", "representation (flip)", "classifier", "classifier (flip)"]
    rows = ["in %", *stages]
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in table if line[3:4].isalpha()] == rows
    assert "An image costs 0.0344 GFLOPs." in out
    assert {file.name for file in (source / "whole").iterdir()} >= FILES
    scores = Run.open(source / "whole").evaluation()
    assert scores["classifier"]["plain"]["all"] > 0.5  # chance is 0.1
    losses = [record["loss"] for record in Run.open(source / "whole").metrics()]
    assert losses[-1] < losses[0]


def test_a_shipped_recipe_with_changes_as_json(protail, folder):
    changes = {"representation.backbone": "resnet32", "classifier.tau": "0.5"}
    changes |= {"representation.epochs": "0", "classifier.epochs": "0"}
    arguments = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    ended = protail("train", "pc-la", "--dataset", "draw.zip", *arguments, "--json")
    assert ended.code == 0, ended.err
    assert ended.err == ""
    [run] = ended.json["runs"]
    assert run["run"] == f"runs/pc-la-{ended.json['hash'][:6]}-patterns-10-first-seed0"
    there = Run.open(folder / run["run"])
    assert there.evaluation() == run["evaluation"]
    assert there.resolved["recipe"]["classifier"]["loss_options"] == {"tau": 0.5}
    assert ended.json["hash"] == recipe_hash(
        load_recipe("pc-la").with_overrides(changes).resolved()
    )
    assert ended.json["summary"] is None


def test_held_out_images_stand_in_for_the_test_images(protail, folder):
    given = ["train", "tiny.toml", "--dataset", "draw.zip", *NOTHING_LEARNED]
    given += ["--held-out", 0.25, "--held-out-seed", 3]
    ended = protail(*given, "--json")
    assert ended.code == 0, ended.err
    [run] = ended.json["runs"]
    assert run["run"].endswith("-patterns-10-first-held-out-seed0")
    assert ended.json["data"]["held_out"] == 0.25
    evaluated = Evaluation.from_dict(run["evaluation"]["classifier"]["plain"])
    assert evaluated.n_rows == 41  # of 159 training images; the 80 test images are not looked at
    again = protail("evaluate", run["run"], "--dataset", "draw.zip", "--json")
    assert again.json["evaluation"] == run["evaluation"]
    refused(protail("train", "tiny.toml", "--dataset", "draw.zip", "--held-out", 1.5), "1.5")


def test_images_of_a_wider_draw_stand_in_for_the_test_images(protail, folder):
    save_subset(tiny_data(imbalance=2), folder / "wide.zip")
    wide = ["--dataset", "wide.zip"]
    given = ["train", "tiny.toml", *wide, *NOTHING_LEARNED, "--imbalance", 10]
    ended = protail(*given, "--validation-from", 2, "--json")
    assert ended.code == 0, ended.err
    [run] = ended.json["runs"]
    assert run["run"].endswith("-patterns-10-first-aside-seed0")
    assert ended.json["data"]["aside_from"] == 2
    assert "held_out" not in ended.json["data"]
    evaluated = Evaluation.from_dict(run["evaluation"]["classifier"]["plain"])
    # The rarest class has 4 images at imbalance 10 and 20 at 2.
    assert evaluated.class_rows.tolist() == [16] * 10
    assert evaluated.counts.tolist() == tiny_data().train.profile.counts.tolist()
    again = protail("evaluate", run["run"], *wide, "--json")
    assert again.code == 0, again.err
    assert again.json["evaluation"] == run["evaluation"]
    # Others of as many images are noticed, and a draw that does not have them.
    save_subset(tiny_data(imbalance=2, seed=5), folder / "other.zip")
    other = protail("evaluate", run["run"], "--dataset", "other.zip")
    assert "others than those of the run" in other.last_line
    narrow = protail("evaluate", run["run"], "--dataset", "draw.zip")
    assert "too few images for imbalance 2" in narrow.last_line
    resumed = protail(*given, "--validation-from", 2, "--resume")
    assert "Nothing is left to do" in resumed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--validation-from", 2, "--held-out", 0.2],
            "--held-out 0.2 and --validation-from",
        ),
        (["--validation-from", 0.5], "--validation-from 0.5; expected a ratio of at least 1"),
        (["--validation-from", 10], "no more images at imbalance 10 than at 10"),
        (["--validation-from", 20], "no more images at imbalance 20 than at 10"),
        (["--validation-from", 2], "too few images for imbalance 2"),
        (
            ["--validation-from", 2, "--dataset", "photos"],
            "was not cut to a long tail",
        ),
        (
            ["--validation-from", 2, "--dataset", "cifar100-lt-features"],
            "expected images",
        ),
    ],
)
def test_no_wider_draw_to_judge_on(words, said, protail, folder):
    write_class_folders(folder / "photos", {"ant": 4, "bee": 3})
    refused(protail(*TRAIN, *words), said)
    assert not (folder / "runs").exists()


def test_seeds_at_once_are_each_seed_alone(protail, source, folder):
    ended = protail(*TRAIN, "--seed", 0, "--seed", 1, "-o", "both", "--json")
    assert ended.code == 0, ended.err
    assert protail(*TRAIN, "--seed", 1, "-o", "alone").code == 0
    same_results(folder / "both/seed0", source / "whole")
    same_results(folder / "both/seed1", folder / "alone")
    fractions = [run["evaluation"]["classifier"]["plain"]["all"] for run in ended.json["runs"]]
    assert fractions[0] != fractions[1]
    told = ended.json["summary"]["classifier"]["all"]
    assert told == pytest.approx({"mean": np.mean(fractions), "std": np.std(fractions, ddof=1)})

    # One of them was stopped at the very end: only that one has something left to do.
    (folder / "both/seed1/evaluation.json").unlink()
    (folder / "both/seed1/weights.safetensors").unlink()
    before = (folder / "both/seed0/evaluation.json").stat().st_mtime_ns
    again = protail(*TRAIN, "--seed", 0, "--seed", 1, "-o", "both", "--resume")
    assert again.code == 0, again.err
    assert (folder / "both/seed0/evaluation.json").stat().st_mtime_ns == before
    same_results(folder / "both/seed1", folder / "alone")
    assert "seed 1, 30 steps" in again.err
    assert "mean ± standard deviation of 2 runs" in again.out
    assert again.err.count("Run: both/seed") == 2


@pytest.fixture
def halted(process, folder):
    """Start a training and halt it in its last epoch, with a checkpoint of an earlier one."""
    environment = halts_at(folder, "protail.training.loop.PlainDriver.advance", 25)
    running = process(*TRAIN, "-o", "run", "--checkpoint-every", 0, env=environment)
    wait_for_halt(running)  # at step 25 of 30
    yield running
    running.kill()
    running.communicate()


def test_killed_and_resumed_is_the_run_that_was_not_killed(
    halted, process, protail, source, folder
):
    refused(
        protail(*TRAIN, "-o", "run", "--resume"),
        f"run: this run is being written by process {halted.pid}",
    )
    halted.kill()
    halted.communicate()
    checkpoint = folder / "run/checkpoint.safetensors"
    assert checkpoint.is_file()
    assert not Run.open(folder / "run").finished
    refused(protail(*TRAIN, "-o", "run"), "not finished", "--resume", "--overwrite")

    before = checkpoint.read_bytes()
    running = process(*TRAIN, "-o", "run", "--resume", preexec_fn=full_disk)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 3, err
    assert err.strip().splitlines()[-1].startswith("protail train: run/checkpoint.safetensors")
    assert "Traceback" not in err
    assert checkpoint.read_bytes() == before

    other = protail(*TRAIN, "-o", "run", "--resume", "--set", "classifier.lr=2")
    refused(other, "recipe.classifier.lr (1.0 there, 2.0 now)")
    ended = protail(*TRAIN, "-o", "run", "--resume")
    assert ended.code == 0, ended.err
    assert "epoch 1/3" not in ended.err
    same_results(folder / "run", source / "whole")
    assert Run.open(folder / "run").metrics() == Run.open(source / "whole").metrics()


def full_disk():
    """A limit on the size of files stands for the full disk: the system refuses to write."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_a_run_that_is_there(protail, folder):
    assert protail(*TRAIN, *NOTHING_LEARNED).code == 0
    [run] = (folder / "runs").iterdir()
    before = (run / "run.json").read_bytes()
    refused(protail(*TRAIN, *NOTHING_LEARNED), "this run is finished", "--overwrite")
    for resume in ([], ["--resume"]):
        ended = protail(*TRAIN, "-o", run.relative_to(folder), *resume)
        refused(ended, "another one", "representation.epochs (0 there, 3 now)")
    resumed = protail(*TRAIN, *NOTHING_LEARNED, "--resume")
    assert resumed.code == 0
    assert "Nothing is left to do" in resumed.err
    assert (run / "run.json").read_bytes() == before
    refused(protail(*TRAIN, "--resume", "--overwrite"), "resume and overwrite")
    assert protail(*TRAIN, *NOTHING_LEARNED, "--overwrite").code == 0
    (folder / "mine").mkdir()
    (folder / "mine/letter.txt").write_text("dear")
    refused(protail(*TRAIN, "-o", "mine", "--overwrite"), "something else than a run")
    # None is begun where one of several is refused.
    seeds = ["--seed", 0, "--seed", 7]
    refused(protail(*TRAIN, *NOTHING_LEARNED, *seeds), "seed0: this run is finished")
    assert list((folder / "runs").iterdir()) == [run]


def test_other_settings_are_other_runs(protail, folder):
    changes = [[], ["--set", "classifier.lr=2"], ["--set", "classifier.lr=3"]]
    for change in changes:
        assert protail(*TRAIN, *NOTHING_LEARNED, *change).code == 0
    assert len(list((folder / "runs").iterdir())) == len(changes)
    (folder / "nothing.toml").write_text(
        (folder / "tiny.toml").read_text().replace("epochs = 3", "epochs = 0")
    )
    arguments = ["train", "nothing.toml", "--dataset", "draw.zip", "--device", "cpu", "--json"]
    ended = protail(*arguments, "--set", "representation.epochs=0")  # as it is already
    assert ended.json["runs"][0]["run"] == "runs/nothing-patterns-10-first-seed0"


def test_several_seeds_are_not_put_into_a_run(protail, folder):
    assert protail(*TRAIN, *NOTHING_LEARNED, "-o", "run").code == 0
    before = {file.name for file in (folder / "run").iterdir()}
    seeds = ["--seed", 1, "--seed", 2]
    for how in ([], ["--resume"], ["--overwrite"]):
        refused(protail(*TRAIN, *NOTHING_LEARNED, *seeds, "-o", "run", *how), "this is a run")
    assert {file.name for file in (folder / "run").iterdir()} == before


def test_what_lies_beside_a_run_is_not_overwritten(protail, folder):
    assert protail(*TRAIN, *NOTHING_LEARNED, "-o", "run").code == 0
    (folder / "run/notes.txt").write_text("mine")
    ended = protail(*TRAIN, *NOTHING_LEARNED, "-o", "run", "--overwrite")
    refused(ended, "run: beside a run", "notes.txt")
    assert ended.err.count("\n") == 1
    assert (folder / "run/notes.txt").read_text() == "mine"
    assert Run.open(folder / "run").finished


def test_a_run_does_not_go_on_with_other_images(protail, folder):
    assert protail(*TRAIN, *NOTHING_LEARNED, "-o", "run").code == 0
    (folder / "run/evaluation.json").unlink()
    (folder / "draw.zip").unlink()
    save_subset(tiny_data(seed=1), folder / "draw.zip")
    refused(protail(*TRAIN, *NOTHING_LEARNED, "-o", "run", "--resume"), "data.images.train")


@pytest.mark.parametrize("content", [b"no picture", None])
def test_a_broken_test_image_is_found_before_anything_is_learned(protail, folder, content):
    for part, seed in (("train", 0), ("test", 1)):
        write_class_folders(folder / "photos" / part, {"ant": 4, "bee": 3}, seed=seed)
    broken = folder / "photos/test/bee/1.jpg"
    broken.write_bytes(content or broken.read_bytes()[:-200])  # its head is whole then
    augment = ["--set", 'representation.augment=["resized-crop", "flip"]']
    arguments = ["train", "ce", "--dataset", "photos", "--device", "cpu", "-o", "run", *augment]
    arguments.append("--from-scratch")
    ended = protail(*arguments, "--set", "representation.backbone=resnet32")
    refused(ended, "1 of 7 images to evaluate on", "photos/test/bee/1.jpg", "protail data prepare")
    assert "new run with --on-bad-image skip" in ended.last_line
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "pcc", "--dataset", "draw.zip"], "Did you mean 'pc'"),
        (["train", "lost.toml", "--dataset", "draw.zip"], "lost.toml: there is no such file"),
        (["train", "pc", "--dataset", "cifar100lt"], "Did you mean 'cifar100-lt'"),
        (["train", "pc", "--dataset", "own"], "name it in PROTAIL_PLUGINS"),
        (["train", "pc", "--dataset", "lost.zip"], "lost.zip: there is no such file"),
        ([*TRAIN, "--imbalance", "2"], "Ask for a higher imbalance"),
        ([*TRAIN, "--lists", "here"], "takes no option 'lists'"),
        ([*TRAIN, "--set", "classifier.taus=1"], "Did you mean 'tau'"),
        ([*TRAIN, "--set", "representation.epochs=many"], "expected a whole number"),
        ([*TRAIN, "--set", "classifier.tau"], "expected KEY=VALUE"),
        ([*TRAIN, "--set", "representation.backbone=resnet23"], "resnet23"),
        ([*TRAIN, "--set", 'classifier.augment=["jitter"]'], "classifier.augment has jitter"),
        ([*TRAIN, "--seed", "3", "--seed", "3"], "--seed 3 is given twice"),
        ([*TRAIN, "--checkpoint-every", "nan"], "nan seconds between checkpoints"),
        ([*TRAIN, "--checkpoint-every", "-1"], "-1 seconds between checkpoints"),
        ([*TRAIN, "--data-root", "nodir"], "draw.zip holds the data itself"),
        ([*TRAIN, "--driver", "captive"], "Did you mean 'captured'"),
        ([*TRAIN, "--driver", "captured"], "expected a GPU"),
        ([*TRAIN[:-1], "abacus"], "--device abacus is no device"),
        ([*TRAIN, "--set", "representation.lr=1e30"], "the loss of epoch 0"),
    ],
)
def test_bad_input_is_one_line(protail, folder, arguments, words):
    ended = protail(*arguments)
    refused(ended, words)
    if "the loss" not in words:
        assert ended.err.count("\n") == 1
        assert {file.name for file in folder.iterdir()} == {"draw.zip", "tiny.toml"}


def test_a_recipe_without_a_representation(protail, folder):
    (folder / "late.toml").write_text('title = "late"\n[classifier]\nextends = "pc"\n')
    ended = protail("train", "late.toml", "--dataset", "draw.zip")
    refused(ended, "no representation stage", "wd/late")
    assert not (folder / "runs").exists()


def test_debug_shows_where_it_came_from(protail):
    ended = protail("train", "pcc", "--dataset", "draw.zip", "--debug")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert "pcc" in ended.last_line


def test_whoever_watches_sees_a_bar(protail, monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(Voice, "is_watched", property(lambda voice: True))
    monkeypatch.setattr(progress, "console", lambda **_: terminal)
    epochs = ["--set", "representation.epochs=2", "--set", "classifier.epochs=0"]
    ended = protail(*TRAIN, *epochs)
    assert ended.code == 0, ended.err
    assert "epoch 2/2" in screen.getvalue()
    assert "finishing" in screen.getvalue()
    assert "epoch" not in ended.err.replace("2 epochs", "")


def test_lines_come_at_every_tenth_and_know_the_time_left(monkeypatch, capsys, folder):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    recipe = load_recipe("wd").with_overrides({"representation.epochs": 40})
    job = Job(recipe, tiny_data(), 4, folder)
    with progress.training_progress(Voice(False), [job]) as watch:
        for epoch in range(21, 41):  # resumed half-way
            watch(Progress(job, epoch, 1.0, {"all": 0.5, "few": 0.25}))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert lines[0] == "seed 4: epoch 21/40, loss 1.000, all 50.0 few 25.0 %"
    assert lines[1].endswith("epoch 24/40, loss 1.000, all 50.0 few 25.0 %, 2 min 40 s left")
    assert lines[-1].endswith("finishing")


@pytest.mark.parametrize("recipe", ["wd", "dro-lt"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_leaves_room_for_the_time_left(width, recipe, monkeypatch, folder):
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(progress, "console", lambda **_: terminal)
    monkeypatch.setattr(Voice, "is_watched", property(lambda voice: True))
    job = Job(load_recipe(recipe), tiny_data(), 4, folder)
    scores = {"all": 0.5, "many": 0.6, "medium": 0.4, "few": 0.25}
    with progress.training_progress(Voice(False), [job]) as watch:
        for epoch in (100, 110, 120):
            watch(Progress(job, epoch, 1.0, scores))
    drawn = re.split(r"[\r\n]|\x1b\[\??\d*[A-Za-z]", screen.getvalue())
    [line] = {line.rstrip() for line in drawn if "epoch 120/" in line}
    assert line.startswith("seed 4 ━")
    assert line.endswith(" left")
    assert len(line) <= width
    assert ("few 25.0 %" in line) == (width == 120)


def test_of_several_phases_it_says_which(monkeypatch, capsys, folder):
    changes = {"pretraining.epochs": 6, "representation.epochs": 4}
    job = Job(load_recipe("dro-lt").with_overrides(changes), tiny_data(), 4, folder)
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", lambda **_: terminal)
    for watched in (False, True):
        monkeypatch.setattr(Voice, "is_watched", property(lambda voice, watched=watched: watched))
        with progress.training_progress(Voice(False), [job]) as watch:
            for epoch in range(1, 11):
                watch(Progress(job, epoch, 1.0))
    lines = capsys.readouterr().err.splitlines()
    assert lines[5].startswith("seed 4: epoch 6/10 (pretraining), loss 1.000")
    assert lines[6].startswith("seed 4: epoch 7/10 (representation), loss 1.000")
    assert "epoch 10/10 (representation), loss 1.000, finishing" in screen.getvalue()


def test_the_run_json_has_no_path_in_it(source):
    """What a run is of does not hang on where the data lies."""
    resolved = json.loads((source / "whole/run.json").read_text())["resolved"]
    assert resolved["data"]["name"] == "patterns"
    assert str(source) not in json.dumps(resolved)
    assert "zip" not in json.dumps(resolved)

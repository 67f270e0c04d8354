"""Run folders: killed, resumed, locked, refused; what was whole stays whole."""

import calendar
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import protail
from protail._files import OutputError
from protail._messages import install_command
from protail.experiments.checkpoint import (
    CheckpointError,
    restore_training_state,
    save_checkpoint,
    training_state,
)
from protail.experiments.run import Run, RunError, git_commit
from reference.patience import PATIENCE, patiently

RESOLVED = {
    "recipe": {"representation": {"lr": 0.1, "augment": ("crop", "flip")}},
    "data": {"name": "cifar100-lt", "imbalance": 100},
    "seed": 0,
}
WEIGHTS = {"weight": torch.arange(4.0)}
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "run"


@pytest.fixture
def no_tensorboard(monkeypatch):
    for name in ("tensorboard", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, name, None)


def in_child(function, *arguments):
    """Do it in another process; give what it returned, or (type, text) of what it raised."""
    here, there = FORK.Pipe()

    def target():
        try:
            there.send(function(*arguments))
        except BaseException as error:
            there.send((type(error), str(error)))

    child = FORK.Process(target=target)
    child.start()
    assert here.poll(PATIENCE), "the process died or hangs"
    answer = here.recv()
    child.join(PATIENCE)
    return answer


def unfinished(folder, steps=3):
    with Run.create(folder, RESOLVED) as run:
        for step in range(1, steps + 1):
            run.log(step, 0, loss=1 / step)
        run.checkpoint(WEIGHTS, {"step": steps - 1, "epoch": 0})
    return folder


def finished(folder):
    with Run.create(folder, RESOLVED) as run:
        run.log(1, 0, loss=0.5)
        run.checkpoint(WEIGHTS, {"step": 1})
        run.finish({"all": 50.0}, WEIGHTS)
    return folder


def everything(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_a_run_from_start_to_end(folder):
    with Run.create(folder, RESOLVED) as run:
        assert run.last_checkpoint() is None
        assert not run.finished
        run.log(1, 0, loss=0.5, correct=np.int64(3))
        run.log(2, 1, **{"few/accuracy": np.float32(0.25)})
        run.checkpoint(WEIGHTS, {"step": 2, "epoch": 1})
        assert run.last_checkpoint().record == {"step": 2, "epoch": 1}
        run.finish({"all": 50.0}, WEIGHTS)
        assert run.finished
    run = Run.open(folder)
    assert run.finished
    assert run.resolved == json.loads(json.dumps(RESOLVED))
    assert run.evaluation() == {"all": 50.0}
    assert torch.equal(run.weights()["weight"], WEIGHTS["weight"])
    expected = [
        {"step": 1, "epoch": 0, "loss": 0.5, "correct": 3},
        {"step": 2, "epoch": 1, "few/accuracy": 0.25},
    ]
    assert run.metrics() == Run.open(folder).metrics() == expected
    assert not list(folder.rglob("*.part"))


def test_what_run_json_says(folder):
    before = int(time.time())
    unfinished(folder)
    text = (folder / "run.json").read_text()
    document = json.loads(text)
    assert document["resolved"] == json.loads(json.dumps(RESOLVED))
    [session] = document["sessions"]
    assert session["protail"] == protail.__version__
    assert session["torch"] == torch.__version__
    assert session["python"] == ".".join(map(str, sys.version_info[:3]))
    assert session["cpu"]
    assert len(session["gpus"]) == torch.cuda.device_count()
    started = calendar.timegm(time.strptime(session["started"], "%Y-%m-%dT%H:%M:%SZ"))
    assert before <= started <= time.time()
    name = os.uname().nodename
    assert name not in text
    assert not any(name in path.name for path in folder.rglob("*"))


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_of_a_checkout(tmp_path, monkeypatch):
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert git_commit(package) is None  # no checkout
    git(tmp_path, "init")
    assert git_commit(package) is None  # installed inside someone's checkout, not part of it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert git_commit(package) == commit
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_commit(package) == commit
    (package / "__init__.py").write_text("changed")
    assert git_commit(package) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert git_commit(package) is None


def test_numbers_that_are_not_finite_come_back_from_strict_json(folder):
    with Run.create(folder, RESOLVED) as run:
        run.log(1, 0, a=math.inf, b=-math.inf, c=math.nan)

    def refuse(constant):
        raise AssertionError(constant)

    json.loads((folder / "metrics.jsonl").read_text(), parse_constant=refuse)
    [line] = Run.open(folder).metrics()
    assert line["a"] == math.inf
    assert line["b"] == -math.inf
    assert math.isnan(line["c"])


def test_what_cannot_be_logged(folder):
    with Run.create(folder, RESOLVED) as run:
        run.log(5, 0, loss=1.0)
        with pytest.raises(RunError, match="step is 4 after 5"):
            run.log(4, 0, loss=1.0)
        with pytest.raises(TypeError, match=r"loss is a Tensor.*\.item\(\)"):
            run.log(6, 0, loss=torch.tensor(1.0))
        with pytest.raises(ValueError, match=r"step is 1\.5"):
            run.log(1.5, 0)
        with pytest.raises(ValueError, match=r"record\['step'\] is None"):
            run.checkpoint(WEIGHTS, {"epoch": 1})
    assert len(Run.open(folder).metrics()) == 1


def test_a_closed_or_read_run_cannot_be_written(folder):
    with Run.create(folder, RESOLVED) as run:
        pass
    for closed in (run, Run.open(folder)):
        with pytest.raises(RunError, match="reading only"):
            closed.log(1, 0)
        with pytest.raises(RunError, match="reading only"):
            closed.checkpoint(WEIGHTS, {"step": 1})
        with pytest.raises(RunError, match="reading only"):
            closed.finish({}, WEIGHTS)
        with pytest.raises(RunError, match="not finished"):
            closed.weights()
        with pytest.raises(RunError, match="not finished"):
            closed.evaluation()


# Starting where something is already there.


def test_a_finished_run_is_not_run_again(folder):
    before = everything(finished(folder))
    for resume in (False, True):
        with pytest.raises(RunError, match=r"finished.*another folder.*--overwrite"):
            Run.create(folder, RESOLVED, resume=resume)
    assert everything(folder) == before


def test_a_finished_run_of_something_else_is_told_as_such(folder):
    finished(folder)
    for resume in (False, True):
        with pytest.raises(RunError, match=r"another one.*seed \(0 there, 5 now\)"):
            Run.create(folder, {**RESOLVED, "seed": 5}, resume=resume)


def test_an_unfinished_run_needs_resume(folder):
    before = everything(unfinished(folder))
    with pytest.raises(RunError, match=r"not finished.*--resume"):
        Run.create(folder, RESOLVED)
    assert everything(folder) == before


def test_resume_without_a_run_starts_one(folder):
    with Run.create(folder, RESOLVED, resume=True) as run:
        assert run.last_checkpoint() is None


def test_a_run_of_something_else_is_not_resumed(folder):
    before = everything(unfinished(folder))
    other = json.loads(json.dumps(RESOLVED))
    other["recipe"]["representation"]["lr"] = 0.2
    other["data"]["selection"] = "first"
    other["seed"] = 1
    del other["data"]["imbalance"]
    with pytest.raises(RunError) as raised:
        Run.create(folder, other, resume=True)
    for words in (
        "recipe.representation.lr (0.1 there, 0.2 now)",
        'data.selection (absent there, "first" now)',
        "data.imbalance (100 there, absent now)",
        "seed (0 there, 1 now)",
    ):
        assert words in str(raised.value)
    assert "augment" not in str(raised.value)
    assert everything(folder) == before


def test_what_an_older_version_wrote_is_read_first(folder):
    unfinished(folder)
    now = {**RESOLVED, "later": 0}
    with pytest.raises(RunError, match=r"later \(absent there, 0 now\)"):
        Run.create(folder, now, resume=True)
    Run.create(folder, now, resume=True, read=lambda there: {"later": 0, **there}).close()
    assert Run.open(folder).resolved["later"] == 0


def test_many_differences_are_counted(folder):
    with Run.create(folder, {f"k{place:02}": 0 for place in range(14)}):
        pass
    with pytest.raises(RunError, match=r"k09 \(0 there, 1 now\) and 4 more\."):
        Run.create(folder, {f"k{place:02}": 1 for place in range(14)}, resume=True)


@pytest.mark.parametrize("make", [unfinished, finished])
def test_overwrite_starts_anew(folder, make):
    make(folder)
    (folder / ".metrics.jsonl.0123abcd.part").touch()
    with Run.create(folder, {"seed": 3}, overwrite=True) as run:
        assert run.metrics() == []
        assert run.last_checkpoint() is None
        assert len(run.sessions) == 1
    assert not Run.open(folder).finished
    assert not list(folder.glob(".*"))


def test_what_lies_beside_a_run_is_never_removed(folder):
    finished(folder)
    finished(folder / "seed1")
    (folder / "notes.txt").write_text("mine")
    before = everything(folder)
    with pytest.raises(RunError, match=r"holds notes\.txt, seed1, so it is not replaced"):
        Run.create(folder, RESOLVED, overwrite=True)
    assert everything(folder) == before
    assert Run.open(folder).finished


def test_stopped_while_overwriting_it_is_no_finished_run_without_weights(folder, monkeypatch):
    finished(folder)
    removed = []

    def remove_one(entry):
        if removed:
            raise KeyboardInterrupt
        removed.append(entry)
        entry.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("protail.experiments.run._remove", remove_one)
        with pytest.raises(KeyboardInterrupt):
            Run.create(folder, RESOLVED, overwrite=True)
    assert not Run.open(folder).finished
    Run.create(folder, RESOLVED, resume=True).close()


def test_a_damaged_run_can_be_overwritten_only(folder):
    unfinished(folder)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text[: len(text) // 2])
    for act in (Run.open, lambda place: Run.create(place, RESOLVED, resume=True)):
        with pytest.raises(RunError, match=r"run\.json: is no valid JSON"):
            act(folder)
    Run.create(folder, RESOLVED, overwrite=True).close()


def test_what_is_no_run_is_left_alone(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"cat")
    (photos / "run.json").write_text('{"legs": 4}')
    before = everything(photos)
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(RunError, match="something else than a run"):
            Run.create(photos, RESOLVED, **options)
        with pytest.raises(RunError, match="this is a file"):
            Run.create(photos / "cat.jpg", RESOLVED, **options)
    assert everything(photos) == before
    assert not (photos / "lock").exists()
    with pytest.raises(RunError, match=r"not of format 'protail-run'"):
        Run.open(photos)
    with pytest.raises(RunError, match=r"no run\.json"):
        Run.open(tmp_path).metrics()
    with pytest.raises(RunError, match="both"):
        Run.create(tmp_path / "new", RESOLVED, resume=True, overwrite=True)
    assert not (tmp_path / "new").exists()


def test_a_newer_run(folder):
    unfinished(folder)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(RunError, match=r"newer protail .*pip install"):
        Run.open(folder)


def test_settings_that_are_not_strict_json(folder):
    with pytest.raises(ValueError, match=r"resolved\.recipe\.lr is nan"):
        Run.create(folder, {"recipe": {"lr": math.nan}})
    with pytest.raises(TypeError, match=r"resolved\.root is a .*Path"):
        Run.create(folder, {"root": folder})
    assert not folder.exists()


# Going on.


def test_lines_behind_the_checkpoint_and_torn_ones_are_dropped(folder):
    unfinished(folder, steps=5)  # checkpoint at 4
    whole = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "ep')
    assert [line["step"] for line in Run.open(folder).metrics()] == [1, 2, 3, 4, 5]
    with Run.create(folder, RESOLVED, resume=True) as run:
        assert (folder / "metrics.jsonl").read_bytes() == b"".join(whole[:4])
        assert len(run.sessions) == 2
        run.log(5, 0, loss=0.2)
    assert (folder / "metrics.jsonl").read_bytes() == b"".join(whole)


def test_without_a_checkpoint_all_lines_are_dropped(folder):
    with Run.create(folder, RESOLVED) as run:
        run.log(0, 0, loss=1.0)
    with Run.create(folder, RESOLVED, resume=True) as run:
        assert run.metrics() == []
        run.log(0, 0, loss=1.0)


def test_a_damaged_line_is_named(folder):
    unfinished(folder)
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(lines[0] + b"!\n" + lines[2])
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2"):
        Run.open(folder).metrics()
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2"):
        Run.create(folder, RESOLVED, resume=True)


def test_a_damaged_checkpoint_is_told_and_nothing_is_dropped(folder):
    before = everything(unfinished(folder))
    path = folder / "checkpoint.safetensors"
    before[path.relative_to(folder)] = path.read_bytes()[:-1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="checksum"):
        Run.create(folder, RESOLVED, resume=True)
    assert everything(folder) == before


def train(folder, n_steps=40, die_at=None):
    """Train a little network as a run, checkpoint every 7 steps; maybe be killed on the way."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    with Run.create(folder, RESOLVED, resume=True) as run:
        start = 0
        if last := run.last_checkpoint():
            restore_training_state(last.tensors, module, optimizer)
            start = last.record["step"]
        for step in range(start + 1, n_steps + 1):
            batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
            # No autograd: what other tests compiled starts its threads, which no fork has.
            with torch.no_grad():
                loss = (module(batch) - batch.sum(1, keepdim=True)).square().mean()
                for parameter in module.parameters():
                    parameter.grad = loss * parameter
            optimizer.step()
            run.log(step, step // 10, loss=loss.item())
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 7 == 0:
                run.checkpoint(training_state(module, optimizer), {"step": step})
        run.finish({"loss": loss.item()}, training_state(module, optimizer))


def test_a_killed_and_resumed_run_equals_one_that_was_not(tmp_path):
    train(tmp_path / "whole")
    for die_at in (3, 7, 15, 16, 30, 40):
        child = FORK.Process(target=train, args=(tmp_path / "killed", 40, die_at))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL
    train(tmp_path / "killed")
    whole, killed = Run.open(tmp_path / "whole"), Run.open(tmp_path / "killed")
    assert len(killed.sessions) == 7
    metrics = [(run.folder / "metrics.jsonl").read_bytes() for run in (whole, killed)]
    assert metrics[0] == metrics[1]
    weights = [(run.folder / "weights.safetensors").read_bytes() for run in (whole, killed)]
    assert weights[0] == weights[1]
    assert killed.evaluation() == whole.evaluation()


def write_for_ever(folder, started):
    with Run.create(folder, RESOLVED, resume=True) as run:
        last = run.last_checkpoint()
        step = last.record["step"] if last else 0
        while True:
            step += 1
            run.log(step, 0, value=step)
            started.value = step
            run.checkpoint({"value": torch.full((300, 300), step)}, {"step": step})


def test_killed_at_any_moment_the_folder_is_whole(folder):
    moments = random.Random(0)
    started = FORK.Value("q", 0, lock=False)
    for kill in range(25):
        # The first ones are killed at once, before there is anything; the others after steps.
        wanted = started.value + (moments.randrange(4) if kill > 4 else 0)
        child = FORK.Process(target=write_for_ever, args=(folder, started))
        child.start()
        patiently(lambda: started.value >= wanted)  # noqa: B023
        time.sleep(moments.uniform(0, 0.01))
        child.kill()
        child.join(PATIENCE)
        if not (folder / "run.json").exists():
            continue
        run = Run.open(folder)
        checkpoint = run.last_checkpoint()
        step = checkpoint.record["step"] if checkpoint else 0
        assert started.value - 1 <= step <= started.value
        if checkpoint:
            assert (checkpoint.tensors["value"] == step).all()
        steps = [line["step"] for line in run.metrics()]
        assert steps == list(range(1, len(steps) + 1))
        assert step <= len(steps) <= started.value + 1
    assert started.value >= 20
    Run.create(folder, RESOLVED, resume=True).close()
    assert not list(folder.glob(".*"))


def test_a_kill_before_run_json_leaves_a_free_place(folder):
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / ".run.json.0123abcd.part").write_text("{")
    Run.create(folder, RESOLVED).close()
    assert not list(folder.glob(".*"))


# The lock.


def test_a_second_process_is_told_who_holds_the_lock(folder):
    with Run.create(folder, RESOLVED) as run:
        run.checkpoint(WEIGHTS, {"step": 1})
        for options in ({}, {"resume": True}, {"overwrite": True}):
            kind, words = in_child(lambda: Run.create(folder, RESOLVED, **options))  # noqa: B023
            assert kind is RunError
            assert f"process {os.getpid()}, since 20" in words
        assert in_child(lambda: Run.open(folder).last_checkpoint().record) == {"step": 1}
        with pytest.raises(RunError, match=f"process {os.getpid()}"):
            Run.create(folder, RESOLVED, resume=True)  # nor this process, a second time
        run.log(2, 0)
    assert in_child(lambda: Run.create(folder, RESOLVED, resume=True).close()) is None


def test_one_of_many_processes_gets_in(folder):
    ready, done = FORK.Barrier(6), FORK.Barrier(6)

    def enter(answers):
        ready.wait(PATIENCE)
        run = None
        try:
            run = Run.create(folder, RESOLVED, resume=True)
            answers.put("in")
        except RunError as error:
            answers.put(str(error))
        done.wait(PATIENCE)  # nobody leaves before all have tried
        del run

    answers = FORK.Queue()
    children = [FORK.Process(target=enter, args=(answers,)) for _ in range(6)]
    for child in children:
        child.start()
    told = sorted(answers.get(timeout=PATIENCE) for _ in children)
    for child in children:
        child.join(PATIENCE)
    assert told.count("in") == 1
    assert all("being written by" in words for words in told if words != "in")


def test_a_failed_start_releases_the_lock(folder):
    unfinished(folder)
    with pytest.raises(RunError, match="seed") as raised:
        Run.create(folder, {"seed": 5}, resume=True)
    assert raised.value.__traceback__ is not None  # which keeps the frames alive
    Run.create(folder, RESOLVED, resume=True).close()


def test_a_dead_holder_holds_nothing_even_if_its_workers_live(folder):
    here, there = FORK.Pipe()

    def hold():
        run = Run.create(folder, RESOLVED)
        worker = os.fork()
        if worker == 0:
            signal.pause()
        there.send(worker)
        signal.pause()
        run.close()

    holder = FORK.Process(target=hold)
    holder.start()
    assert here.poll(PATIENCE)
    worker = here.recv()
    try:
        with pytest.raises(RunError, match=f"process {holder.pid}"):
            Run.create(folder, RESOLVED, resume=True)
        holder.kill()
        os.waitpid(holder.pid, 0)
        os.kill(worker, 0)  # it lives
        Run.create(folder, RESOLVED, resume=True).close()
    finally:
        os.kill(worker, signal.SIGKILL)


# Disks.


def with_small_files(limit, function):
    """Call it where no file may grow beyond ``limit``: the system refuses, as on a full disk."""

    def limited():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return function()

    return in_child(limited)


def test_a_full_disk_while_checkpointing(folder):
    unfinished(folder)

    def act():
        with Run.create(folder, RESOLVED, resume=True) as run:
            run.checkpoint({"large": torch.zeros(500, 500)}, {"step": 9})

    kind, words = with_small_files(50_000, act)
    assert kind is OutputError
    assert "cannot be written" in words
    assert Run.open(folder).last_checkpoint().record["step"] == 2
    assert not list(folder.glob(".*"))


def test_a_full_disk_while_finishing_leaves_the_run_unfinished(folder):
    unfinished(folder)

    def act():
        with Run.create(folder, RESOLVED, resume=True) as run:
            run.finish({}, {"large": torch.zeros(500, 500)})

    assert with_small_files(50_000, act)[0] is OutputError
    assert not Run.open(folder).finished
    Run.create(folder, RESOLVED, resume=True).close()


def test_a_full_disk_while_logging_leaves_whole_lines(folder, no_tensorboard):
    def act():
        with Run.create(folder, RESOLVED) as run:
            for step in range(1000):
                run.log(step, 0, loss=0.5)

    kind, words = with_small_files(5_000, act)
    assert kind is OutputError
    assert "metrics.jsonl cannot be written" in words
    assert (folder / "metrics.jsonl").read_bytes().endswith(b"}\n")
    assert len(Run.open(folder).metrics()) > 100


def test_a_full_disk_while_starting(folder):
    kind, _ = with_small_files(100, lambda: Run.create(folder, RESOLVED))
    assert kind is OutputError
    Run.create(folder, RESOLVED).close()


def test_no_permission():
    def act(place):
        if os.getuid() == 0:  # the superuser may write anywhere
            os.setresuid(65534, 65534, 65534)
        Run.create(place, RESOLVED, resume=True)

    with tempfile.TemporaryDirectory() as parent:
        unfinished(Path(parent) / "run")
        for path in (Path(parent), *Path(parent).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        for place in ("run", "new", "deep/new"):
            kind, words = in_child(act, Path(parent) / place)
            assert kind is OutputError
            assert "no permission" in words
        assert Run.open(Path(parent) / "run").metrics()
        Path(parent).chmod(0o755)
        (Path(parent) / "run").chmod(0o755)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="not a folder"):
        Run.create(tmp_path / "file" / "run", RESOLVED)


# TensorBoard.


def test_without_tensorboard_there_is_one_note(folder, no_tensorboard):
    with Run.create(folder, RESOLVED) as run:
        run.log(1, 0, loss=0.5)
        run.log(2, 0, loss=0.5)
        [note] = run.notes
    assert install_command("train") in note
    assert not (folder / "tensorboard").exists()


def test_tensorboard_shows_what_metrics_say(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    unfinished(folder, steps=6)  # checkpoint at 5: step 6 is dropped
    with Run.create(folder, RESOLVED, resume=True) as run:
        assert run.notes == []
        for step in (6, 7):
            run.log(step, 1, loss=-step, **{"few/accuracy": math.nan})
    shown = accumulator.EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    assert set(shown.Tags()["scalars"]) == {"loss", "few/accuracy"}
    losses = [(event.step, event.value) for event in shown.Scalars("loss")]
    expected = [(line["step"], line["loss"]) for line in Run.open(folder).metrics()]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6, 7]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_the_checkpoint_of_someone_else_is_refused(folder):
    unfinished(folder)
    save_checkpoint(folder / "checkpoint.safetensors", WEIGHTS, {"epoch": 1})
    with pytest.raises(RunError, match="no step"):
        Run.create(folder, RESOLVED, resume=True)
